"""Allocation by maximum flow: spans such that as many tokens per second as possible pass through the layer graph."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise

from swarm.core.spans import Span
from swarm.scheduling.allocation.assembly import finish
from swarm.scheduling.allocation.flow import Edge, Flow, maximum_flow, unit_paths
from swarm.scheduling.allocation.plan import Plan, Score, Share
from swarm.scheduling.allocation.replicas import replicate
from swarm.scheduling.allocation.territories import room, territories
from swarm.scheduling.allocation.waterfill import water_fill
from swarm.scheduling.cluster import Cluster, Node

MICRO = 1_000_000
"""Flows are whole numbers of tokens per 10^6 seconds, so that every comparison is exact."""

MOVES = 400
"""Local moves tried in one territory at most."""

UNEVEN = 400
"""Two or three stages are tried with every cut where that is at most so many cuts times nodes."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """Spans by node and the flow through them. ``rank`` orders placements, the better the larger."""

    spans: Mapping[str, Edge]
    flow: Flow

    @property
    def rank(self) -> tuple[int, int]:
        return self.flow.value, -len(set(self.spans.values()))


class _Territory:
    """Nodes that may stand in one pipeline, largest first, and what each can pass at a given span."""

    def __init__(self, cluster: Cluster, nodes: Sequence[Node]) -> None:
        self.layers = cluster.layers
        self.nodes = {node.id: node for node in nodes}
        self._send_s = {node.id: cluster.uplink_s(node, cluster.activation_bytes) for node in nodes}
        self._rates: dict[tuple[str, int], int] = {}

    def rate(self, node: str, layers: int) -> int:
        """Micro-tokens per second of ``node`` with ``layers`` layers: what it computes, at most what it can send."""
        known = self._rates.get((node, layers))
        if known is None:
            step_s = max(layers / max(self.nodes[node].power, 1e-9), self._send_s[node])
            known = self._rates[node, layers] = max(1, int(MICRO / step_s))
        return known

    def place(self, spans: Mapping[str, Edge]) -> _Placed:
        """The flow through these spans."""
        capacities: dict[Edge, int] = {}
        for node, (start, end) in spans.items():
            capacities[start, end] = capacities.get((start, end), 0) + self.rate(node, end - start)
        return _Placed(spans, maximum_flow(capacities, 0, self.layers))

    @property
    def bound(self) -> int:
        """No placement passes more: a token costs ``layers`` layers of somebody's power."""
        return int(MICRO * sum(node.power for node in self.nodes.values()) / self.layers)


