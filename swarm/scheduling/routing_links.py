"""Hop times between all nodes as arrays, and lower bounds of them by groups of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.scheduling.cluster import MARGIN, Cluster, Node

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.intp]
Bools: TypeAlias = NDArray[np.bool_]

DENSE_NODES = 1024
"""Up to so many nodes all pairs are one matrix (8 MiB), and above only what was measured is kept by pair."""
WORST_S = 1e100
"""No time counts for more, so that sums of what strangers claim stay finite."""
BELOW = 1 - 1e-12
"""A lower bound times this stays below whatever way the true value is rounded."""
LANDMARKS = 8
BANDS = 8
"""A group is the nodes nearest to one of ``LANDMARKS`` nodes that begin in one of ``BANDS`` parts of the model."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Measured hops in order of sender: ``hop_s[k]`` from ``sender[k]`` to ``receiver[k]``."""

    sender: Ints
    receiver: Ints
    hop_s: Floats

    def where(self, chosen: Bools) -> Edges:
        return Edges(self.sender[chosen], self.receiver[chosen], self.hop_s[chosen])


class Links(Protocol):
    """What a hop takes, in seconds: ``rtt/2 + 8·activation_bytes/uplink(sender)``.

    ``group`` [nodes] numbers the groups; no hop of node i into group g is shorter than ``nearest_s[g, i]``, except by
    ``shortcuts``; ``least_s[i]`` is a lower bound for all of its hops.
    """

    @property
    def group(self) -> Ints: ...

    @property
    def nearest_s(self) -> Floats: ...

    @property
    def least_s(self) -> Floats: ...

    @property
    def shortcuts(self) -> Edges | None: ...

    def block(self, senders: Ints, receivers: Ints) -> Floats:
        """[senders, receivers] in seconds, infinite from a node to itself."""
        ...


@dataclass(frozen=True, slots=True)
class DenseLinks:
    """Every pair in one matrix [nodes, nodes]. 8·N² bytes."""

    hop_s: Floats
    group: Ints
    nearest_s: Floats
    least_s: Floats
    shortcuts: Edges | None = None

    def block(self, senders: Ints, receivers: Ints) -> Floats:
        """See ``Links.block``."""
        return self.hop_s[senders[:, None], receivers]


@dataclass(frozen=True, slots=True)
class SparseLinks:
    """Measured pairs one by one, all others by coordinates or by their regions. O(N + measured) memory."""

    unmeasured: Unmeasured
    upload_s: Floats
    first: Ints
    """[nodes + 1]: the measured hops of node i are ``measured[first[i]:first[i + 1]]``."""
    measured: Edges
    pairs: Ints
    """[measured] ascending: sender · nodes + receiver."""
    group: Ints
    nearest_s: Floats
    least_s: Floats
    shortcuts: Edges | None

    def block(self, senders: Ints, receivers: Ints) -> Floats:
        """See ``Links.block``."""
        hop_s = self.unmeasured.rtt_s(senders, receivers) / 2 + self.upload_s[senders, None]
        forward = len(senders) <= len(receivers)
        few, many = (senders, receivers) if forward else (receivers, senders)
        counts = self.first[few + 1] - self.first[few]
        at_few = np.arange(len(few)).repeat(counts)
        edges = np.arange(len(at_few)) + (self.first[few] - counts.cumsum() + counts).repeat(counts)
        others = self.measured.receiver[edges]
        if not forward:  # the same pairs the other way round: a measured pair is there both ways
            edges = self.pairs.searchsorted(others * len(self.upload_s) + few[at_few])
        # Where each other end, and each of the few itself, stands among the many, if it does.
        order = many.argsort()
        wanted = np.concatenate((others, few))
        at_many = order.take(many.searchsorted(wanted, sorter=order), mode="clip")
        here = many[at_many] == wanted
        at_few, at_many = np.concatenate((at_few, np.arange(len(few))))[here], at_many[here]
        values_s = np.concatenate((self.measured.hop_s[edges], np.full(len(few), np.inf)))[here]
        hop_s[(at_few, at_many) if forward else (at_many, at_few)] = values_s
        return hop_s


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """Round trips that nobody measured, as ``Cluster.rtt_between`` has them: by coordinates, else by regions.

    ``region`` [nodes] numbers the regions that ``region_rtt_s`` [regions, regions] knows, the last being all others.
    ``place`` [3, nodes] holds x, y and height, NaN for a node without a coordinate, and ``error`` [nodes] at most 1.
    """

    region: Ints
    region_rtt_s: Floats
    place: Floats
    error: Floats
    nowhere: bool

    @classmethod
    def of(cls, cluster: Cluster, nodes: Sequence[Node]) -> Unmeasured:
        defaults = cluster.defaults
        known = sorted({region for pair in defaults.region_rtt_s for region in pair})
        number = {region: index for index, region in enumerate(known)}
        rtt_s = np.full((len(known) + 1, len(known) + 1), defaults.rtt_s)
        for (a, b), between_s in defaults.region_rtt_s.items():
            rtt_s[number[a], number[b]] = between_s
            if (b, a) not in defaults.region_rtt_s:
                rtt_s[number[b], number[a]] = between_s
        nowhere = (np.nan, np.nan, np.nan, np.nan)
        places = [
            nowhere if (at := node.coordinate) is None else (at.x_s, at.y_s, at.height_s, min(at.error, 1.0))
            for node in nodes
        ]
        table = np.clip(np.array(places, dtype=float).reshape(len(nodes), 4).T, -WORST_S, WORST_S)
        region = np.array([number.get(node.region, len(known)) for node in nodes], dtype=np.intp)
        return cls(region, rtt_s, table[:3], table[3], nowhere=bool(np.isnan(table[3]).all()))

    @property
    def placed(self) -> Bools:
        """[nodes]: who has a coordinate. ``nowhere``: nobody has."""
        return ~np.isnan(self.error)

    def rtt_s(self, senders: Ints, receivers: Ints) -> Floats:
        """[senders, receivers] in seconds."""
        by_region = self.region_rtt_s[self.region[senders, None], self.region[receivers]]
        if self.nowhere:
            return by_region
        x, y, height = self.place[:, senders, None]
        to_x, to_y, to_height = self.place[:, receivers]
        distance = np.sqrt((x - to_x) ** 2 + (y - to_y) ** 2) + height + to_height
        by_place = distance * (MARGIN + np.maximum(self.error[senders, None], self.error[receivers]))
        return np.minimum(np.where(np.isnan(by_place), by_region, by_place), WORST_S)


