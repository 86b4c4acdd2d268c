"""Memory-weighted rings: the repaired one, and the published rule to the letter."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Plan, Share, check_plan
from swarm.scheduling.allocation.ring import ring, ring_exo
from swarm.scheduling.cluster import Cluster, Node


def cluster_of(*capacities: int, layers: int, regions: str = "") -> Cluster:
    """Nodes a, b, c, … of these capacities, each in the region of one letter (or in none)."""
    names = regions.ljust(len(capacities)).replace(" ", "-")
    nodes = [
        Node(id=chr(97 + index), capacity_layers=capacity, region=names[index].strip("-"))
        for index, capacity in enumerate(capacities)
    ]
    return Cluster(layers=layers, nodes=tuple(nodes))


def counts(plan: Plan) -> list[dict[str, int]]:
    return [{share.id: len(share.span) for share in pipeline} for pipeline in plan.pipelines]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    layers = draw(st.integers(1, 40))
    node = st.tuples(st.integers(0, 50), st.sampled_from(["", "north", "south"]), st.sampled_from(State))
    drawn = draw(st.lists(node, max_size=12))
    nodes = [
        Node(id=f"n{index}", capacity_layers=capacity, power=1.0 + index, region=region, state=state)
        for index, (capacity, region, state) in enumerate(drawn)
    ]
    return Cluster(layers=layers, nodes=tuple(nodes))


def test_shares_are_proportional_to_memory() -> None:
    assert counts(ring(cluster_of(40, 40, 20, 20, 10, 10, layers=70))) == [
        {"a": 20, "b": 20, "c": 10, "d": 10, "e": 5, "f": 5}
    ]


def test_rounding_up_never_passes_a_capacity_where_the_published_rule_does() -> None:
    tight = cluster_of(5, 5, 5, 2, layers=16)  # quotas 4.71, 4.71, 4.71, 1.88
    assert counts(ring(tight)) == [{"a": 5, "b": 5, "c": 4, "d": 2}]
    check_plan(ring(tight), tight)
    assert counts(ring_exo(tight)) == [{"a": 5, "b": 5, "c": 5, "d": 1}]
    broken = cluster_of(3, 3, 3, 3, layers=10)  # quotas 2.5, rounded to even: 2, and the last takes 4
    assert counts(ring(broken)) == [{"a": 3, "b": 3, "c": 2, "d": 2}]
    published = ring_exo(broken)
    assert counts(published) == [{"a": 2, "b": 2, "c": 2, "d": 4}]
    assert published.gap == "d holds 4 layers and has room for 3"


def test_the_published_rule_hands_out_more_layers_than_there_are() -> None:
    crowd = cluster_of(*[1] * 8, layers=6)
    published = ring_exo(crowd)
    assert published.gap == "the rule hands out 7 of 6 layers before the last node"
    assert published.pipelines[0][-1] == Share("f", Span(5, 6))
    assert published.unused == ("g", "h")
    assert ring(crowd).stages == 6


def test_a_region_that_can_hold_the_model_gets_its_own_ring() -> None:
    cluster = cluster_of(8, 8, 6, 6, 3, layers=12, regions="eewwn")
    plan = ring(cluster)
    assert [[share.id for share in pipeline] for pipeline in plan.pipelines] == [["a", "b"], ["c", "d"]]
    assert [share.id for share in plan.replicas] == ["e"]
    together = ring(cluster_of(8, 6, 3, layers=12, regions="ewn"))
    assert [[share.id for share in pipeline] for pipeline in together.pipelines] == [["a", "b", "c"]]


def test_the_gap_says_what_a_ring_gives_away() -> None:
    assert ring(cluster_of(10, 10, 10, layers=10)).gap == "one ring a region: 1 of at most 3 pipelines"
    assert ring(cluster_of(10, 9, layers=10)).gap == ""


@given(clusters())
def test_more_memory_never_means_fewer_layers(cluster: Cluster) -> None:
    capacity = {node.id: node.capacity_layers for node in cluster.nodes}
    for pipeline in ring(cluster).pipelines:
        for one, other in pairwise(sorted(pipeline, key=lambda share: -capacity[share.id])):
            assert len(one.span) >= len(other.span) or capacity[one.id] == capacity[other.id]


@given(clusters())
def test_the_published_rule_does_not_see_the_order_of_nodes(cluster: Cluster) -> None:
    assert ring_exo(replace(cluster, nodes=cluster.nodes[::-1])) == ring_exo(cluster)


@given(clusters())
def test_the_published_rule_tiles_the_model_and_owns_up(cluster: Cluster) -> None:
    plan = ring_exo(cluster)
    capacity = {node.id: node.capacity_layers for node in cluster.nodes}
    for pipeline in plan.pipelines:
        cuts = [0, *(share.span.end for share in pipeline)]
        assert [share.span.start for share in pipeline] == cuts[:-1]
        assert cuts[-1] == cluster.layers
        for share in pipeline:
            assert (f"{share.id} holds" in plan.gap) == (len(share.span) > capacity[share.id])
