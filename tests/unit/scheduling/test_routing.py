"""find_route and price: known answers, ties, limits, and the reasons when there is no chain."""

from collections import Counter

import pytest

from swarm.core.announcement import Reach, State
from swarm.core.errors import ConfigError, NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.reasons import layers_text
from swarm.scheduling.routing import Route, RouteNeeds, Stage, find_route, price

BFLOAT16, NF4 = Numerics("bfloat16"), Numerics("bfloat16", "nf4")
NEAR = Defaults(rtt_s=0.010, client_rtt_s=0.010, uplink_mbps=1000.0)
LAYERS = 7


def server(name: str, start: int, end: int, **fields: object) -> Node:
    """A server without head or embeddings."""
    return Node(**{"id": name, "span": Span(start, end), "head": False, "embeddings": False, **fields})  # type: ignore[arg-type]


def route_of(*nodes: Node, layers: int = LAYERS, salt: int = 0, needs: RouteNeeds | None = None) -> Route:
    return find_route(Cluster(layers=layers, nodes=nodes, defaults=NEAR), needs=needs or RouteNeeds(), salt=salt)


def test_two_fast_halves_beat_one_slow_whole() -> None:
    slow = server("slow", 0, 64, tau_s=0.003)
    halves = server("a", 0, 32, tau_s=0.001), server("b", 32, 64, tau_s=0.001)
    cluster = Cluster(layers=64, nodes=(slow, *halves), defaults=NEAR, activation_bytes=0)
    route = find_route(cluster, needs=RouteNeeds())
    assert route.stages == (Stage(PeerId("a"), Span(0, 32)), Stage(PeerId("b"), Span(32, 64)))
    assert route.latency_s == pytest.approx(0.064 + 0.010 / 2 + 0.010)
    assert [standby and (standby.stages, standby.latency_s) for standby in route.standbys] == [
        ((Stage(PeerId("slow"), Span(0, 32)),), pytest.approx(32 * 0.003 + 0.010)),
        ((Stage(PeerId("slow"), Span(32, 64)),), pytest.approx(32 * 0.003 + 0.010)),
    ]


def test_a_span_may_be_entered_in_the_middle() -> None:
    x, y = server("x", 0, 40, tau_s=0.001), server("y", 24, 64, tau_s=0.002)
    route = route_of(x, y, layers=64)
    assert route.stages == (Stage(PeerId("x"), Span(0, 40)), Stage(PeerId("y"), Span(40, 64)))
    assert route.standbys == (None, None)


def test_one_server_may_serve_two_stages() -> None:
    wide, quick = server("wide", 0, 7, tau_s=1.0), server("quick", 2, 4, tau_s=0.001)
    assert route_of(wide, quick).peers == ("wide", "quick", "wide")


def test_a_stage_of_one_layer_as_a_relay_between_islands() -> None:
    """Two servers far from each other and near a third: round trips need not obey the triangle inequality."""
    cluster = Cluster(
        layers=LAYERS,
        nodes=(server("a", 0, 4), server("b", 3, 7), server("relay", 1, 6, tau_s=0.02)),
        rtt_s={"a": {"b": 9.0, "relay": 0.01}, "relay": {"b": 0.01}},
        defaults=NEAR,
    )
    route = find_route(cluster, needs=RouteNeeds())
    assert route.peers == ("a", "relay", "b")
    assert len(route.stages[1].span) == 1


def test_the_price_of_a_chain_term_by_term() -> None:
    nodes = (
        Node(id="a", span=Span(0, 4), tau_s=0.5, fixed_s=3.0, uplink_mbps=8e-6),
        Node(id="b", span=Span(4, 7), tau_s=0.25, uplink_mbps=None),
    )
    cluster = Cluster(
        layers=7,
        nodes=nodes,
        activation_bytes=100,
        rtt_s={"b": {"a": 40.0}},
        client_rtt_s={"a": 10.0},
        client_uplink_mbps=1.6e-5,
        defaults=Defaults(client_rtt_s=60.0, uplink_mbps=4e-6),
    )
    stages = (Stage(PeerId("a"), Span(0, 4)), Stage(PeerId("b"), Span(4, 7)))
    entry_s, a_s, hop_s, b_s, exit_s = 10 / 2 + 40 / 2, 3 + 4 * 0.5, 40 / 2 + 100 / 1, 3 * 0.25, 6 / 0.5 + 60 / 2
    needs = RouteNeeds(entry_bytes=40, exit_bytes=6)
    assert price(cluster, stages, needs) == pytest.approx(entry_s + a_s + hop_s + b_s + exit_s)
    assert find_route(cluster, needs=needs).latency_s == pytest.approx(entry_s + a_s + hop_s + b_s + exit_s)
    assert price(cluster, stages, RouteNeeds()) == pytest.approx(55 + 5 + 120 + 0.75 + 230)
    for wrong in ((), (Stage(PeerId("c"), Span(0, 7)),)):
        with pytest.raises(ConfigError):
            price(cluster, wrong, needs)


