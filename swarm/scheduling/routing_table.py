"""One view of a swarm, ready to route many sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.reasons import explain
from swarm.scheduling.routing_arrays import Arrays
from swarm.scheduling.routing_choice import Chooser
from swarm.scheduling.routing_through import route_through
from swarm.scheduling.routing_types import Route, RouteNeeds, RouteOptions, Stage, Standby
from swarm.scheduling.standby import hops_s, replacement, standbys, standbys_of


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """A cluster's nodes and links in arrays. Immutable; a new view needs a new table.

    Up to ``DENSE_NODES`` nodes it holds all hops as a matrix (O(N²)), above that the measured ones and what stands for
    the rest (O(N + measured)); besides O(L·N) for who holds which layer. Building it takes longer than one route.
    """

    arrays: Arrays

    @classmethod
    def of(cls, cluster: Cluster) -> RoutingTable:
        """The table of ``cluster``; raises ``ConfigError`` if it has no layers."""
        return cls(Arrays.of(cluster))

    def route(self, needs: RouteNeeds, salt: int = 0, options: RouteOptions | None = None) -> Route:
        """The fastest chain that meets ``needs``, or a less used one as ``options`` allow. See ``find_route``.

        With ``needs.through`` it is ``routing_through.route_through``, which knows no options.
        """
        options = options or RouteOptions()
        arrays = self.arrays
        if needs.through is not None:
            return route_through(arrays, needs.through, needs, salt)
        chooser = Chooser(arrays, needs, salt, options)
        choice = chooser.choose()
        if choice is None and chooser.shortest:
            raise NoRouteError(
                f"the shortest chain has {chooser.shortest} servers, over {MAX_STAGES}",
                hint="let servers hold longer spans",
            )
        if choice is None:
            raise explain(arrays.verdicts(needs), arrays.cluster.layers, remote_head=needs.head == "remote")
        parts = choice.parts
        stages = tuple(Stage(PeerId(arrays.nodes[index].id), span) for index, span in parts)
        spares = standbys(arrays, parts, choice.group, needs, choice.costs) if options.standbys else ()
        return Route(
            stages,
            choice.latency_s,
            exact=len({arrays.kind[index] for index, _ in parts}) == 1,
            standbys=spares or (None,) * len(stages),
        )

    def standbys(self, chain: Sequence[Stage], needs: RouteNeeds, salt: int = 0) -> tuple[Standby | None, ...]:
        """Who would stand in for each stage of a chain that runs already. See ``standby.standbys_of``."""
        return standbys_of(self.arrays, chain, needs, salt)

    def replacement(self, chain: Sequence[Stage], places: range, needs: RouteNeeds, salt: int = 0) -> Standby:
        """Who takes over ``places`` of a chain that runs already. See ``standby.replacement``."""
        return replacement(self.arrays, chain, places, needs, salt)

    def hops_s(self, chain: Sequence[Stage], place: int, by: Sequence[Stage], needs: RouteNeeds) -> float:
        """Seconds that the stages ``by`` pay for the hops around ``place`` of a chain. See ``standby.hops_s``."""
        return hops_s(self.arrays, chain, place, by, needs)
