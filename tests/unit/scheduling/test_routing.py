"""find_route against exhaustive search on small random clusters, and its reasons against the clusters they describe."""

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import Announcement, Reach, State
from swarm.core.errors import ConfigError, NoRouteError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.reasons import layers_text
from swarm.scheduling.routing import Route, RouteNeeds, find_route

FLOAT32, BFLOAT16, NF4 = Numerics("float32"), Numerics("bfloat16"), Numerics("bfloat16", "nf4")
LAYERS = 7


def server(name: str, start: int, end: int, **fields: object) -> Announcement:
    values: dict[str, object] = {
        "model": "m@r#0123456789abcdef",
        "layer_count": LAYERS,
        "numerics": FLOAT32,
        "kv_tokens": 1000,
        "instance": 1,
        "sequence": 1,
        "started_s": 0.0,
        "expires_s": 60.0,
    }
    return Announcement(peer=name, start=start, end=end, **{**values, **fields})  # type: ignore[arg-type]


def ends(name: str, start: int, end: int, **fields: object) -> Announcement:
    """A server that holds head and embeddings."""
    return server(name, start, end, head=True, embeddings=True, **fields)


@st.composite
def clusters(draw: st.DrawFn) -> list[Announcement]:
    spans = st.tuples(st.integers(0, LAYERS - 1), st.integers(1, LAYERS)).filter(lambda pair: pair[0] < pair[1])
    servers = []
    for index in range(draw(st.integers(0, 8))):
        start, end = draw(spans)
        servers.append(
            server(
                f"peer{index}",
                start,
                end,
                head=draw(st.booleans()),
                embeddings=draw(st.booleans()),
                numerics=draw(st.sampled_from([FLOAT32, FLOAT32, BFLOAT16, NF4])),
                kv_tokens=draw(st.sampled_from([1000, 1000, 1000, 10])),
                context_tokens=draw(st.sampled_from([0, 2000, 2000, 10])),
                state=draw(st.sampled_from([State.ONLINE] * 5 + [State.DRAINING, State.JOINING])),
                reach=draw(st.sampled_from([Reach.DIRECT] * 3 + [Reach.RELAYED, Reach.UNREACHABLE])),
            )
        )
    return servers


needs_strategy = st.builds(
    RouteNeeds,
    kv_tokens=st.sampled_from([0, 100]),
    head=st.sampled_from(["local", "remote"]),
    numerics=st.sampled_from(["same", "any", FLOAT32, NF4]),
    excluded=st.sets(st.sampled_from(["peer0", "peer1"])).map(frozenset),
)


def allowed(announcement: Announcement, needs: RouteNeeds) -> bool:
    return (
        announcement.state is State.ONLINE
        and announcement.reach is not Reach.UNREACHABLE
        and announcement.peer not in needs.excluded
        and announcement.kv_tokens >= needs.kv_tokens
        and (announcement.context_tokens == 0 or announcement.context_tokens >= needs.kv_tokens)
        and needs.numerics in ("same", "any", announcement.numerics)
    )


def fewest_by_search(servers: list[Announcement], needs: RouteNeeds) -> int | None:
    """Breadth-first over (layers done, numerics class so far), every server and every cut tried."""
    frontier: set[tuple[int, Numerics | None]] = {(0, None)}
    for count in range(1, LAYERS + 1):
        following = set()
        for done, numerics in frontier:
            for candidate in servers:
                if not allowed(candidate, needs) or not candidate.start <= done < candidate.end:
                    continue
                if needs.numerics != "any" and numerics not in (None, candidate.numerics):
                    continue
                if needs.head == "remote" and done == 0 and not candidate.embeddings:
                    continue
                for cut in range(done + 1, candidate.end + 1):
                    if cut == LAYERS:
                        if needs.head == "local" or candidate.head:
                            return count
                    else:
                        following.add((cut, candidate.numerics))
        frontier = following
    return None


def check_valid(route: Route, needs: RouteNeeds) -> None:
    stages = route.stages
    assert stages[0].span.start == 0
    assert stages[-1].span.end == LAYERS
    assert all(stage.span.end == successor.span.start for stage, successor in pairwise(stages))
    for stage in stages:
        assert stage.peer == stage.announcement.peer
        assert stage.announcement.span.covers(stage.span)
        assert allowed(stage.announcement, needs)
    if needs.head == "remote":
        assert stages[0].announcement.embeddings
        assert stages[-1].announcement.head
    classes = {stage.announcement.numerics for stage in stages}
    assert route.exact == (len(classes) == 1)
    assert route.exact or needs.numerics == "any"
    assert len(set(route.peers)) == len(stages)


