"""What every strategy promises, for all inputs; and the door to them."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import Coordinate, State
from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Plan, Score, check_plan
from swarm.scheduling.allocation.strategies import STRATEGIES, allocate
from swarm.scheduling.allocation.territories import by_region, room, territories
from swarm.scheduling.allocation.throughput import layer_rates, swarm_tokens_per_s, with_spans
from swarm.scheduling.cluster import Cluster, Node

LITERAL = "ring-exo"
"""The published rule breaks capacities: no certificate is promised for it."""
OURS = tuple(name for name in STRATEGIES if name != LITERAL)

NODE = st.builds(
    Node,
    id=st.just(""),
    capacity_layers=st.one_of(st.integers(0, 12), st.integers(0, 4000)),
    power=st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1e6)),
    region=st.sampled_from(["", "", "north", "south"]),
    state=st.sampled_from([State.ONLINE, State.ONLINE, State.ONLINE, *State]),
    coordinate=st.none() | st.builds(Coordinate, st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1)),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    nodes = [replace(node, id=f"n{index:02d}") for index, node in enumerate(draw(st.lists(NODE, max_size=14)))]
    if draw(st.booleans()):
        nodes = [replace(node, region="") for node in nodes]  # so that coordinates count
    ids = [node.id for node in nodes]
    rtt_s: dict[str, dict[str, float]] = {}
    if ids:
        pairs = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids), st.floats(0, 1)), max_size=10))
        for a, b, seconds in pairs:
            rtt_s.setdefault(a, {})[b] = seconds
    return Cluster(layers=draw(st.integers(1, 40)), nodes=tuple(nodes), rtt_s=rtt_s)


def usable(cluster: Cluster) -> list[Node]:
    return [node for node in cluster.nodes if node.state not in (State.DRAINING, State.OFFLINE)]


@pytest.mark.parametrize("strategy", OURS)
@given(cluster=clusters(), score=st.sampled_from(get_args(Score)))
@settings(max_examples=80)
def test_every_plan_keeps_the_promises(strategy: str, cluster: Cluster, score: Score) -> None:
    plan = allocate(cluster, strategy=strategy, score=score)
    check_plan(plan, cluster)
    able = [node for node in usable(cluster) if node.capacity_layers]
    placed = {share.id for pipeline in plan.pipelines for share in pipeline} | {share.id for share in plan.replicas}
    assert placed <= {node.id for node in able}
    assert all(share.span.end <= cluster.layers for share in plan.replicas)
    assert plan.score == dict(plan.scores)[score]
    assert dict(plan.scores)["k2_over_s"] == (plan.k**2 / plan.stages if plan.k else 0.0)
    # A pipeline is found if the capacities allow one, inside a region if some region can hold the model.
    assert (plan.k > 0) == (room(able) >= cluster.layers)
    regions = by_region(able)
    if any(room(nodes) >= cluster.layers for nodes in regions):
        homes = [{node.id for node in nodes} for nodes in regions]
        for pipeline in plan.pipelines:
            assert any({share.id for share in pipeline} <= home for home in homes)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(cluster=clusters(), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_the_plan_is_the_same_whatever_the_order_of_nodes_and_their_spans(
    strategy: str, cluster: Cluster, seed: int
) -> None:
    held = (replace(node, span=Span(0, 1)) for node in Random(seed).sample(cluster.nodes, len(cluster.nodes)))
    other = replace(cluster, nodes=tuple(held))
    for score in get_args(Score):
        plan = allocate(cluster, strategy=strategy, score=score)
        assert allocate(other, strategy=strategy, score=score) == plan


def test_greedy_takes_the_largest_first_and_completes_with_the_smallest_that_does() -> None:
    capacities = (40, 40, 20, 20, 10, 10)
    nodes = tuple(Node(id=f"n{index}", capacity_layers=capacity) for index, capacity in enumerate(capacities))
    plan = allocate(Cluster(layers=70, nodes=nodes), strategy="greedy")
    assert [[share.id for share in pipeline] for pipeline in plan.pipelines] == [["n0", "n1"]]
    assert plan.gap == "1 of at most 2 pipelines"
    smallest = allocate(Cluster(layers=50, nodes=nodes), strategy="greedy")
    assert [[share.id for share in pipeline] for pipeline in smallest.pipelines] == [["n0", "n5"], ["n1", "n4"]]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    cluster = Cluster(layers=4, nodes=())
    with pytest.raises(ConfigError, match="parallax, greedy, ring, ring-exo, max-flow"):
        allocate(cluster, strategy="best")
    with pytest.raises(ConfigError, match="k2_over_s or paper"):
        allocate(cluster, score="best")  # type: ignore[arg-type]


def test_an_empty_cluster_has_an_empty_plan() -> None:
    for strategy in STRATEGIES:
        plan = allocate(Cluster(layers=4, nodes=()), strategy=strategy)
        assert plan == Plan(pipelines=(), scores=(("k2_over_s", 0.0), ("paper", 0.0)))


def test_territories_are_regions_then_clusters_of_coordinates_then_everybody() -> None:
    def node(name: str, region: str = "", x_s: float | None = None, capacity: int = 10) -> Node:
        place = None if x_s is None else Coordinate(x_s, 0.0, 0.5, 0.1)
        return Node(id=name, region=region, coordinate=place, capacity_layers=capacity)

    def names(*nodes: Node, layers: int = 10) -> list[list[str]]:
        return [[node.id for node in ground] for ground in territories(Cluster(layers=layers, nodes=nodes))]

    assert names(node("a", "west"), node("b", "east", 0.0), node("c", "west", 9.0)) == [["b"], ["a", "c"]]
    near = (node("a", x_s=0.0), node("b", x_s=0.019), node("c", x_s=0.2), node("d", x_s=-0.01), node("e"))
    assert names(*near) == [["a", "b", "d", "e"], ["c"]]
    assert names(*near, layers=41) == [["a", "b", "c", "d", "e"]]
    assert names(node("a"), node("b", capacity=0)) == [["a"]]


def test_rates_add_up_over_holders_and_the_weakest_layer_counts() -> None:
    nodes = [
        Node(id="a", span=Span(0, 2), power=10.0),
        Node(id="b", span=Span(1, 4), power=6.0),
        Node(id="c", span=Span(0, 4), power=100.0, state=State.DRAINING),
        Node(id="d", power=100.0),
        Node(id="f", span=Span(0, 4), power=100.0, state=State.JOINING),
        Node(id="e", span=Span(3, 9), power=6.0),  # of a larger model: the part beyond this one is cut off
    ]
    assert layer_rates(nodes, 4).tolist() == [5.0, 7.0, 2.0, 3.0]
    assert swarm_tokens_per_s(nodes, 4) == 2.0
    assert swarm_tokens_per_s(nodes[:1], 4) == 0.0
    assert swarm_tokens_per_s([], 4) == 0.0


def test_a_weak_node_is_not_lost_beside_a_strong_one_elsewhere() -> None:
    strong = Node(id="a", span=Span(0, 2), power=2e17)
    weak = Node(id="b", span=Span(1, 4), power=3.0)
    assert layer_rates((strong, weak), 4).tolist() == [1e17, 1e17 + 1, 1.0, 1.0]


@given(cluster=clusters())
def test_a_plan_with_a_pipeline_serves_and_one_without_does_not_by_the_rates(cluster: Cluster) -> None:
    nodes = tuple(replace(node, power=node.power + 1.0) for node in cluster.nodes)
    cluster = replace(cluster, nodes=nodes)
    plan = allocate(cluster)
    planned = with_spans(cluster, plan)
    served = [
        sum(node.power / len(node.span) for node in planned if node.span and node.span.start <= layer < node.span.end)
        for layer in range(cluster.layers)
    ]
    assert layer_rates(planned, cluster.layers) == pytest.approx(served)
    assert swarm_tokens_per_s(planned, cluster.layers) == pytest.approx(min(served))
