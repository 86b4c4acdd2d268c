"""The fastest chain over a run of layers: forward dynamic programming, pruned by a backward bound (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from swarm.core.spans import Span
from swarm.scheduling.routing_layers import Layout
from swarm.scheduling.routing_links import Bools, Floats, Ints, Links

Part: TypeAlias = tuple[int, Span]
"""A node's number and what it computes."""
BEAM = 32
"""Nodes at each end of a layer's switches in the first pass."""
FINITE_S = np.finfo(float).max
SLACK = 1e-9
"""Relative: sums of the same times in another order differ by less."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What is minimised, in seconds, all [nodes]: one entering, one leaving, every stage's start and every layer.

    Infinite ``enter_s`` or ``leave_s``: may not begin or end the chain. Infinite ``fixed_s``: takes no part.
    """

    enter_s: Floats
    leave_s: Floats
    fixed_s: Floats
    tau_s: Floats


class Search:
    """The best chains over the layers of ``span``, for one set of costs.

    ``dp(l, j)``: layers up to l done, the last by j. Stay: ``dp(l+1, j) = dp(l, j) + tau_j``; switch:
    ``min_i dp(l, i) + hop(i, j) + fixed_j + tau_j``, at every layer, for round trips need not obey the triangle
    inequality. The result is the optimum.

    A plain pass looks at all pairs of a layer's n holders, O(L·n²), and is done where layers are laid out in blocks.
    Elsewhere a backward pass over G groups of nodes first bounds from below what is still to come, O(L·(G·n +
    shortcuts)). A forward pass then follows only the ``BEAM`` most promising nodes at each end of a switch, O(L·(n +
    BEAM²)); often what it left out is bounded to be no better. If not, a second one looks at every pair that could
    still beat the chain found, O(L·(n + s·t)) for the s senders and t receivers that are left: few where round trips
    have some geometry, more where they are noise, in the worst case all.
    """

    def __init__(self, layout: Layout, links: Links, span: Span, costs: Costs) -> None:
        self._layers = layout.layers
        self._links = links
        self._span = span
        self._costs = costs
        self._active = layout.active
        self._fixed_s, self._tau_s = costs.fixed_s[layout.active], costs.tau_s[layout.active]
        self._bounds = None
        if self._layers[span.start].block_s is None:
            leave_s = costs.leave_s[self._layers[span.end - 1].active]
            self._bounds = _Bounds(layout, span, leave_s, self._fixed_s, self._tau_s)

    def best(self, allowed: Bools | None = None, ceiling_s: float = np.inf) -> list[Part] | None:
        """The fastest chain of ``allowed`` nodes (None: all), None if there is none; any over the ceiling may go."""
        leave_s = self._costs.leave_s[self._layers[self._span.end - 1].active]
        if not len(leave_s):
            return None
        fixed_s = self._fixed_s if allowed is None else np.where(allowed[self._active], self._fixed_s, np.inf)
        reached, left_out_s = self._forward(fixed_s, ceiling_s, None if self._bounds is None else BEAM)
        total_s = reached[-1][:-1] + leave_s
        if left_out_s < (ceiling_s := min(ceiling_s, total_s.min())):
            reached, _ = self._forward(fixed_s, ceiling_s * (1 + SLACK), None)
            total_s = reached[-1][:-1] + leave_s
        if not np.isfinite(total_s.min()):
            return None
        return self._walk(reached, int(np.argmin(total_s)))

    def _forward(self, fixed_s: Floats, ceiling_s: float, beam: int | None) -> tuple[list[Floats], float]:
        """``dp`` after each layer of the span, for its holders and infinite for one more; what was left out, at least.

        Only for chains up to the ceiling, and with a ``beam`` only for some of them.
        """
        first = self._layers[self._span.start]
        enter_s = self._costs.enter_s[first.active]
        reached = [np.append(enter_s + fixed_s[first.flat] + self._tau_s[first.flat], np.inf)]
        least_s = np.inf
        scratch = np.empty(0)
        for number in range(self._span.start + 1, self._span.end):
            layer, done_s = self._layers[number], reached[-1]
            next_s = np.full(len(layer.active) + 1, np.inf)
            arrive_s = next_s[:-1]
            if self._bounds is not None:
                least_s = min(least_s, self._switch(number, done_s[:-1], ceiling_s, beam, arrive_s))
            elif layer.block_s is not None and layer.block_s.size:
                if len(scratch) < layer.block_s.size:
                    scratch = np.empty(2 * layer.block_s.size)
                through_s = scratch[: layer.block_s.size].reshape(layer.block_s.shape)
                np.add(layer.block_s, done_s[:-1, None], out=through_s)
                np.minimum.reduce(through_s, axis=0, out=arrive_s)
            arrive_s += fixed_s[layer.flat]
            np.minimum(arrive_s, done_s.take(layer.came), out=arrive_s)
            arrive_s += self._tau_s[layer.flat]
            reached.append(next_s)
        return reached, least_s

    def _switch(self, number: int, done_s: Floats, ceiling_s: float, beam: int | None, arrive_s: Floats) -> float:
        """Put ``min_i dp(i) + hop(i, j)`` into ``arrive_s`` for the j, over the i, that may be in a chain up to the
        ceiling, at most ``beam`` of each, and return a lower bound of what all others could lead to."""
        assert self._bounds is not None
        layer, before = self._layers[number], self._layers[number - 1].active
        senders, left_out_s = _promising(done_s + self._bounds.switch_s[number], ceiling_s, beam)
        if not len(senders):
            return left_out_s
        from_s = done_s[senders]
        soonest_s = layer.arrival_bound_s(senders, from_s, self._links.least_s[before[senders]])
        receivers, also_s = _promising(soonest_s + self._bounds.onward_s[number], ceiling_s, beam)
        hop_s = self._links.block(before[senders], layer.active[receivers])
        hop_s += from_s[:, None]
        arrive_s[receivers] = np.minimum.reduce(hop_s, axis=0)
        return min(left_out_s, also_s)

    def _walk(self, reached: Sequence[Floats], at: int) -> list[Part]:
        """The chain behind the value at place ``at`` of the last layer; a stay is preferred to an equal switch."""
        end = self._span.end
        parts: list[Part] = []
        for number in range(end - 1, self._span.start, -1):
            layer, before_s = self._layers[number], reached[number - 1 - self._span.start]
            came = layer.came[at]
            if before_s[came] + self._tau_s[layer.flat.start + at] <= reached[number - self._span.start][at]:
                at = int(came)
                continue
            parts.append((int(layer.active[at]), Span(number, end)))
            end = number
            before = self._layers[number - 1].active
            soon = (before_s[:-1] + self._links.least_s[before] <= reached[number - self._span.start][at]).nonzero()[0]
            hop_s = self._links.block(before[soon], layer.active[at : at + 1])[:, 0]
            at = int(soon[np.argmin(before_s[soon] + hop_s)])
        parts.append((int(self._layers[self._span.start].active[at]), Span(self._span.start, end)))
        return parts[::-1]


