"""Where pipelines may lie: regions as given, or clusters of network coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.core.announcement import State
from swarm.scheduling.allocation.plan import by_size
from swarm.scheduling.cluster import Cluster, Node

GAP_S = 0.02
"""Two servers whose coordinates are closer than this are in one cluster, and so are their neighbours'."""


def usable_nodes(cluster: Cluster) -> list[Node]:
    """Whoever can take layers, largest first: some capacity, and neither draining nor offline."""
    leaving = (State.DRAINING, State.OFFLINE)
    return by_size([node for node in cluster.nodes if node.capacity_layers > 0 and node.state not in leaving])


def territories(cluster: Cluster) -> list[list[Node]]:
    """The usable servers, grouped so that no pipeline needs to leave its group; each largest first.

    A territory is a region; where no server names one, a cluster of coordinates. If none of them can hold the model,
    all servers are one territory. In a fixed order, whatever the nodes'. O(n log n), O(n²) for coordinates.
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
    """Single linkage over the plane with ``GAP_S``, in the order of each cluster's first node.

    Heights are left out: a server's own slow line is as slow in every pipeline. A server without a coordinate goes to
    the cluster with the most room.
    """
    placed = [node for node in nodes if node.coordinate is not None]
    if not placed:
        return [list(nodes)] if nodes else []
    plane = np.array([(node.coordinate.x_s, node.coordinate.y_s) for node in placed if node.coordinate is not None])
    near = np.hypot(*(plane[:, None, axis] - plane[None, :, axis] for axis in (0, 1))) < GAP_S
    label = np.full(len(placed), -1)
    clusters = 0
    for seed in range(len(placed)):
        if label[seed] >= 0:
            continue
        frontier = np.zeros(len(placed), dtype=bool)
        frontier[seed] = True
        while frontier.any():
            label[frontier] = clusters
            frontier = near[frontier].any(axis=0) & (label < 0)
        clusters += 1
    groups: list[list[Node]] = [[] for _ in range(clusters)]
    for node, index in zip(placed, label.tolist(), strict=True):
        groups[index].append(node)
    unplaced = [node for node in nodes if node.coordinate is None]
    widest = max(range(clusters), key=lambda index: (room(groups[index]), -index))
    groups[widest] = by_size([*groups[widest], *unplaced])
    return groups
