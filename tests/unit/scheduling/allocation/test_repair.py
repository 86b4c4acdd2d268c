"""After a departure: survivors join up, and who keeps its span does not load anything."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Plan, check_plan
from swarm.scheduling.allocation.repair import keep_spans, keepers
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.allocation.territories import territories
from swarm.scheduling.allocation.throughput import with_spans
from swarm.scheduling.cluster import Cluster, Node


def swarm(*held: tuple[str, tuple[int, int] | None], layers: int = 64, capacity: int = 32) -> Cluster:
    nodes = [Node(id=name, span=None if ends is None else Span(*ends), capacity_layers=capacity) for name, ends in held]
    return Cluster(layers=layers, nodes=tuple(nodes))


def renewed(cluster: Cluster) -> Plan:
    plan = keep_spans(allocate(cluster), cluster)
    check_plan(plan, cluster)
    return plan


def spans_of(plan: Plan) -> list[Span]:
    shares = [*(share for pipeline in plan.pipelines for share in pipeline), *plan.replicas]
    return sorted(share.span for share in shares)


def test_survivors_of_two_broken_pipelines_join_up_as_they_are() -> None:
    """Of a-b and c-d the servers b and c have gone; a and d hold two halves, and nobody loads anything."""
    plan = renewed(swarm(("a", (0, 32)), ("d", (32, 64))))
    assert plan.k == 1
    assert keepers(plan, swarm(("a", (0, 32)), ("d", (32, 64)))) == {"a", "d"}
    reverse = swarm(("a", (32, 64)), ("d", (0, 32)))
    assert keepers(renewed(reverse), reverse) == {"a", "d"}


def test_survivors_with_the_same_half_are_used_at_once_and_one_of_them_moves() -> None:
    cluster = swarm(("a", (0, 32)), ("c", (0, 32)))
    plan = renewed(cluster)
    assert plan.k == 1  # without waiting for a newcomer
    assert len(keepers(plan, cluster)) == 1


def test_survivors_of_two_pipelines_of_three_become_one_and_a_replica() -> None:
    held = (("a", (0, 22)), ("b", (22, 43)), ("e", (22, 43)), ("f", (43, 64)))  # c and d have gone
    cluster = swarm(*held, capacity=22)
    plan = renewed(cluster)
    assert plan.k == 1
    assert {"a", "f"} <= keepers(plan, cluster)
    assert len(keepers(plan, cluster)) == 3  # the other of b and e replicates what it is asked to


def test_a_draining_server_is_not_kept() -> None:
    cluster = swarm(("a", (0, 32)), ("b", (32, 64)), ("c", (32, 64)))
    leaving = replace(cluster.nodes[1], state=State.DRAINING)
    plan = renewed(replace(cluster, nodes=(cluster.nodes[0], leaving, cluster.nodes[2])))
    assert plan.unused == ("b",)
    assert [share.id for share in plan.pipelines[0]] == ["a", "c"]


def test_a_large_server_does_not_stay_where_only_it_can_go_elsewhere() -> None:
    """b holds what a is to hold, but the larger half fits b alone."""
    nodes = (
        Node(id="a", capacity_layers=24, power=1.0, span=None),
        Node(id="b", capacity_layers=40, power=10.0, span=Span(40, 64)),
    )
    cluster = Cluster(layers=64, nodes=nodes)
    plan = renewed(cluster)
    assert {share.id: share.span for share in plan.pipelines[0]} == {"a": Span(40, 64), "b": Span(0, 40)}
    assert keepers(plan, cluster) == set()


def test_a_plan_that_is_carried_out_stays_as_it_is() -> None:
    cluster = swarm(*((f"n{index}", None) for index in range(7)), capacity=25)
    plan = allocate(cluster)
    settled = replace(cluster, nodes=with_spans(cluster, plan))
    assert keep_spans(plan, settled) == plan
    assert keepers(plan, settled) == {node.id for node in cluster.nodes}


@st.composite
def held_clusters(draw: st.DrawFn) -> Cluster:
    """A cluster that carried out a plan, of which some servers left, and some newcomers."""
    layers = draw(st.integers(2, 12))
    row = st.tuples(st.integers(1, 8), st.integers(1, 3), st.sampled_from("xy"))
    drawn = draw(st.lists(row, min_size=1, max_size=8))
    nodes = tuple(
        Node(id=f"n{index}", capacity_layers=capacity, power=float(power), region=region)
        for index, (capacity, power, region) in enumerate(drawn)
    )
    cluster = Cluster(layers=layers, nodes=nodes)
    held = with_spans(cluster, allocate(cluster))
    gone = draw(st.sets(st.sampled_from(sorted(node.id for node in held)), max_size=2))
    new = draw(st.sets(st.sampled_from(sorted(node.id for node in held)), max_size=2))
    left = tuple(replace(node, span=None) if node.id in new else node for node in held if node.id not in gone)
    return replace(cluster, nodes=left)


@given(held_clusters())
@settings(max_examples=200)
def test_exchanges_keep_the_plan_and_never_cost_a_keeper(cluster: Cluster) -> None:
    fresh = allocate(cluster)
    plan = keep_spans(fresh, cluster)
    check_plan(plan, cluster)
    assert spans_of(plan) == spans_of(fresh)
    assert [[share.span for share in pipeline] for pipeline in plan.pipelines] == [
        [share.span for share in pipeline] for pipeline in fresh.pipelines
    ]
    assert len(keepers(plan, cluster)) >= len(keepers(fresh, cluster))
    grounds = [{node.id for node in nodes} for nodes in territories(cluster)]
    assert all(any({share.id for share in line} <= ground for ground in grounds) for line in plan.pipelines)
    backwards = replace(cluster, nodes=cluster.nodes[::-1])
    assert keep_spans(allocate(backwards), backwards) == plan


@given(held_clusters())
@settings(max_examples=100)
def test_as_many_keep_their_spans_as_any_exchange_allows(cluster: Cluster) -> None:
    """Against every way to put the servers of one territory to its places."""
    assume(len(cluster.nodes) <= 6 and len(territories(cluster)) == 1)
    fresh = allocate(cluster)
    places = spans_of(fresh)
    best = 0
    for order in permutations(cluster.nodes, len(places)):
        if all(node.capacity_layers >= len(place) for node, place in zip(order, places, strict=True)):
            best = max(best, sum(node.span == place for node, place in zip(order, places, strict=True)))
    assert len(keepers(keep_spans(fresh, cluster), cluster)) == best
