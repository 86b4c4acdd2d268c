"""The fastest chain over a run of layers: forward dynamic programming, pruned by a backward bound (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from swarm.core.spans import Span
from swarm.scheduling.routing_layers import Layer
from swarm.scheduling.routing_links import Bools, Floats, Ints, Links

Part: TypeAlias = tuple[int, Span]
"""A node's number and what it computes."""
BEAM = 24
"""Nodes at each end of a layer's switches in the rough pass that finds a first chain."""
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
    inequality. The result is the optimum. A full pass is O(L·n²) for n holders of a layer; so it is done where layers
    are laid out in blocks. Elsewhere a backward pass over groups of nodes first bounds what is still to come from below
    (O(L·(G·n + shortcuts))), a rollout along that bound gives a chain, and then only the pairs that could still beat it
    are looked at: O(L·s·t), s and t being the few senders and receivers that are left. Clusters whose round trips are
    pure noise leave the most, and in the worst case all.
    """

    def __init__(self, layers: Sequence[Layer], links: Links, span: Span, costs: Costs) -> None:
        self._layers = layers
        self._links = links
        self._span = span
        self._costs = costs
        self._bounds = None if layers[span.start].block_s is not None else _Bounds(layers, span, costs)

    def best(self, allowed: Bools | None = None, ceiling_s: float = np.inf) -> list[Part] | None:
        """The fastest chain of ``allowed`` nodes (None: all), None if there is none; any over the ceiling may go."""
        costs = self._costs
        fixed_s = costs.fixed_s if allowed is None else np.where(allowed, costs.fixed_s, np.inf)
        leave_s = costs.leave_s[self._layers[self._span.end - 1].active]
        if not len(leave_s):
            return None
        if self._bounds is not None:
            found_s = (self._forward(fixed_s, ceiling_s, BEAM)[-1] + leave_s).min()
            ceiling_s = min(ceiling_s, found_s) * (1 + SLACK)
        reached = self._forward(fixed_s, ceiling_s)
        total_s = reached[-1] + leave_s
        if not np.isfinite(total_s.min()):
            return None
        return self._walk(reached, int(np.argmin(total_s)))

    def _forward(self, fixed_s: Floats, ceiling_s: float, beam: int | None = None) -> list[Floats]:
        """``dp`` after each layer of the span, for its holders; with a ``beam`` only roughly, from above."""
        start, end = self._span.start, self._span.end
        active = self._layers[start].active
        reached = [self._costs.enter_s[active] + fixed_s[active] + self._costs.tau_s[active]]
        for number in range(start + 1, end):
            layer, done_s = self._layers[number], reached[-1]
            if self._bounds is None:
                arrive_s = _all_switches(layer, done_s)
            else:
                arrive_s = self._some_switches(number, done_s, ceiling_s, beam)
            arrive_s += fixed_s[layer.active]
            np.minimum(arrive_s, _carried(done_s, layer.came), out=arrive_s)
            arrive_s += self._costs.tau_s[layer.active]
            reached.append(arrive_s)
        return reached

    def _some_switches(self, number: int, done_s: Floats, ceiling_s: float, beam: int | None) -> Floats:
        """``min_i dp(i) + hop(i, j)`` for the j, over the i, that may be part of a chain below the ceiling.

        With a ``beam`` only for so many of each, those of the best prospects.
        """
        assert self._bounds is not None
        layer, before = self._layers[number], self._layers[number - 1].active
        onward_s = self._bounds.onward_s[number]
        arrive_s = np.full(len(layer.active), np.inf)
        senders = _promising(done_s + self._bounds.switch_s[number], ceiling_s, beam)
        if len(senders):
            from_s = done_s[senders]
            soonest_s = layer.arrival_bound_s(senders, from_s, self._links.least_s[before[senders]])
            receivers = _promising(soonest_s + onward_s, ceiling_s, beam)
            hop_s = self._links.block(before[senders], layer.active[receivers])
            hop_s += from_s[:, None]
            arrive_s[receivers] = hop_s.min(axis=0)
        return arrive_s

    def _walk(self, reached: Sequence[Floats], at: int) -> list[Part]:
        """The chain behind the value at place ``at`` of the last layer; a stay is preferred to an equal switch."""
        end = self._span.end
        parts: list[Part] = []
        for number in range(end - 1, self._span.start, -1):
            layer, before = self._layers[number], reached[number - 1 - self._span.start]
            node, came = int(layer.active[at]), int(layer.came[at])
            value_s = reached[number - self._span.start][at]
            if came < len(before) and before[came] + self._costs.tau_s[node] <= value_s:
                at = came
                continue
            parts.append((node, Span(number, end)))
            end = number
            hop_s = self._links.block(self._layers[number - 1].active, layer.active[at : at + 1])[:, 0]
            at = int(np.argmin(before + hop_s))
        parts.append((int(self._layers[self._span.start].active[at]), Span(self._span.start, end)))
        return parts[::-1]


class _Bounds:
    """Lower bounds of what is still to come, by layer l and place.

    ``onward_s[l]`` for a node of layer l that begins there; of a node before it, ``switch_s[l]`` if it hands over at l
    and ``stay_s[l]`` if it goes on.
    """

    def __init__(self, layers: Sequence[Layer], span: Span, costs: Costs) -> None:
        self.onward_s: dict[int, Floats] = {}
        self.switch_s: dict[int, Floats] = {}
        self.stay_s: dict[int, Floats] = {}
        rest_s = costs.leave_s[layers[span.end - 1].active]
        for number in range(span.end - 1, span.start - 1, -1):
            layer = layers[number]
            go_s = rest_s + costs.tau_s[layer.active]
            self.onward_s[number] = onward_s = go_s + costs.fixed_s[layer.active]
            if number > span.start:
                before = len(layer.went)
                self.stay_s[number] = _carried(go_s, layer.went)
                self.switch_s[number] = layer.switch_bound_s(onward_s) if len(onward_s) else np.full(before, np.inf)
                rest_s = np.minimum(self.stay_s[number], self.switch_s[number])


def _promising(bound_s: Floats, ceiling_s: float, beam: int | None) -> Ints:
    """Places of finite bounds up to the ceiling, at most ``beam`` of them, the lowest."""
    places: Ints = np.flatnonzero(bound_s <= min(ceiling_s, FINITE_S))
    if beam is not None and len(places) > beam:
        places = places[np.argpartition(bound_s[places], beam)[:beam]]
    return places


def _carried(values: Floats, places: Ints) -> Floats:
    """``values[places]``, infinite where a place is past the end."""
    carried: Floats = np.append(values, np.inf)[places]
    return carried


def _all_switches(layer: Layer, done_s: Floats) -> Floats:
    """``min_i dp(i) + hop(i, j)`` for all j."""
    assert layer.block_s is not None
    if not len(done_s):
        return np.full(len(layer.active), np.inf)
    arrive_s: Floats = (layer.block_s + done_s[:, None]).min(axis=0)
    return arrive_s
