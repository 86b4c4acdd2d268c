"""Who holds each layer, and how the holders of neighbouring layers connect: what a search needs, laid out once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from swarm.scheduling.routing_links import Bools, Edges, Floats, Ints, Links

BLOCK_CELLS = 1_000_000
"""Up to so many pairs over all layers (8 MiB; some 340 nodes) every layer keeps its own part of the hop matrix."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. ``active`` [n] are the nodes that hold it, in order of group; "before" [m] those of the layer before.

    ``came`` [n] is each one's place before, m if it had none; ``went`` [m] where each of those is now, n if nowhere.
    ``group_at`` are the places where a group begins, ``group_size`` how many it has;
    ``nearest_s`` [groups here, m] the bounds of ``Links``. ``flat`` is where its nodes stand in ``Layout.active``.
    ``shortcuts`` are places (before, now), ``shortcut_at`` where a sender begins. ``block_s`` [m, n]: all hops.
    """

    flat: slice
    active: Ints
    came: Ints
    went: Ints
    group_at: Ints
    group_size: Ints
    nearest_s: Floats | None
    shortcuts: Edges | None
    shortcut_at: Ints
    block_s: Floats | None

    def switch_bound_s(self, onward_s: Floats) -> Floats:
        """[m]: no less than this takes leaving each node before for one that needs ``onward_s`` [n] from its start."""
        assert self.nearest_s is not None, "laid out in blocks"
        bound_s: Floats = (self.nearest_s + np.minimum.reduceat(onward_s, self.group_at)[:, None]).min(axis=0)
        if (short := self.shortcuts) is not None:
            each_s = np.minimum.reduceat(short.hop_s + onward_s[short.receiver], self.shortcut_at)
            senders = short.sender[self.shortcut_at]
            bound_s[senders] = np.minimum(bound_s[senders], each_s)
        return bound_s

    def arrival_bound_s(self, senders: Ints, from_s: Floats, least_s: Floats) -> Floats | float:
        """No node of this layer is reached before: one figure, or [n].

        ``from_s`` is when each of ``senders`` (places before) is done, ``least_s`` the least its hops take.
        """
        if self.nearest_s is None or self.shortcuts is not None:
            return float((from_s + least_s).min())
        by_group: Floats = (self.nearest_s[:, senders] + from_s).min(axis=1)
        return by_group.repeat(self.group_size)


@dataclass(frozen=True, slots=True)
class Layout:
    """All layers, and the nodes of all of them one after another."""

    layers: tuple[Layer, ...]
    active: Ints


def lay_out(starts: Ints, ends: Ints, layers: int, links: Links, block_cells: int = BLOCK_CELLS) -> Layout:
    """The layers of nodes that hold ``[starts, ends)``. O(L·(N + measured)), or O(Σ holders²) in blocks."""
    count = len(starts)
    by_group = np.argsort(links.group, kind="stable")
    held = [by_group[(starts[by_group] <= layer) & (layer < ends[by_group])] for layer in range(layers)]
    cells = sum(len(a) * len(b) for a, b in pairwise(held))
    found: list[Layer] = []
    reached = 0
    before: Ints = np.zeros(0, np.intp)
    here = np.full(count, -1, np.intp)
    for active in held:
        was, here = here, np.full(count, -1, np.intp)
        here[active] = np.arange(len(active))
        came, went = was[active], here[before]
        came[came < 0], went[went < 0] = len(before), len(active)
        groups = links.group[active]
        at = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]]) if len(active) else np.zeros(0, np.intp)
        nearest_s = block_s = shortcuts = None
        shortcut_at = np.zeros(0, np.intp)
        if cells <= block_cells:
            block_s = links.block(before, active)
        else:
            nearest_s = np.ascontiguousarray(links.nearest_s[groups[at]][:, before])
            shortcuts, shortcut_at = _shortcuts(links.shortcuts, was, here)
        flat, size = slice(reached, reached + len(active)), np.diff(at, append=len(active))
        found.append(Layer(flat, active, came, went, at, size, nearest_s, shortcuts, shortcut_at, block_s))
        before, reached = active, flat.stop
    return Layout(tuple(found), np.concatenate(held))


def _shortcuts(edges: Edges | None, was: Ints, here: Ints) -> tuple[Edges | None, Ints]:
    """The measured hops from a node of the layer before to one of this, by place, and where each sender begins."""
    if edges is None:
        return None, np.zeros(0, np.intp)
    present: Bools = (was[edges.sender] >= 0) & (here[edges.receiver] >= 0)
    if not present.any():
        return None, np.zeros(0, np.intp)
    chosen = edges.where(present)
    at = np.flatnonzero(np.r_[True, chosen.sender[1:] != chosen.sender[:-1]])
    return Edges(was[chosen.sender], here[chosen.receiver], chosen.hop_s), at
