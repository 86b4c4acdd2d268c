"""Which of the fast chains: the fewest sessions among near equals, and none beyond its knee (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from swarm.core.limits import MAX_STAGES
from swarm.core.spans import Span
from swarm.scheduling.knee import full_servers
from swarm.scheduling.routing_arrays import Arrays
from swarm.scheduling.routing_links import Bools
from swarm.scheduling.routing_price import Chain, chain_s
from swarm.scheduling.routing_search import SLACK, Costs, Part, Search
from swarm.scheduling.routing_types import RouteNeeds, RouteOptions

PENALTY_S = 1e150
"""Above every chain's time: with so much on every stage only their number counts."""
DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """A chain, what it takes, who might have stood in it, and what each would have cost."""

    parts: Sequence[Part]
    latency_s: float
    group: Bools
    costs: Costs


class Chooser:
    """Chains for one session's needs on one view."""

    def __init__(self, arrays: Arrays, needs: RouteNeeds, salt: int, options: RouteOptions) -> None:
        self._arrays = arrays
        self._needs = needs
        self._options = options
        self.shortest = 0
        self._span = Span(0, arrays.cluster.layers)
        self._groups = arrays.groups(needs)
        self._costs = [arrays.costs(needs, group, salt, options.spread) for group in self._groups]
        self._searches = [Search(arrays.layout, arrays.links, self._span, costs) for costs in self._costs]

    def choose(self) -> Choice | None:
        """The chain to take, None if there is none.

        The fastest, if it is below its knee; else the fastest without its full servers, if that is not ``detour`` times
        slower, and so on for some rounds; if all are full, or no other is left, the best of all after all. Then of the
        chains near it the least used, unless that one is full.
        """
        first = self._fastest(None, np.inf)
        if first is None:
            return None
        found = self._below_knee(first)
        if found is None:
            return self._least_used(first, None)
        best, spare = found
        choice = self._least_used(best, spare)
        return best if self._full(choice) else choice

    def _below_knee(self, best: Choice) -> tuple[Choice, Bools] | None:
        """The first chain without full servers, and who is not known to be full; None if all rounds find none."""
        ceiling_s = best.latency_s * self._options.detour
        spare = np.ones(len(self._arrays.nodes), dtype=bool)
        for _ in range(self._options.rounds):
            full = self._full(best)
            if not full:
                return best, spare
            spare[full] = False
            following = self._fastest(spare, ceiling_s)
            if following is None:
                return None
            best = following
        return None

    def _full(self, choice: Choice) -> list[int]:
        """The chain's servers that one session more would take over their knee."""
        names = full_servers(self._arrays.cluster, self.chain(choice.parts), self._needs)
        return [self._arrays.number[name] for name in names]

    def chain(self, parts: Sequence[Part]) -> Chain:
        return [(self._arrays.nodes[index], len(span)) for index, span in parts]

    def _least_used(self, best: Choice, allowed: Bools | None) -> Choice:
        """Of the allowed chains within ``near`` of the best, the one whose busiest server has the fewest sessions.

        Among those the fastest. Exact: the best chain of the servers with at most s sessions, for the least s that
        keeps it near; halving over the distinct numbers finds that s, for a larger s can only be faster.
        """
        sessions = self._arrays.sessions
        near_s = best.latency_s * (1 + self._options.near)
        most = max(sessions[index] for index, _ in best.parts)
        eligible = np.logical_or.reduce(self._groups)
        counts = np.unique(sessions[eligible & (sessions < most)])
        low, high = 0, len(counts)
        while low < high:
            middle = (low + high) // 2
            few = sessions <= counts[middle]
            found = self._fastest(few if allowed is None else few & allowed, near_s)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        return best

    def _fastest(self, allowed: Bools | None, ceiling_s: float) -> Choice | None:
        """The fastest chain of any one group, of those below the ceiling; the first group's of equals."""
        best: Choice | None = None
        for group, search, costs in zip(self._groups, self._searches, self._costs, strict=True):
            parts = search.best(allowed, ceiling_s)
            if parts is not None and len(parts) > MAX_STAGES:
                parts = self._shorter(costs, allowed, self._latency_s(parts))
            if parts is None:
                continue
            latency_s = self._latency_s(parts)
            if latency_s <= ceiling_s * (1 + SLACK) and (best is None or latency_s < best.latency_s * (1 - SLACK)):
                best = Choice(parts, latency_s, group, costs)
        return best

    def _latency_s(self, parts: Sequence[Part]) -> float:
        return chain_s(self._arrays.cluster, self.chain(parts), self._needs)

    def _shorter(self, costs: Costs, allowed: Bools | None, latency_s: float) -> list[Part] | None:
        """The fastest chain of its number of stages, by a penalty on every stage that brings it within ``MAX_STAGES``.

        A penalty at most twice the least that does: where several numbers of stages would do, not always the best one.
        None if even the shortest chain is too long; ``shortest`` then says how long.
        """
        fewest = self._penalised(costs, allowed, PENALTY_S)
        if len(fewest) > MAX_STAGES:
            self.shortest = len(fewest)
            return None
        penalty_s = latency_s / MAX_STAGES
        for _ in range(DOUBLINGS):
            parts = self._penalised(costs, allowed, penalty_s)
            if len(parts) <= MAX_STAGES:
                return parts
            penalty_s *= 2
        return fewest

    def _penalised(self, costs: Costs, allowed: Bools | None, penalty_s: float) -> list[Part]:
        dearer = replace(costs, fixed_s=costs.fixed_s + penalty_s)
        return Search(self._arrays.layout, self._arrays.links, self._span, dearer).best(allowed) or []