class _Bounds:
    """Lower bounds of what is still to come, by layer l and place.

    ``onward_s[l]`` for a node of layer l that begins there, ``switch_s[l]`` for one of the layer before that hands over
    at l.
    """

    def __init__(self, layout: Layout, span: Span, leave_s: Floats, fixed_s: Floats, tau_s: Floats) -> None:
        self.onward_s: dict[int, Floats] = {}
        self.switch_s: dict[int, Floats] = {}
        rest_s = leave_s
        for number in range(span.end - 1, span.start, -1):
            layer = layout.layers[number]
            go_s = np.append(rest_s + tau_s[layer.flat], np.inf)
            self.onward_s[number] = onward_s = go_s[:-1] + fixed_s[layer.flat]
            if len(onward_s):
                self.switch_s[number] = layer.switch_bound_s(onward_s)
            else:
                self.switch_s[number] = np.full(len(layer.went), np.inf)
            rest_s = np.minimum(self.switch_s[number], go_s.take(layer.went))


def _promising(bound_s: Floats, ceiling_s: float, beam: int | None) -> tuple[Ints, float]:
    """Places of finite bounds up to the ceiling, at most ``beam`` of them, the lowest, and the least of the others."""
    places: Ints = (bound_s <= min(ceiling_s, FINITE_S)).nonzero()[0]
    if beam is None or len(places) <= beam:
        return places, np.inf
    kept = bound_s[places]
    order = kept.argpartition(beam)
    return places[order[:beam]], float(kept[order[beam]])
