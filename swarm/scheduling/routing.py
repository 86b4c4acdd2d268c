"""Phase 2: from the view of a swarm to the fastest chain of servers that tiles the model (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from swarm.core.errors import ConfigError
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.routing_table import RoutingTable
from swarm.scheduling.routing_types import Route, RouteNeeds, Stage, Standby

__all__ = ["Route", "RouteNeeds", "RoutingTable", "Stage", "Standby", "find_route", "price"]


def find_route(cluster: Cluster, *, needs: RouteNeeds, salt: int = 0) -> Route:
    """``RoutingTable.of(cluster).route(needs, salt)``: for one session on one view."""
    return RoutingTable.of(cluster).route(needs, salt)


def price(cluster: Cluster, stages: Sequence[Stage], needs: RouteNeeds) -> float:
    """Seconds of one decode step over the given chain: the objective of DESIGN 7, straight from the cluster. O(p).

    Entry ``client_rtt/2`` (and the client's sending, if its uplink is known), each stage ``fixed_s + n·tau_s``, each
    hop ``rtt/2 + 8·activation_bytes/uplink(sender)``, exit ``8·exit_bytes/uplink(last) + client_rtt/2``. Nothing is
    checked but that there is a stage and every peer is in the cluster (``ConfigError``).
    """
    nodes = {node.id: node for node in cluster.nodes}
    if not stages or any(stage.peer not in nodes for stage in stages):
        raise ConfigError("a chain needs servers, all of them in the cluster")
    chain = [nodes[stage.peer] for stage in stages]
    entry_bytes = cluster.activation_bytes if needs.entry_bytes is None else needs.entry_bytes
    exit_bytes = cluster.activation_bytes if needs.exit_bytes is None else needs.exit_bytes
    total_s = cluster.client_rtt(chain[0]) / 2 + cluster.client_rtt(chain[-1]) / 2
    if cluster.client_uplink_mbps is not None:
        total_s += 8.0 * entry_bytes / (cluster.client_uplink_mbps * 1e6)
    for node, stage in zip(chain, stages, strict=True):
        total_s += node.fixed_s + len(stage.span) * node.tau_s
    for sender, receiver in pairwise(chain):
        total_s += cluster.rtt_between(sender, receiver) / 2 + cluster.uplink_s(sender, cluster.activation_bytes)
    return total_s + cluster.uplink_s(chain[-1], exit_bytes)
