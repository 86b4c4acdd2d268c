"""Small clusters of every kind, and all their chains and prices by hand."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise, product

from hypothesis import strategies as st

from swarm.core.announcement import Coordinate, Reach, State
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.routing import Route, RouteNeeds, Stage, price

LAYERS = 5
FLOAT32, NF4 = Numerics("float32"), Numerics("bfloat16", "nf4")
seconds = st.sampled_from([0.0, 0.0, 1e-3, 2e-3, 0.01, 0.05, 0.3, 1e9])


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    start, end = draw(
        st.sampled_from([(a, b) for a in range(LAYERS) for b in range(a + 1, LAYERS + 1)] + [(0, LAYERS)] * 5)
    )
    return Node(
        id=name,
        span=draw(st.sampled_from([Span(start, end)] * 9 + [None])),
        tau_s=draw(seconds),
        fixed_s=draw(seconds),
        uplink_mbps=draw(st.sampled_from([None, 1.0, 100.0])),
        kv_free_tokens=draw(st.sampled_from([None, 10, 1000])),
        state=draw(st.sampled_from([State.ONLINE] * 8 + [State.DRAINING])),
        reach=draw(st.sampled_from([Reach.DIRECT] * 8 + [Reach.UNREACHABLE])),
        live=draw(st.sampled_from([True] * 8 + [False])),
        numerics=draw(st.sampled_from([FLOAT32, FLOAT32, NF4])),
        head=draw(st.booleans()),
        embeddings=draw(st.booleans()),
        region=draw(st.sampled_from(["", "here", "there"])),
        coordinate=draw(st.sampled_from([None, Coordinate(0, 0, 0, 0), Coordinate(0.03, 0.04, 0.01, 2.0)])),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes with any times and any links: islands, spans inside spans, no triangle inequality; some of them
    kept apart.
    """
    members = tuple(draw(nodes(f"n{index}")) for index in range(draw(st.integers(1, 5))))
    ids = [node.id for node in members]
    rows = st.dictionaries(st.sampled_from(ids), seconds)
    pairs = st.sampled_from([("n0", "n1"), ("n1", "n2"), ("n0", "n3"), ("gone", "n0"), ("gone", "n2")])
    return Cluster(
        layers=LAYERS,
        nodes=members,
        activation_bytes=draw(st.sampled_from([0, 16384])),
        rtt_s=draw(st.dictionaries(st.sampled_from(ids), rows)),
        client_rtt_s=draw(rows),
        client_uplink_mbps=draw(st.sampled_from([None, 2.0])),
        defaults=Defaults(region_rtt_s={("here", "there"): 0.02, ("here", "here"): 1e-3}),
        apart=frozenset(draw(st.sets(pairs, max_size=2))),
    )


def may_meet(cluster: Cluster, chain: Sequence[Stage]) -> bool:
    """True if no two neighbours of the chain are kept apart, in either order."""
    return not any({a.peer, b.peer} == set(pair) for a, b in pairwise(chain) for pair in cluster.apart)


any_needs = st.builds(
    RouteNeeds,
    kv_tokens=st.sampled_from([0, 100]),
    head=st.sampled_from(["local", "local", "remote"]),
    numerics=st.sampled_from(["same", "any", FLOAT32, NF4]),
    excluded=st.sets(st.sampled_from(["n0", "n1"]), max_size=1).map(frozenset),
    entry_bytes=st.sampled_from([None, 4]),
    exit_bytes=st.sampled_from([None, 4]),
)


def allowed(node: Node, needs: RouteNeeds) -> bool:
    return (
        node.span is not None
        and node.state is State.ONLINE
        and node.reach is not Reach.UNREACHABLE
        and node.live
        and node.id not in needs.excluded
        and (node.kv_free_tokens is None or node.kv_free_tokens >= needs.kv_tokens)
        and needs.numerics in ("same", "any", node.numerics)
    )


def stages_of(servers: tuple[Node, ...], start: int) -> tuple[Stage, ...]:
    """One server per layer from ``start`` on, equal neighbours as one stage."""
    stages = []
    for name, run in groupby(node.id for node in servers):
        end = start + len(list(run))
        stages.append(Stage(PeerId(name), Span(start, end)))
        start = end
    return tuple(stages)


