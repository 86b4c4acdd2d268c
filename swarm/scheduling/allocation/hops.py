"""The order of stages inside a pipeline: neighbours in the network stand next to one another."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.scheduling.cluster import Cluster, Node

STARTS = 8


def short_path(cluster: Cluster, nodes: Sequence[Node]) -> list[Node]:
    """``nodes`` in an order with a small sum of round trips between neighbours; as given where all are as far.

    Nearest neighbour from each of the first ``STARTS`` nodes, the shortest kept, ties to the earlier start. Optimal up
    to three nodes, a heuristic above; every stage sends one hidden state on, so uplinks do not depend on the order.
    O(n²) round trips, O(STARTS * n²) steps.
    """
    count = len(nodes)
    if count < 3 or not (cluster.rtt_s or cluster.defaults.region_rtt_s or any(node.coordinate for node in nodes)):
        return list(nodes)
    rtt = [[cluster.rtt_between(a, b) for b in nodes] for a in nodes]
    best: list[int] = []
    best_s = float("inf")
    for start in range(min(STARTS, count)):
        path, length_s = [start], 0.0
        rest = [index for index in range(count) if index != start]
        while rest:
            here = rtt[path[-1]]
            nearest = min(rest, key=here.__getitem__)
            length_s += here[nearest]
            path.append(nearest)
            rest.remove(nearest)
        if length_s < best_s:
            best, best_s = path, length_s
    return [nodes[index] for index in best]