def test_equals_are_drawn_by_lot() -> None:
    servers = [server(f"{half}{index}", *span) for half, span in (("a", (0, 4)), ("b", (4, 7))) for index in range(4)]
    routes = [route_of(*servers, salt=salt) for salt in range(200)]
    chosen = Counter(peer for route in routes for peer in route.peers)
    assert len(chosen) == 8
    assert min(chosen.values()) > 25
    assert len({route.peers for route in routes}) == 16
    assert routes[7] == route_of(*reversed(servers), salt=7)


def test_of_equal_latencies_the_fewest_stages() -> None:
    free = Defaults(rtt_s=0.0, client_rtt_s=0.0, uplink_mbps=1e300)
    nodes = (server("a", 0, 4), server("b", 3, 7), server("all", 0, 7), server("c", 1, 6))
    assert find_route(Cluster(layers=7, nodes=nodes, defaults=free), needs=RouteNeeds()).peers == ("all",)


def test_a_first_server_needed_for_its_embeddings_alone() -> None:
    servers = server("all", 0, 7, head=True), server("small", 0, 1, embeddings=True)
    route = route_of(*servers, needs=RouteNeeds(head="remote"))
    assert route.stages == (Stage(PeerId("small"), Span(0, 1)), Stage(PeerId("all"), Span(1, 7)))
    assert route_of(*servers, needs=RouteNeeds(head="local")).peers == ("all",)


def test_the_more_precise_of_equally_fast_classes() -> None:
    servers = server("n", 0, 7, numerics=NF4), server("b", 0, 7, numerics=BFLOAT16), server("f", 0, 7)
    assert route_of(*servers).peers == ("f",)
    assert route_of(*servers, needs=RouteNeeds(numerics=NF4)).peers == ("n",)


def test_one_class_is_one_class_however_it_is_spelled() -> None:
    assert route_of(server("a", 0, 4), server("b", 4, 7, numerics=Numerics("float32", "none", "float32"))).exact


def test_mixed_classes_only_where_allowed_and_said() -> None:
    servers = server("a", 0, 4), server("b", 4, 7, numerics=BFLOAT16)
    with pytest.raises(NoRouteError, match="bfloat16 lacks layers 0 to 3 and float32 lacks layers 4 to 6"):
        route_of(*servers)
    assert not route_of(*servers, needs=RouteNeeds(numerics="any")).exact


def test_claims_without_measure_overflow_nothing() -> None:
    huge = server("huge", 0, 7, tau_s=1e308, fixed_s=1e308, uplink_mbps=5e-324)
    assert route_of(huge).peers == ("huge",)
    assert route_of(huge, server("a", 0, 4), server("b", 4, 7, tau_s=1e6)).peers == ("a", "b")


