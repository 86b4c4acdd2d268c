"""The plain way, for comparison: one pipeline after another, the largest servers first."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.scheduling.allocation.assembly import assemble
from swarm.scheduling.allocation.plan import Plan, Score
from swarm.scheduling.allocation.territories import room, territories
from swarm.scheduling.cluster import Cluster, Node


def greedy(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """Fill pipelines one by one with the largest servers left, as many as will fit.

    Each but the last server of a pipeline is taken largest first, the last is the smallest that completes it. It always
    finds a pipeline where the capacities allow one, and wastes layers where others fit them together; the score is
    reported and chooses nothing. O(n²) at worst, in practice O(n log n).
    """
    grounds = territories(cluster)
    groups = [group for nodes in grounds for group in _fill(nodes, cluster.layers)]
    possible = sum(room(nodes) // cluster.layers for nodes in grounds)
    gap = "" if len(groups) == possible else f"{len(groups)} of at most {possible} pipelines"
    return assemble(cluster, grounds, groups, score, gap)


def _fill(nodes: Sequence[Node], layers: int) -> list[list[Node]]:
    left, groups = list(nodes), []
    while room(left) >= layers:
        group, missing = [], layers
        while missing > 0:
            enough = [index for index, node in enumerate(left) if node.capacity_layers >= missing]
            node = left.pop(enough[-1] if enough else 0)
            group.append(node)
            missing -= node.capacity_layers
        groups.append(group)
    return groups