def max_flow(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """Spans with a large maximum flow of tokens per second, pipelines by its decomposition, the rest replicas.

    The graph: vertices are the layer boundaries 0 to L; a node that holds [a, b) is an edge from a to b that passes
    ``min(F / (b - a), uplink / 8B)`` tokens per second. Nodes with the same span share their load, and a session may go
    through any of them. Regions never share a pipeline unless none can hold the model alone, so their flows add up.
    This is the objective of Helix (Mei et al. 2024), with links limited by the sender only and spans used whole.

    The search: for every number of stages, equal stages filled with the strongest node to the weakest stage, and the
    nodes too small for any stage chained up; in small swarms two and three unequal stages too; besides, one
    water-filled pipeline over all. The best two are improved by local moves for as long as the flow grows: a boundary
    by a layer, or a node to a span across the minimum cut. Deterministic; ties to fewer distinct spans. A pipeline is
    found whenever the capacity allows one.

    A heuristic: ``gap`` prints its flow and the bound sum(F) / L. It maximises what many sessions get together and so
    prefers short spans and long chains; one session alone is faster over few stages. O(S·N·log N) for S numbers of
    stages, and at most ``MOVES`` flows of O(V²·E) over the boundaries in use.
    """
    grounds = territories(cluster)
    pipelines: list[tuple[Share, ...]] = []
    replicas: list[Share] = []
    passed = bound = 0
    for members in grounds:
        if room(members) < cluster.layers:
            continue
        territory = _Territory(cluster, members)
        best = _search(territory)
        chains, rest = _decompose(territory, best)
        pipelines += chains
        replicas += rest
        passed += best.flow.value
        bound += territory.bound
    placed = [*replicas, *(share for pipeline in pipelines for share in pipeline)]
    replicas += replicate(cluster.layers, grounds, {share.id: share.span for share in placed})
    gap = f"passes {passed / MICRO:.4g} of at most {bound / MICRO:.4g} tokens/s" if pipelines and passed < bound else ""
    return finish(cluster, grounds, pipelines, replicas, score, gap)


def plan_flow(plan: Plan, cluster: Cluster) -> float:
    """Tokens per second that any plan's spans pass, replicas included, by the graph of ``max_flow``."""
    territory = _Territory(cluster, cluster.nodes)
    return territory.place({share.id: (share.span.start, share.span.end) for share in plan.shares}).flow.value / MICRO


def _search(territory: _Territory) -> _Placed:
    starts = [territory.place(spans) for spans in _starts(territory)]
    starts.sort(key=lambda placed: placed.rank, reverse=True)
    return max((_improve(territory, placed) for placed in starts[:2]), key=lambda placed: placed.rank)


def _starts(territory: _Territory) -> Iterable[dict[str, Edge]]:
    layers, nodes = territory.layers, territory.nodes
    yield _chain(territory, list(nodes))
    largest = max(node.capacity_layers for node in nodes.values())
    for stages in range(-(-layers // largest), min(layers, len(nodes)) + 1):
        yield from _filled(territory, [layers * index // stages for index in range(1, stages)])
    uneven = [stages - 1 for stages in (2, 3) if math.comb(layers - 1, stages - 1) * len(nodes) <= UNEVEN]
    for cuts in chain.from_iterable(combinations(range(1, layers), count) for count in uneven):
        yield from _filled(territory, cuts)


def _chain(territory: _Territory, members: Sequence[str]) -> dict[str, Edge]:
    """One water-filled pipeline over ``members``; empty if they cannot hold the model."""
    nodes = [territory.nodes[node] for node in members]
    capacities = [node.capacity_layers for node in nodes]
    if sum(capacities) < territory.layers:
        return {}
    spans, start = {}, 0
    for node, count in zip(members, water_fill(capacities, [n.power for n in nodes], territory.layers), strict=True):
        if count:
            spans[node] = (start, start + count)
        start += count
    return spans


def _filled(territory: _Territory, cuts: Sequence[int]) -> Iterable[dict[str, Edge]]:
    """Stages between ``cuts``, the strongest node first to the stage that passes least of those it can hold.

    Whoever fits nowhere is chained up with its like. Nothing if a stage stays empty.
    """
    passing = [(0, edge) for edge in pairwise([0, *cuts, territory.layers])]
    spans: dict[str, Edge] = {}
    for node in sorted(territory.nodes.values(), key=lambda node: (-node.power, -node.capacity_layers, node.id)):
        too_long = []
        while passing and (edge := passing[0][1])[1] - edge[0] > node.capacity_layers:
            too_long.append(heapq.heappop(passing))
        if passing:
            passed, edge = passing[0]
            spans[node.id] = edge
            heapq.heapreplace(passing, (passed + territory.rate(node.id, edge[1] - edge[0]), edge))
        for entry in too_long:
            heapq.heappush(passing, entry)
    if all(passed for passed, _ in passing):
        yield spans | _chain(territory, [node for node in territory.nodes if node not in spans])


def _improve(territory: _Territory, placed: _Placed) -> _Placed:
    """Climb by the first local move that raises the flow, until none does or ``MOVES`` were tried."""
    tried = 0
    climbing = True
    while climbing:
        climbing = False
        for spans in _moves(territory, placed):
            tried += 1
            if tried > MOVES:
                return placed
            moved = territory.place(spans)
            if moved.flow.value > placed.flow.value:
                placed, climbing = moved, True
                break
    return placed


def _moves(territory: _Territory, placed: _Placed) -> Iterable[dict[str, Edge]]:
    """Boundaries shifted by a layer, then nodes that the minimum cut does not need put across it."""
    spans = placed.spans
    for cut in sorted({end for _, end in spans.values()} - {territory.layers}):
        for step in (-1, 1):
            shifted = {
                node: (start + step * (start == cut), end + step * (end == cut)) for node, (start, end) in spans.items()
            }
            if all(0 < end - start <= territory.nodes[node].capacity_layers for node, (start, end) in shifted.items()):
                yield shifted
    narrow = sorted({edge for edge in spans.values() if placed.flow.crosses(edge)})
    for node, held in territory.nodes.items():
        present = spans.get(node)
        if present is not None and placed.flow.crosses(present):
            continue
        for start, end in narrow:
            if end - start <= held.capacity_layers:
                yield {**spans, node: (start, end)}


def _decompose(territory: _Territory, placed: _Placed) -> tuple[list[tuple[Share, ...]], list[Share]]:
    """Disjoint pipelines, as many as the spans allow, the strongest nodes together; the other holders are replicas."""
    holders: dict[Edge, list[str]] = {}
    for node in sorted(placed.spans, key=lambda node: (-territory.nodes[node].power, node)):
        holders.setdefault(placed.spans[node], []).append(node)
    pipelines = []
    for path in unit_paths(Counter(placed.spans.values()), 0, territory.layers):
        pipelines.append(tuple(Share(holders[edge].pop(0), Span(*edge)) for edge in path))
    rest = [Share(node, Span(*edge)) for edge in sorted(holders) for node in holders[edge]]
    return pipelines, rest
