"""Why nobody takes over a gap in a chain: the reasons, in words."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.core.announcement import State
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.routing import RouteNeeds, RoutingTable, Stage

FLOAT32, BFLOAT16 = Numerics("float32"), Numerics("bfloat16")
LAYERS = 30


def server(name: str, start: int, end: int, **changes: Any) -> Node:
    fields: dict[str, Any] = {"tau_s": 0.001, "numerics": FLOAT32}
    return Node(id=name, span=Span(start, end), **(fields | changes))


def stage(name: str, start: int, end: int) -> Stage:
    return Stage(PeerId(name), Span(start, end))


CHAIN = (stage("a", 0, 10), stage("b", 10, 20), stage("c", 20, 30))
NEIGHBOURS = (server("a", 0, 10), server("b", 10, 20), server("c", 20, 30))
LOST_B = RouteNeeds(numerics=FLOAT32, excluded=frozenset({PeerId("b")}))


def table(*others: Node) -> RoutingTable:
    return RoutingTable.of(Cluster(layers=LAYERS, nodes=(*NEIGHBOURS, *others)))


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([], "layers 10 to 19 are held, but only by servers that have just failed this client"),
        (
            [server("d", 5, 25, numerics=BFLOAT16)],
            "layers 10 to 19 are held, but only by servers that compute in bfloat16 and not in float32 "
            "or have just failed this client",
        ),
        (
            [server("d", 10, 14), server("e", 15, 20)],
            "layer 14 is held, but only by servers that have just failed this client",
        ),
        (
            [server("d", 10, 20, state=State.DRAINING)],
            "layers 10 to 19 are held, but only by servers that are draining or have just failed this client",
        ),
    ],
)
def test_reasons_for_the_middle(nodes: list[Node], reason: str) -> None:
    with pytest.raises(NoRouteError) as caught:
        table(*nodes).replacement(CHAIN, range(1, 2), LOST_B)
    assert caught.value.message == reason


def test_nobody_left_who_announces_the_layers() -> None:
    with pytest.raises(NoRouteError, match="no server holds layers 10 to 19") as caught:
        RoutingTable.of(Cluster(layers=LAYERS, nodes=NEIGHBOURS[::2])).replacement(CHAIN, range(1, 2), LOST_B)
    assert "--blocks 10:20" in caught.value.hint


def test_a_hole_elsewhere_in_the_model_is_no_reason() -> None:
    """The lost neighbour of a gap may be gone from the view: it serves its layers all the same."""
    lone = RoutingTable.of(Cluster(layers=LAYERS, nodes=(server("d", 8, 22),)))
    assert lone.replacement(CHAIN, range(1, 2), LOST_B).stages == (stage("d", 10, 20),)


@pytest.mark.parametrize(("place", "part"), [(0, "the embeddings"), (2, "the LM head")])
def test_the_ends_of_a_remote_head(place: int, part: str) -> None:
    """Who takes over the first layers must embed, the last ones sample; the middle needs neither."""
    plain = [server("d", 0, 30, head=False, embeddings=False)]
    needs = RouteNeeds(numerics=FLOAT32, head="remote", excluded=frozenset({CHAIN[place].peer}))
    with pytest.raises(NoRouteError, match=f"{part} (are|is) held, but only by servers that have just failed"):
        table(*plain).replacement(CHAIN, range(place, place + 1), needs)
    middle = RouteNeeds(numerics=FLOAT32, head="remote", excluded=frozenset({PeerId("b")}))
    assert table(*plain).replacement(CHAIN, range(1, 2), middle).stages == (stage("d", 10, 20),)


def test_a_server_beside_the_gap_takes_it_only_with_its_own_layers() -> None:
    """Two neighbours are never one server: it would have to dial itself."""
    nodes = (server("a", 0, 20), server("b", 10, 20), server("c", 20, 30))
    routing = RoutingTable.of(Cluster(layers=LAYERS, nodes=nodes))
    with pytest.raises(NoRouteError, match="layers 10 to 19 are held, but only by servers beside them"):
        routing.replacement(CHAIN, range(1, 2), LOST_B)
    assert routing.replacement(CHAIN, range(2), LOST_B).stages == (stage("a", 0, 20),)


def test_two_that_are_kept_apart_are_not_put_side_by_side_by_a_replacement() -> None:
    """Not even where the view has lost sight of the one that stays."""
    nodes = (server("c", 20, 30), server("d", 10, 20), server("e", 10, 20, tau_s=0.002))
    for apart, taken in [(("a", "d"), "e"), (("c", "d"), "e"), (("b", "d"), "d")]:
        routing = RoutingTable.of(Cluster(layers=LAYERS, nodes=nodes, apart=frozenset({apart})))
        assert routing.replacement(CHAIN, range(1, 2), LOST_B).stages == (stage(taken, 10, 20),)
        standby = routing.standbys(CHAIN, RouteNeeds(numerics=FLOAT32))[1]
        assert standby is not None
        assert standby.stages == (stage(taken, 10, 20),)
    routing = RoutingTable.of(Cluster(layers=LAYERS, nodes=nodes[:2], apart=frozenset({("c", "d")})))
    with pytest.raises(NoRouteError, match="by servers kept apart from those"):
        routing.replacement(CHAIN, range(1, 2), LOST_B)


def test_a_server_of_the_chain_that_is_no_neighbour_takes_over() -> None:
    """Its second stage is one of its own; as a standby chosen ahead it would be no help if it died itself."""
    chain = (stage("a", 0, 5), stage("x", 5, 10), stage("b", 10, 20), stage("c", 20, 30))
    nodes = (server("a", 0, 20), server("x", 5, 10), server("b", 10, 20), server("c", 20, 30))
    routing = RoutingTable.of(Cluster(layers=LAYERS, nodes=nodes))
    assert routing.replacement(chain, range(2, 3), LOST_B).stages == (stage("a", 10, 20),)
    assert routing.standbys(chain, RouteNeeds(numerics=FLOAT32)) == (None, None, None, None)


def test_a_whole_chain_of_any_class() -> None:
    """Nothing is left of the old one: with "same" any class will do, as long as it is one."""
    routing = RoutingTable.of(
        Cluster(layers=LAYERS, nodes=(server("d", 0, 20), server("e", 0, 30, numerics=BFLOAT16), server("f", 25, 30)))
    )
    assert routing.replacement(CHAIN, range(3), RouteNeeds()).stages == (stage("e", 0, 30),)
    with pytest.raises(NoRouteError, match="layers 20 to 24 are held, but only by servers that compute in bfloat16"):
        routing.replacement(CHAIN, range(3), RouteNeeds(numerics=FLOAT32))


def test_a_chain_is_not_made_longer_than_a_session_may_be() -> None:
    long = tuple(stage(f"s{index}", index, index + 1) for index in range(MAX_STAGES - 1))
    chain = (*long, stage("b", MAX_STAGES - 1, MAX_STAGES + 1))
    nodes = (server("d", MAX_STAGES - 1, MAX_STAGES), server("e", MAX_STAGES, MAX_STAGES + 1))
    routing = RoutingTable.of(Cluster(layers=MAX_STAGES + 1, nodes=nodes))
    with pytest.raises(NoRouteError, match=f"over {MAX_STAGES} servers"):
        routing.replacement(chain, range(MAX_STAGES - 1, MAX_STAGES), RouteNeeds(numerics=FLOAT32))
