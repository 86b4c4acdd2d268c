"""Phase 2: from the view of a swarm to the fastest chain of servers that tiles the model (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.errors import ConfigError
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.routing_price import chain_s
from swarm.scheduling.routing_table import RoutingTable
from swarm.scheduling.routing_types import Route, RouteNeeds, RouteOptions, Stage, Standby

__all__ = ["Route", "RouteNeeds", "RouteOptions", "RoutingTable", "Stage", "Standby", "find_route", "price"]


def find_route(cluster: Cluster, *, needs: RouteNeeds, salt: int = 0, options: RouteOptions | None = None) -> Route:
    """The chain of servers a session should take, and a standby for each of its stages.

    Objective: ``price``, at present load. Spans are used in part, entered and left at any layer, and a server may serve
    two stages. A server takes part if it is online, reachable, live, has KV room and is not excluded; all of one
    numerics class unless ``needs`` says any; with a remote head the first holds the embeddings, the last the LM head.

    The optimum, by dynamic programming (``Search``), if no server has sessions. Sessions make it give way (options):
    among chains within ``near`` of the best the one whose busiest server has the fewest sessions wins, exactly; and one
    at its knee (``knee``) gives way to the best without its full servers, repeatedly and so not always optimally. Where
    a chain needs more than ``MAX_STAGES`` servers to be the fastest, a shorter one is taken, not always the best such.

    Ties: of numerics classes the one of higher precision, then the fewest stages, then a lot drawn from ``salt`` and
    the peer ids: one salt gives one answer whatever the order of ``cluster.nodes``, and different salts spread.

    Raises ``NoRouteError`` that names the layers, or the constraint that took their servers away; ``ConfigError`` for a
    model without layers. For many sessions on one view build the ``RoutingTable`` once; most time goes there, O(N²) up
    to 1024 nodes.
    """
    return RoutingTable.of(cluster).route(needs, salt, options)


def price(cluster: Cluster, stages: Sequence[Stage], needs: RouteNeeds) -> float:
    """Seconds of one decode step over the given chain: the objective of DESIGN 7, straight from the cluster. O(p).

    Entry ``client_rtt/2`` (and the client's sending, if its uplink is known), each stage ``fixed_s + n·tau_s``, each
    hop ``rtt/2 + 8·activation_bytes/uplink(sender)``, exit ``8·exit_bytes/uplink(last) + client_rtt/2``. Nothing is
    checked but that there is a stage and every peer is in the cluster (``ConfigError``).
    """
    nodes = {node.id: node for node in cluster.nodes}
    if not stages or any(stage.peer not in nodes for stage in stages):
        raise ConfigError("a chain needs servers, all of them in the cluster")
    return chain_s(cluster, [(nodes[stage.peer], len(stage.span)) for stage in stages], needs)