def measured_rtts(cluster: Cluster, number: dict[str, int]) -> tuple[Ints, Ints, Floats]:
    """Senders, receivers and round trips, in order of sender; a pair measured one way counts both ways.

    Between two that are kept apart it is infinite, whatever was measured.
    """
    senders: list[int] = []
    receivers: list[int] = []
    rtts_s: list[float] = []
    for name, row in cluster.rtt_s.items():
        sender = number.get(name)
        if sender is None:
            continue
        for other, rtt_s in row.items():
            receiver = number.get(other, sender)
            if receiver != sender:
                senders.append(sender)
                receivers.append(receiver)
                rtts_s.append(rtt_s)
    start, end, rtt = (
        np.array(senders, dtype=np.intp),
        np.array(receivers, dtype=np.intp),
        np.array(rtts_s, dtype=float),
    )
    rtt = np.minimum(rtt, WORST_S)
    start, end, rtt = _kept_apart(cluster, number, start, end, rtt)
    pair, back = start * len(number) + end, end * len(number) + start
    lone = ~np.isin(back, pair)
    start, end, rtt = np.r_[start, end[lone]], np.r_[end, start[lone]], np.r_[rtt, rtt[lone]]
    order = np.lexsort((end, start))
    return start[order], end[order], rtt[order]


def _kept_apart(
    cluster: Cluster, number: dict[str, int], start: Ints, end: Ints, rtt: Floats
) -> tuple[Ints, Ints, Floats]:
    """The measured round trips with those between ``cluster.apart`` in place of their own."""
    known = [(number[a], number[b]) for a, b in cluster.apart if a in number and b in number and a != b]
    if not known:
        return start, end, rtt
    one, other = np.array(known, dtype=np.intp).T
    ways = np.r_[one * len(number) + other, other * len(number) + one]
    kept = ~np.isin(start * len(number) + end, ways)
    never_s = np.full(len(ways), np.inf)
    return np.r_[start[kept], one, other], np.r_[end[kept], other, one], np.r_[rtt[kept], never_s]


