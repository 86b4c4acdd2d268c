"""One moment's view, laid out once for all sessions of a client: who could take over what of their chains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from swarm.client.finding.choice import View
from swarm.client.finding.loads import with_all_room
from swarm.client.plan import StagePlan
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.scheduling.handover import limit_s
from swarm.scheduling.routing import RouteNeeds, RoutingTable, Stage


@dataclass(frozen=True, slots=True)
class Spare:
    """Who stands by for one stage, and how long the stage's own step may take before the spare is preferred."""

    stages: tuple[StagePlan, ...]
    limit_s: float

    @property
    def peers(self) -> frozenset[PeerId]:
        return frozenset(stage.peer for stage in self.stages)


class Outlook:
    """A view with its routing tables, which take longer to build than to ask: one per width of rows."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._tables: dict[tuple[str | None, bool], RoutingTable] = {}

    def spares(self, chain: Sequence[Stage], needs: RouteNeeds, salt: int = 0) -> tuple[Spare | None, ...]:
        """For every stage the best sub-chain of servers that serve none of ``chain``, None where there is none.

        ``needs`` names the chain's numerics class, or allows any. Takes as long as a route; safe in another thread.
        """
        table = self._table(needs)
        found: list[Spare | None] = []
        for place, standby in enumerate(table.standbys(chain, needs, salt)):
            if standby is None:
                found.append(None)
                continue
            theirs_s = table.hops_s(chain, place, standby.stages, needs)
            own_s = table.hops_s(chain, place, chain[place : place + 1], needs)
            found.append(Spare(self.view.plans(standby.stages), limit_s(standby.latency_s, theirs_s, own_s)))
        return tuple(found)

    def replacement(
        self, chain: Sequence[Stage], places: range, needs: RouteNeeds, salt: int = 0
    ) -> tuple[StagePlan, ...]:
        """Who takes over ``places`` of ``chain``; ``NoRouteError`` with the reason if nobody does.

        Where the room that is free at this moment does not do, servers with room enough when they are empty are asked
        all the same: they know best, and say how long to wait.
        """
        try:
            found = self._table(needs).replacement(chain, places, needs, salt)
        except NoRouteError:
            found = self._table(needs, all_room=True).replacement(chain, places, needs, salt)
        return self.view.plans(found.stages)

    def _table(self, needs: RouteNeeds, *, all_room: bool = False) -> RoutingTable:
        dtype = needs.numerics.dtype if isinstance(needs.numerics, Numerics) else None
        table = self._tables.get((dtype, all_room))
        if table is None:
            view = replace(self.view, listings=with_all_room(self.view.listings)) if all_room else self.view
            table = self._tables[dtype, all_room] = RoutingTable.of(view.cluster(dtype))
        return table
