"""Who takes over some layers of a chain: the best sub-chain between the servers that stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Node
from swarm.scheduling.reasons import explain_gap, layers_text
from swarm.scheduling.routing_arrays import Arrays
from swarm.scheduling.routing_links import Bools, Floats
from swarm.scheduling.routing_price import entry_s, exit_s, hop_s, inner_s
from swarm.scheduling.routing_search import SLACK, Costs, Part, Search
from swarm.scheduling.routing_types import RouteNeeds, Stage, Standby


@dataclass(frozen=True, slots=True)
class Gap:
    """Layers of a chain that somebody is to take over, and the nodes that come before and after them.

    None is the client where the model begins or ends; elsewhere it is a server that the view does not know, and a hop
    from or to it counts nothing. ``never_first`` and ``never_last`` are the nodes that are kept apart from it.
    """

    span: Span
    before: int | None
    after: int | None
    never_first: tuple[int, ...]
    never_last: tuple[int, ...]

    @classmethod
    def of(cls, arrays: Arrays, chain: Sequence[Stage], first: int, end: int) -> Gap:
        """The gap that the places ``[first, end)`` of ``chain`` leave."""
        span = Span(chain[first].span.start, chain[end - 1].span.end)
        before = chain[first - 1].peer if first > 0 else ""
        after = chain[end].peer if end < len(chain) else ""
        number, never = arrays.number, arrays.kept_from
        return cls(span, number.get(before), number.get(after), never(before), never(after))

    def hops_s(self, arrays: Arrays, first: Node, last: Node, needs: RouteNeeds) -> float:
        """From whoever comes before into ``first``, and from ``last`` to whoever comes after."""
        cluster, nodes = arrays.cluster, arrays.nodes
        into_s = out_s = 0.0
        if self.before is not None:
            into_s = hop_s(cluster, nodes[self.before], first)
        elif self.span.start == 0:
            into_s = entry_s(cluster, first, needs)
        if self.after is not None:
            out_s = hop_s(cluster, last, nodes[self.after])
        elif self.span.end == cluster.layers:
            out_s = exit_s(cluster, last, needs)
        return into_s + out_s


def standbys(
    arrays: Arrays, parts: Sequence[Part], group: Bools, needs: RouteNeeds, costs: Costs
) -> tuple[Standby | None, ...]:
    """For every stage the fastest sub-chain over its span, perhaps of several servers, that stands in for it.

    Among the nodes of ``group`` that serve no stage of the chain, priced from the stage's predecessor to its successor
    (the client at the ends); None where there is none. Exact, as ``Search`` is; together all stages take about as long
    as one search, for their spans tile the model.
    """
    chain = [Stage(PeerId(arrays.nodes[index].id), span) for index, span in parts]
    spare = group.copy()
    spare[[index for index, _ in parts]] = False
    gaps = [Gap.of(arrays, chain, place, place + 1) for place in range(len(chain))]
    return tuple(_fill(arrays, gap, spare, needs, costs) for gap in gaps)


def standbys_of(arrays: Arrays, chain: Sequence[Stage], needs: RouteNeeds, salt: int = 0) -> tuple[Standby | None, ...]:
    """``standbys`` of a chain that was routed on an earlier view; its servers need not be in this one any more."""
    spare = arrays.usable(needs)
    spare[[arrays.number[stage.peer] for stage in chain if stage.peer in arrays.number]] = False
    gaps = [Gap.of(arrays, chain, place, place + 1) for place in range(len(chain))]
    return tuple(_fastest(arrays, gap, spare, needs, salt) for gap in gaps)


def replacement(arrays: Arrays, chain: Sequence[Stage], places: range, needs: RouteNeeds, salt: int = 0) -> Standby:
    """The fastest sub-chain that takes over ``places`` of ``chain``; the others stay, and may serve these layers too.

    The newcomers meet ``needs``: room, no excluded peer, the numerics class it names (``"same"``: any one class), and
    at the model's ends embeddings and LM head. Priced and exact as ``standbys``. Two neighbours are never one server:
    where only a server that stays next to the gap holds its layers, more places have to be given up.

    Raises ``NoRouteError`` that names the layers and says why nobody takes them.
    """
    gap = Gap.of(arrays, chain, places.start, places.stop)
    found = _fastest(arrays, gap, arrays.usable(needs), needs, salt)
    if found is None:
        verdicts, layers = arrays.verdicts(needs), arrays.cluster.layers
        raise explain_gap(verdicts, layers, gap.span, remote_head=needs.head == "remote", apart=arrays.apart)
    if len(found.stages) + len(chain) - len(places) > MAX_STAGES:
        raise NoRouteError(
            f"with others for {layers_text([gap.span])} the chain would have over {MAX_STAGES} servers",
            hint="let servers hold longer spans",
        )
    return found


def hops_s(arrays: Arrays, chain: Sequence[Stage], place: int, by: Sequence[Stage], needs: RouteNeeds) -> float:
    """What the stages ``by`` pay, or would pay, for the hops around ``place``: part of ``Standby.latency_s``.

    0 if the view does not know them.
    """
    ends = [arrays.number.get(by[0].peer), arrays.number.get(by[-1].peer)]
    nodes = [arrays.nodes[number] for number in ends if number is not None]
    if len(nodes) < len(ends):
        return 0.0
    return Gap.of(arrays, chain, place, place + 1).hops_s(arrays, nodes[0], nodes[-1], needs)


def _fastest(arrays: Arrays, gap: Gap, usable: Bools, needs: RouteNeeds, salt: int) -> Standby | None:
    """Over all numerics classes that ``needs`` allows; of equals the one of higher precision."""
    best: Standby | None = None
    for group in _classes(arrays, usable, needs):
        found = _fill(arrays, gap, group, needs, arrays.costs(needs, group, salt, 0.0))
        if found is not None and (best is None or found.latency_s < best.latency_s * (1 - SLACK)):
            best = found
    return best


def _classes(arrays: Arrays, usable: Bools, needs: RouteNeeds) -> list[Bools]:
    if needs.numerics == "any":
        return [usable]
    named = str(needs.numerics) if isinstance(needs.numerics, Numerics) else None
    return [usable & (arrays.kind == kind) for kind, name in enumerate(arrays.classes) if named in (None, name)]


def _fill(arrays: Arrays, gap: Gap, spare: Bools, needs: RouteNeeds, costs: Costs) -> Standby | None:
    everyone = np.arange(len(arrays.nodes))
    nothing_s = np.zeros(len(everyone))
    enter_s: Floats = costs.enter_s if gap.span.start == 0 else nothing_s
    leave_s: Floats = costs.leave_s if gap.span.end == arrays.cluster.layers else nothing_s
    if gap.before is not None:
        enter_s = arrays.links.block(np.array([gap.before]), everyone)[0]
    if gap.after is not None:
        leave_s = arrays.links.block(everyone, np.array([gap.after]))[:, 0]
    if gap.never_first or gap.never_last:  # also from those that the view does not know
        enter_s, leave_s = enter_s.copy(), leave_s.copy()
        enter_s[list(gap.never_first)], leave_s[list(gap.never_last)] = np.inf, np.inf
    fixed_s = np.where(spare, costs.fixed_s, np.inf)
    search = Search(arrays.layout, arrays.links, gap.span, Costs(enter_s, leave_s, fixed_s, costs.tau_s))
    found = search.best()
    if found is None or len(found) > MAX_STAGES:
        return None
    nodes = arrays.nodes
    latency_s = inner_s(arrays.cluster, [(nodes[index], len(span)) for index, span in found])
    latency_s += gap.hops_s(arrays, nodes[found[0][0]], nodes[found[-1][0]], needs)
    return Standby(tuple(Stage(PeerId(nodes[index].id), span) for index, span in found), latency_s)