@pytest.mark.parametrize(
    ("servers", "needs", "message"),
    [
        ([], RouteNeeds(), "no server holds layers 0 to 6"),
        ([server("a", 0, 7, span=None)], RouteNeeds(), "no server holds layers 0 to 6"),
        ([server("a", 0, 3), server("b", 4, 7)], RouteNeeds(), "no server holds layer 3"),
        ([server("a", 2, 3), server("b", 4, 5)], RouteNeeds(), "no server holds layers 0 to 1, 3 and 5 to 6"),
        (
            [server("a", 0, 5), server("b", 3, 7, kv_free_tokens=99)],
            RouteNeeds(kv_tokens=100),
            "layers 5 to 6 are held, but only by servers that have too little KV room (under 100 tokens)",
        ),
        (
            [server("a", 0, 6), server("b", 6, 7, state=State.DRAINING), server("c", 5, 7)],
            RouteNeeds(excluded=frozenset({PeerId("c")})),
            "layer 6 is held, but only by servers that are draining or have just failed this client",
        ),
        (
            [server("a", 0, 7, reach=Reach.UNREACHABLE), server("b", 0, 7, live=False)],
            RouteNeeds(),
            "layers 0 to 6 are held, but only by servers that cannot be reached or have not been heard of lately",
        ),
        (
            [server("a", 0, 7)],
            RouteNeeds(numerics=NF4),
            "layers 0 to 6 are held, but only by servers that compute in float32 and not in bfloat16+nf4",
        ),
        ([server("a", 0, 7)], RouteNeeds(head="remote"), "no server of layer 0 holds the embeddings"),
        (
            [server("a", 0, 7, embeddings=True), server("b", 6, 7)],
            RouteNeeds(head="remote"),
            "no server of layer 6 holds the LM head",
        ),
        (
            [server("a", 0, 7, embeddings=True), server("b", 0, 7, head=True, state=State.JOINING)],
            RouteNeeds(head="remote"),
            "the LM head is held, but only by servers that are joining",
        ),
        (
            [server("a", 0, 7, embeddings=True), server("b", 0, 7, head=True, numerics=NF4)],
            RouteNeeds(head="remote"),
            "no one numerics class covers the model: bfloat16+nf4 lacks the embeddings and float32 lacks the LM head",
        ),
    ],
)
def test_reasons(servers: list[Node], needs: RouteNeeds, message: str) -> None:
    with pytest.raises(NoRouteError) as caught:
        route_of(*servers, needs=needs)
    assert caught.value.message == message
    assert caught.value.hint


def test_those_that_are_kept_apart_may_serve_one_chain_but_not_side_by_side() -> None:
    servers = server("a", 0, 3), server("b", 3, 5), server("c", 5, 7), server("d", 3, 5, tau_s=0.002)
    for apart, peers in [({("a", "b")}, ("a", "d", "c")), ({("a", "c")}, ("a", "b", "c"))]:
        route = find_route(Cluster(layers=7, nodes=servers, apart=frozenset(apart)), needs=RouteNeeds())
        assert route.peers == peers
    with pytest.raises(NoRouteError, match="keeps those apart whose common link broke") as caught:
        find_route(Cluster(layers=7, nodes=servers[:3], apart=frozenset({("b", "c")})), needs=RouteNeeds())
    assert "reputation" in caught.value.hint


def test_a_model_of_one_layer_needs_both_ends_in_one_server() -> None:
    halves = server("a", 0, 1, embeddings=True), server("b", 0, 1, head=True)
    with pytest.raises(NoRouteError, match="no one server may serve both"):
        route_of(*halves, layers=1, needs=RouteNeeds(head="remote"))
    assert route_of(*halves, layers=1).exact


def test_a_missing_range_comes_with_the_command_that_fills_it() -> None:
    with pytest.raises(NoRouteError, match=r"python -m swarm.server --model NAME .* --blocks 3:5"):
        route_of(server("a", 0, 3), server("b", 5, 7))


def test_long_lists_of_holes_are_counted_not_listed() -> None:
    assert layers_text([Span(2 * n, 2 * n + 1) for n in range(7)]) == "layers 0, 2, 4, 6 and 3 more"


def test_a_chain_over_the_stage_limit_is_refused() -> None:
    servers = [server(f"p{layer}", layer, layer + 1) for layer in range(257)]
    with pytest.raises(NoRouteError, match="257 servers, over 256"):
        route_of(*servers, layers=257)


def test_a_chain_over_the_stage_limit_gives_way_to_a_shorter_one() -> None:
    quick = [server(f"p{layer:03}", layer, layer + 1, tau_s=1e-3) for layer in range(300)]
    wide = [server(f"w{index}", 100 * index, 100 * index + 100, tau_s=0.1 + index) for index in range(3)]
    route = route_of(*quick, *wide, layers=300)
    assert len(route.stages) <= MAX_STAGES
    assert route.peers[0] == "w0"  # the least to lose
    assert len(route.stages) > 200


def test_no_layers_is_a_mistake() -> None:
    with pytest.raises(ConfigError):
        route_of(layers=0)
