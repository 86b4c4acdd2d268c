"""What a chain costs: the objective of DESIGN 7, straight from the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.routing_types import RouteNeeds

Chain: TypeAlias = Sequence[tuple[Node, int]]
"""Servers in order, each with the number of layers it computes."""


def present_step_s(node: Node, layers: int) -> float:
    """A decode step over ``layers`` layers at the node's present load."""
    return node.fixed_s + layers * node.tau_s


def chain_s(
    cluster: Cluster, chain: Chain, needs: RouteNeeds, step_s: Callable[[Node, int], float] = present_step_s
) -> float:
    """Seconds of one decode step from the client through ``chain`` and back, stages as ``step_s`` has them. O(p)."""
    return entry_s(cluster, chain[0][0], needs) + inner_s(cluster, chain, step_s) + exit_s(cluster, chain[-1][0], needs)


def inner_s(cluster: Cluster, chain: Chain, step_s: Callable[[Node, int], float] = present_step_s) -> float:
    """The stages and the hops between them."""
    hops_s = sum(hop_s(cluster, sender, receiver) for (sender, _), (receiver, _) in pairwise(chain))
    return sum(step_s(node, layers) for node, layers in chain) + hops_s


def hop_s(cluster: Cluster, sender: Node, receiver: Node) -> float:
    """``rtt/2 + 8·activation_bytes/uplink(sender)``."""
    return cluster.rtt_between(sender, receiver) / 2 + cluster.uplink_s(sender, cluster.activation_bytes)


def upload_s(cluster: Cluster, needs: RouteNeeds) -> float:
    """What the client's own sending takes, 0 if its uplink is not given."""
    if cluster.client_uplink_mbps is None:
        return 0.0
    entry_bytes = cluster.activation_bytes if needs.entry_bytes is None else needs.entry_bytes
    return 8.0 * entry_bytes / (cluster.client_uplink_mbps * 1e6)


def entry_s(cluster: Cluster, node: Node, needs: RouteNeeds) -> float:
    """From the client to the first server."""
    return cluster.client_rtt(node) / 2 + upload_s(cluster, needs)


def exit_s(cluster: Cluster, node: Node, needs: RouteNeeds) -> float:
    """From the last server to the client."""
    exit_bytes = cluster.activation_bytes if needs.exit_bytes is None else needs.exit_bytes
    return cluster.uplink_s(node, exit_bytes) + cluster.client_rtt(node) / 2
