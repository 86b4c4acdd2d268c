"""The default strategy: as many pipelines as the score likes, out of as few servers as they need."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from swarm.scheduling.allocation.assembly import assemble
from swarm.scheduling.allocation.covering import (
    EXACT_UP_TO,
    Groups,
    cover,
    exact_covers,
    least_servers,
    tightest,
)
from swarm.scheduling.allocation.exchange import EXCHANGES, exchanged, matched
from swarm.scheduling.allocation.plan import Plan, Score
from swarm.scheduling.allocation.scoring import Scoring, scoring_of
from swarm.scheduling.allocation.territories import territories
from swarm.scheduling.cluster import Cluster, Node

MANY = 64
"""From so many servers on the score may not give away more than ``GIVEN_AWAY`` of the pipelines."""
GIVEN_AWAY = 0.03
TRIES = 4
"""So many values of k are built at most to find the best by score; ``MANY_TRIES`` with many servers."""
MANY_TRIES = 1
EXCHANGE_BELOW = 128
"""With fewer nodes than this, single servers are exchanged too, not only those of one capacity."""
IMPOSSIBLE = 1 << 40

Split: TypeAlias = tuple[int, ...]
"""Pipelines by territory."""


def parallax(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """Choose the number of pipelines k by ``score`` of (k, s*(k)), and build them (DESIGN 7).

    s*(k) is the least number of servers that make k pipelines, none of which leaves its territory. Ties go to the
    larger k. Which servers share a pipeline is then improved by exchanges that let the swarm serve more. In each
    pipeline layers are shared by water-filling, the stages stand near one another, and whoever is left over replicates
    the layers with the least throughput.

    Exact up to ``EXACT_UP_TO`` servers in a territory: k is the best by the score and s*(k) is the least, by dynamic
    programming over sets. Above, s*(k) is bounded from below by the sums of the largest servers and from above by a bin
    covering heuristic, and k's are built in the order of the score that their bound allows, at most ``TRIES`` of them
    (one with ``MANY`` nodes); ``gap`` is empty where this proves the best. A pipeline is found whenever the capacities
    allow one. ``paper`` also asks for the power of the servers used: the choice takes that of the s*(k) largest, before
    it is known which ones stand in the pipelines; the plan's score is that of those that do.

    Z = k²/s* alone would leave the smallest servers out of many (the last pipeline of a mixed swarm takes more than
    twice the servers of an average one), so with ``MANY`` nodes or more k is at least 97 % of sum(c) / L in whole
    pipelines, wherever so many are found. 95 % of them exist when all capacities are small parts of the model, unless
    the capacities cannot add up near L (all 7 of 64 layers: 70 are used for each 64).

    O(n log n) for the order, O(TRIES * k * d) operations on L bits for d distinct capacities, O(n * L) for replicas.
    """
    areas = territories(cluster)
    grounds = [_Ground.of(nodes, cluster.layers) for nodes in areas]
    choice = _Choice(grounds, scoring_of(cluster, areas), score, len(cluster.nodes) >= MANY)
    split = choice.best()
    effort = EXCHANGES // max(1, len(grounds)) if len(cluster.nodes) < EXCHANGE_BELOW else 0
    groups = [group for ground, k in zip(grounds, split, strict=True) for group in ground.groups(k, effort)]
    return assemble(cluster, areas, groups, score, choice.gap(split))


@dataclass(slots=True)
class _Ground:
    """One territory: its servers, largest first, and what is known of s*(k) there."""

    nodes: Sequence[Node]
    capacities: list[int]
    layers: int
    bound: list[int]
    """A lower bound of s*(k) by k, as long as k may be possible; exact up to ``EXACT_UP_TO`` servers."""
    cost: list[int]
    """What is planned with: the bound, or the servers taken where k was built; as long as k is thought possible."""
    power: list[float]
    """Of the m largest servers together, by m."""
    built: dict[int, Groups]

    @classmethod
    def of(cls, nodes: Sequence[Node], layers: int) -> _Ground:
        capacities = [min(node.capacity_layers, layers) for node in nodes]
        built: dict[int, Groups] = {0: []}
        if len(nodes) <= EXACT_UP_TO:
            built = dict(enumerate(exact_covers(capacities, layers)))
            bound = [sum(map(len, groups)) for groups in built.values()]
        else:
            bound = least_servers(capacities, tightest(capacities, layers))
        power = list(itertools.accumulate((node.power for node in nodes), initial=0.0))
        return cls(nodes, capacities, layers, bound, list(bound), power, built)

    def build(self, k: int) -> bool:
        """Find ``k`` groups out of few servers; if only fewer are found, ``cost`` ends there, and the answer is no."""
        groups: Groups = []
        used, servers = self.bound[k], len(self.capacities)
        while True:
            groups = cover(self.capacities[:used], self.layers, k)
            if len(groups) == k or used == servers:
                break
            # Few servers: each one more is tried. Many: as many more as would hold the pipelines that are missing.
            spare = sum(self.capacities[:used]) - sum(self.capacities[index] for group in groups for index in group)
            lacking = (k - len(groups)) * self.layers - spare if servers >= MANY else 0
            used += 1
            while used < servers and (lacking := lacking - self.capacities[used - 1]) > 0:
                used += 1
        if len(groups) < k and (larger := [other for other in self.built.values() if len(other) > k]):
            groups = sorted(larger[0], key=len)[:k]
        known = self.built.setdefault(len(groups), groups)
        self.cost[len(groups)] = sum(map(len, known))
        if len(groups) < k:
            del self.cost[max(self.built) + 1 :]
        return len(groups) == k

    def groups(self, k: int, effort: int) -> list[list[Node]]:
        """The servers of the ``k`` pipelines that were built, exchanged so that together they are fast."""
        groups = matched([[self.nodes[index] for index in group] for group in self.built[k]], self.layers)
        if not effort:
            return groups
        used = {node.id for group in groups for node in group}
        return exchanged(groups, [node for node in self.nodes if node.id not in used], self.layers, effort)


@dataclass(frozen=True, slots=True)
class _Choice:
    """The search for the best k over all territories together."""

    grounds: Sequence[_Ground]
    scoring: Scoring
    score: Score
    many: bool
    """Whether the swarm has ``MANY`` nodes, usable or not."""

    def best(self) -> Split:
        """Build what looks best until what looks best is built; after enough tries, take the best of what is built.

        A k that is not reached does not count as a try: there are fewer of them to choose from then.
        """
        tries = MANY_TRIES if self.many else TRIES
        while tries:
            split = self._favourite([dict(enumerate(ground.cost)) for ground in self.grounds])
            todo = [(ground, k) for ground, k in zip(self.grounds, split, strict=True) if k not in ground.built]
            if not todo:
                return split
            reached = [ground.build(k) for ground, k in todo]
            tries -= all(reached)
        return self._favourite([{k: ground.cost[k] for k in ground.built} for ground in self.grounds])

    def gap(self, split: Split) -> str:
        """How far the split may be from the best, in words."""
        k, most = sum(split), sum(len(ground.bound) - 1 for ground in self.grounds)
        bounds = [dict(enumerate(ground.bound)) for ground in self.grounds]
        cost = [{k: ground.cost[k]} for ground, k in zip(self.grounds, split, strict=True)]
        rank = self._rank(split, cost)
        if k == most or rank >= self._rank(self._favourite(bounds), bounds):
            return ""
        return f"{k} of at most {most} pipelines ({100 * k / most:.1f} %)"

    def _favourite(self, costs: Sequence[Mapping[int, int]]) -> Split:
        """The split with the best score of those in ``costs`` (servers by k, for each ground), ties to the larger k."""
        splits = _splits(costs)
        top = max(map(sum, splits))
        models = sum(sum(ground.capacities) // ground.layers for ground in self.grounds)
        fewest = math.ceil((1 - GIVEN_AWAY) * models) if self.many else 1
        return max((split for split in splits if sum(split) >= min(fewest, top)), key=lambda s: self._rank(s, costs))

    def _rank(self, split: Split, costs: Sequence[Mapping[int, int]]) -> tuple[float, int]:
        taken = [cost[k] for cost, k in zip(costs, split, strict=True)]
        power = sum(ground.power[used] for ground, used in zip(self.grounds, taken, strict=True))
        return self.scoring.score(self.score, sum(split), sum(taken), power), sum(split)


def _splits(costs: Sequence[Mapping[int, int]]) -> list[Split]:
    """For each possible sum of k the split with the fewest servers: the (min, +) product of the grounds' costs.

    O(K²) for K pipelines in all.
    """
    servers = np.zeros(1, dtype=np.int64)
    picks: list[npt.NDArray[np.int64]] = []
    for cost in costs:
        used = np.full(max(cost, default=0) + 1, IMPOSSIBLE)
        used[list(cost)] = list(cost.values())
        used[0] = 0
        merged = np.full(len(servers) + len(used) - 1, IMPOSSIBLE)
        pick = np.zeros(len(merged), dtype=np.int64)
        many = np.arange(len(used))
        if len(used) <= len(servers):  # one vector operation for each entry of the shorter
            parts = [(slice(k, k + len(servers)), servers + used[k], np.full(len(servers), k)) for k in many.tolist()]
        else:
            parts = [(slice(k, k + len(used)), used + servers[k], many) for k in range(len(servers))]
        for window, total, ks in parts:
            better = total < merged[window]
            merged[window][better] = total[better]
            pick[window][better] = ks[better]
        servers = merged
        picks.append(pick)
    splits = []
    for total in np.flatnonzero(servers < IMPOSSIBLE).tolist():
        split: list[int] = []
        for pick in reversed(picks):
            split.append(int(pick[total]))
            total -= split[-1]
        splits.append(tuple(reversed(split)))
    return splits
