"""find_route against exhaustive search on small clusters, networkx on middling ones, laid out in every way."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_by_hand import (
    LAYERS,
    allowed,
    any_needs,
    cheapest_standby_s,
    check_valid,
    clusters,
    every_chain,
    every_part,
    may_meet,
    price_of_part,
)

from swarm.core.announcement import Coordinate
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.routing import RouteNeeds, RoutingTable, Stage, find_route, price
from swarm.scheduling.routing_arrays import Arrays

LAYOUTS = {"blocks": (99, 10**6), "dense": (99, -1), "sparse": (0, -1), "sparse blocks": (0, 10**6)}


def tables(cluster: Cluster) -> Iterator[RoutingTable]:
    """Every way to lay the cluster out, whatever its size."""
    for dense_nodes, block_cells in LAYOUTS.values():
        yield RoutingTable(Arrays.of(cluster, dense_nodes, block_cells))


@settings(max_examples=150, deadline=None)
@given(cluster=clusters(), needs=any_needs, salt=st.integers(-(2**64), 2**64))
def test_nothing_is_faster_by_exhaustive_search(cluster: Cluster, needs: RouteNeeds, salt: int) -> None:
    best_s = min((price(cluster, chain, needs) for chain in every_chain(cluster, needs)), default=None)
    for table in tables(cluster):
        if best_s is None:
            with pytest.raises(NoRouteError):
                table.route(needs, salt)
            continue
        route = table.route(needs, salt)
        check_valid(cluster, route, needs)
        assert route.latency_s == pytest.approx(best_s, rel=1e-9, abs=1e-10)
        for place, standby in enumerate(route.standbys):
            least_s = cheapest_standby_s(cluster, route, place, needs)
            assert (standby is None) == (least_s is None)
            if standby is None or least_s is None:
                continue
            span = route.stages[place].span
            assert standby.latency_s == pytest.approx(least_s, rel=1e-9, abs=1e-10)
            assert [part for part in every_part(cluster, needs, span) if part == standby.stages]
            assert not set(route.peers) & {part.peer for part in standby.stages}
            ends = route.stages[:place][-1:], route.stages[place + 1 :][:1]
            assert standby.latency_s == pytest.approx(price_of_part(cluster, ends[0], standby.stages, ends[1], needs))


def some_cluster(random: Random, count: int, layers: int, *, measured: float, placed: bool, apart: int = 0) -> Cluster:
    """Uneven servers; a share of the pairs measured, in one direction or both, with no geometry at all.

    ``apart`` draws of two servers are kept apart.
    """
    members = []
    for index in range(count):
        start = random.randrange(layers)
        end = random.randint(start + 1, min(start + layers // 2, layers))
        spot = Coordinate(random.random() / 10, random.random() / 10, 0.005, random.random())
        members.append(
            Node(
                id=f"n{index}",
                span=Span(0, layers) if index == 0 else Span(start, end),
                tau_s=random.choice([0.001, random.uniform(0.001, 0.01)]),
                fixed_s=random.uniform(0, 0.002),
                uplink_mbps=random.choice([None, 10.0, 1000.0]),
                region=random.choice("abc"),
                coordinate=spot if placed and random.random() < 0.7 else None,
            )
        )
    ids = [node.id for node in members]
    return Cluster(
        layers=layers,
        nodes=tuple(members),
        rtt_s={a: {b: random.uniform(0.001, 0.2) for b in ids if a != b and random.random() < measured} for a in ids},
        client_rtt_s={a: random.uniform(0.005, 0.1) for a in ids},
        defaults=Defaults(rtt_s=0.15, region_rtt_s={("a", "a"): 0.02, ("a", "b"): 0.08, ("c", "b"): 0.05}),
        apart=frozenset((min(pair), max(pair)) for pair in (random.sample(ids, 2) for _ in range(apart))),
    )


def dijkstra_s(cluster: Cluster) -> float:
    """The shortest path over states (layers done, server)."""
    graph: networkx.DiGraph = networkx.DiGraph()
    exit_bytes = cluster.activation_bytes
    for node in cluster.nodes:
        assert node.span is not None
        if node.span.start == 0:
            graph.add_edge("client", (1, node.id), weight=cluster.client_rtt(node) / 2 + node.fixed_s + node.tau_s)
        for done in range(node.span.start + 1, node.span.end):
            graph.add_edge((done, node.id), (done + 1, node.id), weight=node.tau_s)
        if node.span.end == cluster.layers:
            exit_s = cluster.uplink_s(node, exit_bytes) + cluster.client_rtt(node) / 2
            graph.add_edge((cluster.layers, node.id), "back", weight=exit_s)
        for other in cluster.nodes:
            assert other.span is not None
            hop_s = cluster.rtt_between(node, other) / 2 + cluster.uplink_s(node, cluster.activation_bytes)
            first, last = max(node.span.start + 1, other.span.start), min(node.span.end, other.span.end - 1)
            barred = node is other or (min(node.id, other.id), max(node.id, other.id)) in cluster.apart
            for done in range(first, last + 1) if not barred else ():
                graph.add_edge((done, node.id), (done + 1, other.id), weight=hop_s + other.fixed_s + other.tau_s)
    return float(networkx.dijkstra_path_length(graph, "client", "back"))


@pytest.mark.parametrize("apart", [0, 300])
@pytest.mark.parametrize("seed", range(12))
def test_as_short_as_the_shortest_path_in_the_layer_graph(seed: int, apart: int) -> None:
    random = Random(seed)
    measured = (0.0, 0.2, 1.0)[seed % 3]
    cluster = some_cluster(random, 40, 24, measured=measured, placed=seed % 2 == 0, apart=apart)
    shortest_s = dijkstra_s(cluster)
    for table in tables(cluster):
        route = table.route(RouteNeeds(), salt=seed)
        check_valid(cluster, route, RouteNeeds())
        assert route.latency_s == pytest.approx(shortest_s, rel=1e-9)


def test_a_large_swarm_laid_out_by_pairs_and_by_neighbours_agrees() -> None:
    cluster = some_cluster(Random(7), 400, 32, measured=0.03, placed=True, apart=20_000)
    latencies = {table.route(RouteNeeds()).latency_s for table in tables(cluster)}
    assert max(latencies) == pytest.approx(min(latencies), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(cluster=clusters(), needs=any_needs, salt=st.integers(0, 5), data=st.data())
def test_the_order_of_the_view_does_not_matter(
    cluster: Cluster, needs: RouteNeeds, salt: int, data: st.DataObject
) -> None:
    shuffled = Cluster(
        layers=LAYERS,
        nodes=tuple(data.draw(st.permutations(cluster.nodes))),
        activation_bytes=cluster.activation_bytes,
        rtt_s=cluster.rtt_s,
        client_rtt_s=cluster.client_rtt_s,
        client_uplink_mbps=cluster.client_uplink_mbps,
        defaults=cluster.defaults,
        apart=cluster.apart,
    )
    answers = []
    for view in (cluster, shuffled):
        try:
            answers.append(str(find_route(view, needs=needs, salt=salt)))
        except NoRouteError as error:
            answers.append(error.message)
    assert answers[0] == answers[1]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Stage, ...]:
    """A chain as it may run: cut anywhere, over servers that the view may have forgotten; neighbours differ."""
    cuts = sorted({0, LAYERS, *draw(st.sets(st.integers(1, LAYERS - 1), max_size=3))})
    names = st.sampled_from(["n0", "n1", "n2", "n3", "gone"])
    stages: list[Stage] = []
    for start, end in pairwise(cuts):
        last = stages[-1].peer if stages else ""
        stages.append(Stage(PeerId(draw(names.filter(lambda name, last=last: name != last))), Span(start, end)))
    return tuple(stages)


def least_s(cluster: Cluster, chain: tuple[Stage, ...], places: range, needs: RouteNeeds, *, disjoint: bool) -> float:
    """By exhaustive search: the least time of a sub-chain in ``places``, infinite if there is none."""
    known = {node.id: node for node in cluster.nodes}
    before, after = chain[: places.start][-1:], chain[places.stop :][:1]
    least = float("inf")
    for part in every_part(cluster, needs, Span(chain[places.start].span.start, chain[places.stop - 1].span.end)):
        names = [stage.peer for stage in (*before, *part, *after)]
        several = len({known[stage.peer].numerics for stage in part}) > 1
        if (several and needs.numerics != "any") or any(a == b for a, b in pairwise(names)):
            continue
        if disjoint and {stage.peer for stage in part} & {stage.peer for stage in chain}:
            continue
        if not may_meet(cluster, [*before, *part, *after]):
            continue
        least = min(least, price_of_part(cluster, before, part, after, needs))
    return least


@settings(max_examples=200, deadline=None)
@given(cluster=clusters(), chain=chains(), needs=any_needs, data=st.data())
def test_no_replacement_is_faster_by_exhaustive_search(
    cluster: Cluster, chain: tuple[Stage, ...], needs: RouteNeeds, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(chain) - 1))
    places = range(first, data.draw(st.integers(first + 1, len(chain))))
    span = Span(chain[first].span.start, chain[places.stop - 1].span.end)
    best_s = least_s(cluster, chain, places, needs, disjoint=False)
    for table in tables(cluster):
        if best_s == float("inf"):
            with pytest.raises(NoRouteError, match=r"layer|embeddings|LM head"):
                table.replacement(chain, places, needs)
            continue
        found = table.replacement(chain, places, needs, salt=data.draw(st.integers(0, 3)))
        assert found.stages in set(every_part(cluster, needs, span))
        assert found.latency_s == pytest.approx(best_s, rel=1e-9, abs=1e-10)
        assert all(allowed(node, needs) for node in cluster.nodes if node.id in {s.peer for s in found.stages})


@settings(max_examples=100, deadline=None)
@given(cluster=clusters(), chain=chains(), needs=any_needs)
def test_standbys_of_a_running_chain_by_exhaustive_search(
    cluster: Cluster, chain: tuple[Stage, ...], needs: RouteNeeds
) -> None:
    for table in tables(cluster):
        found = table.standbys(chain, needs)
        for place, standby in enumerate(found):
            best_s = least_s(cluster, chain, range(place, place + 1), needs, disjoint=True)
            latency_s = float("inf") if standby is None else standby.latency_s
            assert latency_s == pytest.approx(best_s, rel=1e-9, abs=1e-10)
            if standby is not None:
                assert not {stage.peer for stage in standby.stages} & {stage.peer for stage in chain}


@settings(max_examples=100, deadline=None)
@given(cluster=clusters(), chain=chains(), needs=any_needs)
def test_a_stages_hops_are_what_it_costs_besides_computing(
    cluster: Cluster, chain: tuple[Stage, ...], needs: RouteNeeds
) -> None:
    known = {node.id: node for node in cluster.nodes}
    table = RoutingTable.of(cluster)
    for place, stage in enumerate(chain):
        whole_s = computes_s = 0.0
        if (node := known.get(stage.peer)) is not None:
            computes_s = node.fixed_s + len(stage.span) * node.tau_s
            whole_s = price_of_part(cluster, chain[:place][-1:], (stage,), chain[place + 1 :][:1], needs)
        assert computes_s + table.hops_s(chain, place, [stage], needs) == pytest.approx(whole_s, rel=1e-9, abs=1e-10)


@settings(max_examples=200, deadline=None)
@given(cluster=clusters(), needs=any_needs, salt=st.integers(0, 5), wanted=chains().flatmap(st.sampled_from))
def test_no_chain_with_a_given_stage_is_faster(cluster: Cluster, needs: RouteNeeds, salt: int, wanted: Stage) -> None:
    fitting = (chain for chain in every_chain(cluster, needs) if wanted in chain)
    best_s = min((price(cluster, chain, needs) for chain in fitting), default=None)
    for table in tables(cluster):
        if best_s is None:
            with pytest.raises(NoRouteError):
                table.route(replace(needs, through=wanted), salt)
            continue
        route = table.route(replace(needs, through=wanted), salt)
        check_valid(cluster, route, needs)
        assert wanted in route.stages
        assert route.latency_s == pytest.approx(best_s, rel=1e-9, abs=1e-10)
