"""Allocation by maximum flow: the flow's own certificate, and plans that hold it."""

from __future__ import annotations

from itertools import product
from random import Random

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.allocation.flow import maximum_flow, unit_paths
from swarm.scheduling.allocation.max_flow import max_flow, plan_flow
from swarm.scheduling.allocation.plan import Plan, Share
from swarm.scheduling.allocation.ring import ring
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.cluster import Cluster, Node

SINK = 8
EDGES = st.dictionaries(
    st.tuples(st.integers(0, SINK - 1), st.integers(1, SINK)).filter(lambda edge: edge[0] < edge[1]),
    st.integers(0, 9),
    max_size=24,
)


def mixed(count: int, seed: int) -> Cluster:
    random = Random(seed)
    nodes = [
        Node(id=f"n{index}", capacity_layers=random.randint(8, 34), power=random.uniform(20, 400), uplink_mbps=100.0)
        for index in range(count)
    ]
    return Cluster(layers=64, nodes=tuple(nodes))


@given(EDGES)
def test_the_flow_is_the_greatest_and_its_cut_proves_it(capacities: dict[tuple[int, int], int]) -> None:
    graph = networkx.DiGraph()
    graph.add_nodes_from([0, SINK])
    graph.add_edges_from((a, b, {"capacity": capacity}) for (a, b), capacity in capacities.items())
    flow = maximum_flow(capacities, 0, SINK)
    assert flow.value == networkx.maximum_flow_value(graph, 0, SINK)
    assert flow.value == sum(capacity for edge, capacity in capacities.items() if flow.crosses(edge))
    for vertex in range(1, SINK):
        arriving = sum(used for (_, end), used in flow.on.items() if end == vertex)
        assert arriving == sum(used for (start, _), used in flow.on.items() if start == vertex)
    assert all(used <= capacities[edge] for edge, used in flow.on.items())


@given(EDGES)
def test_paths_are_disjoint_and_as_many_as_the_flow(counts: dict[tuple[int, int], int]) -> None:
    paths = unit_paths(counts, 0, SINK)
    assert len(paths) == maximum_flow(counts, 0, SINK).value
    used = [edge for path in paths for edge in path]
    assert all(used.count(edge) <= counts[edge] for edge in set(used))
    for path in paths:
        assert [0, *(end for _, end in path)] == [*(start for start, _ in path), SINK]


def test_two_weak_nodes_stand_beside_each_other_where_one_strong_one_goes_before() -> None:
    nodes = [Node(id="a", capacity_layers=6, power=120.0), *(Node(id=n, capacity_layers=6, power=60.0) for n in "bc")]
    plan = max_flow(Cluster(layers=12, nodes=tuple(nodes), activation_bytes=0))
    assert plan.pipelines == ((Share("a", Span(0, 6)), Share("b", Span(6, 12))),)
    assert plan.replicas == (Share("c", Span(6, 12)),)
    assert plan.gap == ""  # it passes the 20 tokens/s that are the bound


def test_a_narrow_uplink_counts_against_its_sender() -> None:
    nodes = (
        Node(id="quick", capacity_layers=12, power=1200.0, uplink_mbps=0.8),  # 10 tokens/s of 10 kB
        Node(id="slow", capacity_layers=12, power=600.0, uplink_mbps=800.0),
    )
    cluster = Cluster(layers=12, nodes=nodes, activation_bytes=10_000)
    plan = max_flow(cluster)
    assert plan_flow(plan, cluster) == pytest.approx(60.0)
    assert {len(pipeline) for pipeline in plan.pipelines} == {1}


def test_small_swarms_pass_nearly_what_exhaustive_search_finds() -> None:
    found = []
    for seed in range(15):
        random = Random(seed)
        layers = random.randint(3, 5)
        powers = [random.choice([1.0, 2.0, 5.0, 10.0]) for _ in range(3)]
        rooms = [random.randint(2, layers) for _ in powers]
        nodes = tuple(
            Node(id=f"n{index}", capacity_layers=room, power=power)
            for index, (room, power) in enumerate(zip(rooms, powers, strict=True))
        )
        cluster = Cluster(layers=layers, nodes=nodes, activation_bytes=0)
        every = [[(a, b) for a in range(layers) for b in range(a + 1, min(layers, a + room) + 1)] for room in rooms]
        best = max(
            plan_flow(
                Plan((), tuple(Share(node.id, Span(*edge)) for node, edge in zip(nodes, edges, strict=True))), cluster
            )
            for edges in product(*every)
        )
        passed = plan_flow(max_flow(cluster), cluster)
        assert passed <= best
        found.append(passed / best)
    assert min(found) > 0.7
    assert sum(found) / len(found) > 0.95


def test_whoever_leaves_takes_no_layers() -> None:
    nodes = (Node(id="stays", capacity_layers=8), Node(id="leaves", capacity_layers=8, state=State.DRAINING))
    plan = max_flow(Cluster(layers=8, nodes=nodes))
    assert plan.pipelines == ((Share("stays", Span(0, 8)),),)
    assert plan.unused == ("leaves",)


@pytest.mark.parametrize("count", [8, 24, 64])
def test_mixed_swarms_pass_most_of_what_their_power_allows(count: int) -> None:
    shares, others = [], []
    for seed in range(5):
        cluster = mixed(count, seed)
        plan = max_flow(cluster)
        bound = sum(node.power for node in cluster.nodes) / cluster.layers
        passed = plan_flow(plan, cluster)
        assert passed >= plan_flow(ring(cluster), cluster)
        shares.append(passed / bound)
        others.append(plan_flow(allocate(cluster), cluster) / bound)
    assert max(shares) <= 1.0
    assert sum(shares) >= sum(others)
    assert sum(shares) / len(shares) > {8: 0.85, 24: 0.9, 64: 0.95}[count]