def every_chain(cluster: Cluster, needs: RouteNeeds) -> Iterator[tuple[Stage, ...]]:
    """All chains that meet the needs: every server for every layer."""
    usable = [node for node in cluster.nodes if allowed(node, needs)]
    holders = [[n for n in usable if n.span is not None and n.span.start <= i < n.span.end] for i in range(LAYERS)]
    for servers in product(*holders):
        if needs.numerics != "any" and len({node.numerics for node in servers}) > 1:
            continue
        if needs.head == "remote" and not (servers[0].embeddings and servers[-1].head):
            continue
        chain = stages_of(servers, 0)
        if may_meet(cluster, chain):
            yield chain


def cheapest_standby_s(cluster: Cluster, route: Route, place: int, needs: RouteNeeds) -> float | None:
    """The least time from predecessor to successor over chains that differ only in one stage, without its servers."""
    before, stage, after = route.stages[:place], route.stages[place], route.stages[place + 1 :]
    classes = {node.numerics for node in cluster.nodes if node.id in route.peers}
    least = None
    for chain in every_part(cluster, needs, stage.span):
        names = {part.peer for part in chain}
        own = {node.numerics for node in cluster.nodes if node.id in names}
        if names & set(route.peers) or (needs.numerics != "any" and own != classes):
            continue
        if not may_meet(cluster, [*before[-1:], *chain, *after[:1]]):
            continue
        part_s = price_of_part(cluster, before[-1:], chain, after[:1], needs)
        if least is None or part_s < least:
            least = part_s
    return least


def every_part(cluster: Cluster, needs: RouteNeeds, span: Span) -> Iterator[tuple[Stage, ...]]:
    usable = [node for node in cluster.nodes if allowed(node, needs)]
    layers = range(span.start, span.end)
    holders = [[n for n in usable if n.span is not None and n.span.start <= i < n.span.end] for i in layers]
    for servers in product(*holders):
        if needs.head == "remote" and not (
            (span.start > 0 or servers[0].embeddings) and (span.end < LAYERS or servers[-1].head)
        ):
            continue
        yield stages_of(servers, span.start)


def price_of_part(
    cluster: Cluster,
    before: tuple[Stage, ...],
    chain: tuple[Stage, ...],
    after: tuple[Stage, ...],
    needs: RouteNeeds,
) -> float:
    """From predecessor to successor, by hand from the cluster's own figures; hops of unknown servers are free."""
    node = {node.id: node for node in cluster.nodes}
    ends = [*(part.peer for part in before), *(part.peer for part in chain), *(part.peer for part in after)]
    total_s = sum(node[part.peer].fixed_s + len(part.span) * node[part.peer].tau_s for part in chain)
    for a, b in pairwise(ends):
        if a in node and b in node:
            hop_s = cluster.rtt_between(node[a], node[b]) / 2
            total_s += hop_s + cluster.uplink_s(node[a], cluster.activation_bytes)
    if not before:
        total_s += cluster.client_rtt(node[chain[0].peer]) / 2
        if cluster.client_uplink_mbps is not None:
            entry_bytes = cluster.activation_bytes if needs.entry_bytes is None else needs.entry_bytes
            total_s += 8 * entry_bytes / (cluster.client_uplink_mbps * 1e6)
    if not after:
        exit_bytes = cluster.activation_bytes if needs.exit_bytes is None else needs.exit_bytes
        total_s += cluster.uplink_s(node[chain[-1].peer], exit_bytes) + cluster.client_rtt(node[chain[-1].peer]) / 2
    return total_s


def check_valid(cluster: Cluster, route: Route, needs: RouteNeeds) -> None:
    node = {node.id: node for node in cluster.nodes}
    assert route.stages[0].span.start == 0
    assert route.stages[-1].span.end == cluster.layers
    assert all(a.span.end == b.span.start and a.peer != b.peer for a, b in pairwise(route.stages))
    for stage in route.stages:
        span = node[stage.peer].span
        assert span is not None
        assert span.covers(stage.span)
        assert allowed(node[stage.peer], needs)
    assert needs.head == "local" or node[route.stages[0].peer].embeddings
    assert needs.head == "local" or node[route.stages[-1].peer].head
    assert route.exact == (len({node[peer].numerics for peer in route.peers}) == 1)
    assert route.exact or needs.numerics == "any"
    assert may_meet(cluster, route.stages)
    assert route.latency_s == price(cluster, route.stages, needs) < float("inf")
