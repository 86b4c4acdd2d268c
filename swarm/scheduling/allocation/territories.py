"""Where pipelines may lie: regions as given, or clusters of network coordinates."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from swarm.core.announcement import State
from swarm.scheduling.allocation.plan import by_size
from swarm.scheduling.cluster import Cluster, Node

GAP_S = 0.02
"""Servers whose coordinates are closer than this are in one cluster, and so are their neighbours'."""


def usable_nodes(cluster: Cluster) -> list[Node]:
    """Whoever can take layers, largest first: some capacity, and neither draining nor offline."""
    leaving = (State.DRAINING, State.OFFLINE)
    return by_size([node for node in cluster.nodes if node.capacity_layers > 0 and node.state not in leaving])


def territories(cluster: Cluster) -> list[list[Node]]:
    """The usable servers, grouped so that no pipeline needs to leave its group; each largest first.

    A territory is a region; where no server names one, a cluster of coordinates. If none of them can hold the model,
    all servers are one territory. In a fixed order, whatever the nodes'. O(n log n).
    """
    nodes = usable_nodes(cluster)
    regions = by_region(nodes)
    if any(room(region) >= cluster.layers for region in regions):
        return regions
    return [nodes] if nodes else []


def by_region(nodes: Sequence[Node]) -> list[list[Node]]:
    """Servers by region, by the regions' names; by coordinates if no server names a region."""
    if not any(node.region for node in nodes):
        return _by_coordinates(nodes)
    regions: dict[str, list[Node]] = {}
    for node in nodes:
        regions.setdefault(node.region, []).append(node)
    return [regions[name] for name in sorted(regions)]


def room(nodes: Sequence[Node]) -> int:
    """Layers that these servers could hold together."""
    return sum(node.capacity_layers for node in nodes)


def _by_coordinates(nodes: Sequence[Node]) -> list[list[Node]]:
    """Clusters of the plane, in the order of each one's first node: squares of ``GAP_S`` that touch one another.

    So servers closer than ``GAP_S`` share a cluster, and a cluster ends where nobody is for three times as long.
    Heights are left out: a server's own slow line is as slow in every pipeline. A server without a coordinate goes to
    the cluster with the most room. O(n).
    """
    squares: dict[tuple[int, int], list[Node]] = {}
    for node in nodes:
        if node.coordinate is not None:
            square = (math.floor(node.coordinate.x_s / GAP_S), math.floor(node.coordinate.y_s / GAP_S))
            squares.setdefault(square, []).append(node)
    clusters = []
    while squares:
        edge = [next(iter(squares))]
        members = squares.pop(edge[0])
        while edge:
            x, y = edge.pop()
            for square in itertools.product((x - 1, x, x + 1), (y - 1, y, y + 1)):
                if square in squares:
                    members += squares.pop(square)
                    edge.append(square)
        clusters.append(by_size(members))
    unplaced = [node for node in nodes if node.coordinate is None]
    if not clusters:
        return [unplaced] if unplaced else []
    widest = max(range(len(clusters)), key=lambda index: (room(clusters[index]), -index))
    clusters[widest] = by_size([*clusters[widest], *unplaced])
    return clusters