def links_of(cluster: Cluster, nodes: Sequence[Node], dense_nodes: int = DENSE_NODES) -> Links:
    """The hops between ``nodes``. O(N²) up to ``dense_nodes`` nodes, above that O(N + measured)."""
    unmeasured = Unmeasured.of(cluster, nodes)
    upload_s = np.array([min(cluster.uplink_s(node, cluster.activation_bytes), WORST_S) for node in nodes])
    sender, receiver, rtt_s = measured_rtts(cluster, {node.id: index for index, node in enumerate(nodes)})
    if len(nodes) > dense_nodes:
        return _sparse(unmeasured, upload_s, Edges(sender, receiver, rtt_s / 2 + upload_s[sender]))
    everyone = np.arange(len(nodes))
    rtts_s = unmeasured.rtt_s(everyone, everyone)
    rtts_s[sender, receiver] = rtt_s
    np.fill_diagonal(rtts_s, 0.0)
    starts = np.array([0 if node.span is None else node.span.start for node in nodes], dtype=np.intp)
    ends = np.array([0 if node.span is None else node.span.end for node in nodes], dtype=np.intp)
    group = _near_landmarks(rtts_s) * BANDS + starts * BANDS // max(cluster.layers, 1)
    hop_s = rtts_s / 2 + upload_s[:, None]
    np.fill_diagonal(hop_s, np.inf)
    follows = (starts <= ends[:, None]) & (ends > starts[:, None] + 1)
    nearest_s = np.full((LANDMARKS * BANDS, len(nodes)), np.inf)
    for number in np.unique(group):
        members = group == number
        nearest_s[number] = np.where(follows[:, members], hop_s[:, members], np.inf).min(axis=1)
    return DenseLinks(hop_s, group, nearest_s, nearest_s.min(axis=0))


def _near_landmarks(rtts_s: Floats) -> Ints:
    """[nodes]: the nearest of ``LANDMARKS`` nodes that are each as far as can be from those before it."""
    if not len(rtts_s):
        return np.zeros(0, np.intp)
    chosen = [0]
    for _ in range(min(LANDMARKS, len(rtts_s)) - 1):
        chosen.append(int(np.argmax(rtts_s[chosen].min(axis=0))))
    nearest: Ints = np.argmin(rtts_s[chosen], axis=0)
    return nearest


def _sparse(unmeasured: Unmeasured, upload_s: Floats, measured: Edges) -> SparseLinks:
    count = len(upload_s)
    first = np.searchsorted(measured.sender, np.arange(count + 1))
    group, nearest_s = _groups(unmeasured)
    nearest_s = nearest_s / 2 + upload_s
    least_s = nearest_s.min(axis=0)
    np.minimum.at(least_s, measured.sender, measured.hop_s)
    shorter: Bools = measured.hop_s < nearest_s[group[measured.receiver], measured.sender] * BELOW
    pairs = measured.sender * count + measured.receiver
    return SparseLinks(
        unmeasured,
        upload_s,
        first,
        measured,
        pairs,
        group,
        nearest_s,
        least_s,
        measured.where(shorter) if shorter.any() else None,
    )


def _groups(unmeasured: Unmeasured) -> tuple[Ints, Floats]:
    """Groups by region, and by place for those who have one; with lower bounds [groups, nodes] of the round trip."""
    placed, region_rtt_s = unmeasured.placed, unmeasured.region_rtt_s
    regions = len(region_rtt_s)
    group = unmeasured.region.copy()
    by_region = region_rtt_s[unmeasured.region].T
    if not placed.any():
        return group, by_region
    (x, y, height), error = unmeasured.place, unmeasured.error
    members = np.flatnonzero(placed)
    apart_s = np.hypot(x[members, None] - x[members[:1]], y[members, None] - y[members[:1]])
    chosen = [0]
    for _ in range(LANDMARKS - 1):
        chosen.append(int(np.argmax(apart_s.min(axis=1))))
        at = members[chosen[-1]]
        apart_s = np.c_[apart_s, np.hypot(x[members] - x[at], y[members] - y[at])]
    cell = np.argmin(apart_s, axis=1)
    group[members] = regions + cell
    bounds = [by_region]
    for number, at in enumerate(members[chosen]):
        inside = cell == number
        if not inside.any():
            bounds.append(np.full((1, len(x)), np.inf))
            continue
        reach_s = np.hypot(x - x[at], y - y[at]) - apart_s[inside, number].max()
        by_place = (np.maximum(reach_s, 0.0) + height + height[members[inside]].min()) * (MARGIN + error) * BELOW
        others = region_rtt_s[unmeasured.region][:, np.unique(unmeasured.region[members[inside]])].min(axis=1)
        bounds.append(np.where(placed, by_place, others)[None])
    return group, np.concatenate(bounds)