def check_reason(message: str, servers: list[Announcement], needs: RouteNeeds) -> None:
    """Every layer the message names is held by nobody, or only by servers that may not take part, as it says."""
    ranges = [(int(a), int(b or a)) for a, b in re.findall(r"(\d+)(?: to (\d+))?", message.split(" held")[0])]
    layers = [layer for first, last in ranges for layer in range(first, last + 1)]
    if message.startswith("no server holds"):
        assert layers
        assert not any(s.start <= layer < s.end for s in servers for layer in layers)
    elif message.startswith("layer"):
        assert layers
        for layer in layers:
            holders = [s for s in servers if s.start <= layer < s.end]
            assert holders
            assert not any(allowed(s, needs) for s in holders)
    elif message.startswith("no server of layer"):
        at_start = "embeddings" in message
        assert not any(s.embeddings and s.start == 0 if at_start else s.head and s.end == LAYERS for s in servers)
    elif message.startswith(("the embeddings", "the LM head")):
        at_start = "embeddings" in message
        holders = [s for s in servers if (s.embeddings and s.start == 0 if at_start else s.head and s.end == LAYERS)]
        assert holders
        assert not any(allowed(s, needs) for s in holders)
    else:
        assert message.startswith("no one numerics class")
        assert needs.numerics == "same"


@settings(max_examples=600)
@given(servers=clusters(), needs=needs_strategy, salt=st.integers(-(2**64), 2**64))
def test_as_few_servers_as_exhaustive_search_finds(servers: list[Announcement], needs: RouteNeeds, salt: int) -> None:
    fewest = fewest_by_search(servers, needs)
    if fewest is None:
        with pytest.raises(NoRouteError) as caught:
            find_route(servers, LAYERS, needs=needs, salt=salt)
        check_reason(caught.value.message, servers, needs)
        assert caught.value.hint
    else:
        route = find_route(servers, LAYERS, needs=needs, salt=salt)
        check_valid(route, needs)
        assert len(route.stages) == fewest


@given(servers=clusters(), needs=needs_strategy, salt=st.integers(0, 5), data=st.data())
def test_the_order_of_the_view_does_not_matter(
    servers: list[Announcement], needs: RouteNeeds, salt: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(servers))
    try:
        expected: object = find_route(servers, LAYERS, needs=needs, salt=salt)
    except NoRouteError as error:
        expected = error.message
    try:
        actual: object = find_route(shuffled, LAYERS, needs=needs, salt=salt)
    except NoRouteError as error:
        actual = error.message
    assert actual == expected


def test_equals_share_the_load_between_salts() -> None:
    servers = [server(f"{half}{index}", *span) for half, span in (("a", (0, 4)), ("b", (4, 7))) for index in range(4)]
    routes = [find_route(servers, LAYERS, needs=RouteNeeds(), salt=salt) for salt in range(400)]
    chosen = Counter(peer for route in routes for peer in route.peers)
    assert len(chosen) == 8
    assert min(chosen.values()) > 60
    assert len({route.peers for route in routes}) == 16
    assert routes[7] == find_route(servers, LAYERS, needs=RouteNeeds(), salt=7)


def test_overlaps_are_cut_near_equal_shares() -> None:
    servers = [server("a", 0, 6), server("b", 1, 7)]
    assert [stage.span for stage in find_route(servers, LAYERS, needs=RouteNeeds()).stages] == [Span(0, 4), Span(4, 7)]


def test_a_first_server_needed_for_its_embeddings_alone() -> None:
    servers = [server("all", 0, 7, head=True), server("small", 0, 1, embeddings=True)]
    route = find_route(servers, LAYERS, needs=RouteNeeds(head="remote"))
    assert [(stage.peer, stage.span) for stage in route.stages] == [("small", Span(0, 1)), ("all", Span(1, 7))]
    assert find_route(servers, LAYERS, needs=RouteNeeds(head="local")).peers == ("all",)


def test_the_more_precise_of_equally_short_classes() -> None:
    servers = [server("n", 0, 7, numerics=NF4), server("b", 0, 7, numerics=BFLOAT16), server("f", 0, 7)]
    for numerics in ("same", "any"):
        assert find_route(servers, LAYERS, needs=RouteNeeds(numerics=numerics)).peers == ("f",)
    assert find_route(servers, LAYERS, needs=RouteNeeds(numerics=NF4)).peers == ("n",)


def test_one_class_is_one_class_however_it_is_spelled() -> None:
    servers = [server("a", 0, 4), server("b", 4, 7, numerics=Numerics("float32", "none", "float32"))]
    assert find_route(servers, LAYERS, needs=RouteNeeds()).exact


def test_mixed_classes_only_where_allowed_and_said() -> None:
    servers = [server("a", 0, 4), server("b", 4, 7, numerics=BFLOAT16)]
    with pytest.raises(NoRouteError, match="bfloat16 lacks layers 0 to 3 and float32 lacks layers 4 to 6"):
        find_route(servers, LAYERS, needs=RouteNeeds())
    assert not find_route(servers, LAYERS, needs=RouteNeeds(numerics="any")).exact


def test_records_of_another_layer_count_are_not_this_model() -> None:
    with pytest.raises(NoRouteError, match="no server holds layers 0 to 6"):
        find_route([server("a", 0, 7, layer_count=8)], LAYERS, needs=RouteNeeds())


@pytest.mark.parametrize(
    ("servers", "needs", "message"),
    [
        ([], RouteNeeds(), "no server holds layers 0 to 6"),
        ([server("a", 0, 3), server("b", 4, 7)], RouteNeeds(), "no server holds layer 3"),
        ([server("a", 2, 3), server("b", 4, 5)], RouteNeeds(), "no server holds layers 0 to 1, 3 and 5 to 6"),
        (
            [server("a", 0, 5), server("b", 3, 7, kv_tokens=99)],
            RouteNeeds(kv_tokens=100),
            "layers 5 to 6 are held, but only by servers that have too little KV room (under 100 tokens)",
        ),
        (
            [server("a", 0, 6), server("b", 6, 7, state=State.DRAINING), server("c", 5, 7)],
            RouteNeeds(excluded=frozenset({PeerId("c")})),
            "layer 6 is held, but only by servers that are draining or have just failed this client",
        ),
        (
            [server("a", 0, 7, reach=Reach.UNREACHABLE)],
            RouteNeeds(),
            "layers 0 to 6 are held, but only by servers that cannot be reached",
        ),
        (
            [server("a", 0, 7)],
            RouteNeeds(numerics=NF4),
            "layers 0 to 6 are held, but only by servers that compute in other numerics than bfloat16+nf4",
        ),
        ([server("a", 0, 7)], RouteNeeds(head="remote"), "no server of layer 0 holds the embeddings"),
        (
            [server("a", 0, 7, embeddings=True), server("b", 6, 7)],
            RouteNeeds(head="remote"),
            "no server of layer 6 holds the LM head",
        ),
        (
            [server("a", 0, 7, embeddings=True), ends("b", 0, 7, state=State.JOINING)],
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
def test_reasons(servers: list[Announcement], needs: RouteNeeds, message: str) -> None:
    with pytest.raises(NoRouteError) as caught:
        find_route(servers, LAYERS, needs=needs)
    assert caught.value.message == message


def test_a_missing_range_comes_with_the_command_that_fills_it() -> None:
    with pytest.raises(NoRouteError, match=r"--blocks 3:5"):
        find_route([server("a", 0, 3), server("b", 5, 7)], LAYERS, needs=RouteNeeds())


def test_long_lists_of_holes_are_counted_not_listed() -> None:
    assert layers_text([Span(2 * n, 2 * n + 1) for n in range(7)]) == "layers 0, 2, 4, 6 and 3 more"


def test_a_chain_over_the_stage_limit_is_refused() -> None:
    servers = [server(f"p{layer}", layer, layer + 1, layer_count=257) for layer in range(257)]
    with pytest.raises(NoRouteError, match="257 servers, over 256"):
        find_route(servers, 257, needs=RouteNeeds())


def test_no_layers_is_a_mistake() -> None:
    with pytest.raises(ConfigError):
        find_route([], 0, needs=RouteNeeds())
