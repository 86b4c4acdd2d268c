"""The default strategy: known answers, exhaustive search, and large swarms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import pytest
from groups_by_hand import most_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import Coordinate, State
from swarm.core.spans import Span
from swarm.scheduling.allocation.covering import least_servers, tightest
from swarm.scheduling.allocation.plan import Share, check_plan
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.cluster import Cluster, Defaults, Node


def cluster_of(
    capacities: Sequence[int], layers: int, *, regions: str = "", rtt_s: float = 0.3, power: float = 1.0
) -> Cluster:
    """Nodes of these capacities and of equal power, the i-th in the region named by the i-th letter."""
    nodes = [
        Node(id=f"n{index:04d}", capacity_layers=capacity, power=power, region=regions[index : index + 1])
        for index, capacity in enumerate(capacities)
    ]
    return Cluster(layers=layers, nodes=tuple(nodes), defaults=Defaults(rtt_s=rtt_s))


def lengths(pipeline: Sequence[Share]) -> list[int]:
    return sorted((len(share.span) for share in pipeline), reverse=True)


def test_the_published_example_has_two_pipelines() -> None:
    plan = allocate(cluster_of((40, 40, 20, 20, 10, 10), 70))
    assert [lengths(pipeline) for pipeline in plan.pipelines] == [[40, 20, 10], [40, 20, 10]]
    assert (plan.k, plan.stages, plan.score_name, plan.gap) == (2, 6, "k2_over_s", "")
    assert plan.score == pytest.approx(0.667, abs=5e-4)
    one = allocate(cluster_of((40, 40), 70))
    assert (one.k, one.stages, one.score) == (1, 2, 0.5)


@pytest.mark.parametrize(("ratio", "pipelines"), [(0.0, 2), (0.5, 2), (0.99, 2), (1.01, 1), (2.0, 1), (50.0, 1)])
def test_the_papers_score_takes_two_pipelines_while_hops_are_faster_than_a_traversal(
    ratio: float, pipelines: int
) -> None:
    """T = 70 layers / 35 layers per second = 2 s; r is half a round trip."""
    plan = allocate(cluster_of((40, 40, 20, 20, 10, 10), 70, power=35.0, rtt_s=2 * 2.0 * ratio), score="paper")
    assert plan.k == pipelines
    assert plan.score == pytest.approx(plan.k - plan.stages / plan.k * ratio)


@pytest.mark.parametrize(
    ("capacities", "pipelines", "stages"),
    [
        ((9, 22, 22, 13), 1, 4),
        ((22, 34, 26, 17, 20, 8, 7), 2, 7),
        ((29, 27, 26, 22, 21, 20), 2, 6),
        ((64,), 1, 1),
        ((63,), 0, 0),
        ((4096, 4096, 1), 2, 2),
        ((1,) * 64, 1, 64),
    ],
)
def test_known_numbers_of_pipelines(capacities: tuple[int, ...], pipelines: int, stages: int) -> None:
    cluster = cluster_of(capacities, 64)
    plan = allocate(cluster)
    check_plan(plan, cluster)
    assert (plan.k, plan.stages, plan.gap) == (pipelines, stages, "")


def fewest_servers(capacities: tuple[int, ...], layers: int) -> dict[int, int]:
    """s*(k) by k, over every set of servers and every way to group it."""
    found = {0: 0}
    for size in range(1, len(capacities) + 1):
        for chosen in itertools.combinations(sorted(capacities), size):
            found.setdefault(most_groups(chosen, layers), size)
    return found


@given(
    st.integers(1, 40).flatmap(
        lambda layers: st.tuples(
            st.lists(st.tuples(st.integers(0, layers + 2), st.sampled_from("xy")), min_size=1, max_size=8),
            st.just(layers),
        )
    ),
    st.floats(0, 3),
)
@settings(max_examples=150)
def test_up_to_eight_servers_k_and_stages_are_the_best_there_are(
    case: tuple[list[tuple[int, str]], int], ratio: float
) -> None:
    """Every way to build pipelines inside the regions (of both together if neither can), by exhaustive search."""
    drawn, layers = case
    grounds = [tuple(capacity for capacity, home in drawn if home == region) for region in "xy"]
    if all(sum(ground) < layers for ground in grounds):
        grounds = [tuple(capacity for capacity, _ in drawn)]
    stages: dict[int, int] = {}
    for parts in itertools.product(*(fewest_servers(ground, layers).items() for ground in grounds)):
        k, used = sum(k for k, _ in parts), sum(used for _, used in parts)
        stages[k] = min(used, stages.get(k, used))
    # All hops take 1 s one way; T is layers / power, so r / T is the ratio.
    cluster = cluster_of(
        [capacity for capacity, _ in drawn],
        layers,
        regions="".join(home for _, home in drawn),
        rtt_s=2.0,
        power=ratio * layers,
    )
    plan = allocate(cluster)
    best = max((k * k / used, k) for k, used in stages.items() if k) if len(stages) > 1 else (0.0, 0)
    assert (plan.score, plan.k, plan.stages) == (best[0], best[1], stages[best[1]])
    assert plan.gap == ""
    # The median hop is known only where two servers share a territory.
    pairs = any(sum(capacity > 0 for capacity in ground) > 1 for ground in grounds)
    papers = allocate(cluster, score="paper")
    hop = ratio if pairs else 0.0
    values = {k: k - used / k * hop for k, used in stages.items() if k}
    assert papers.score == pytest.approx(max(values.values(), default=0.0))
    assert papers.stages == stages[papers.k]


def test_r_is_the_median_one_way_time_between_servers_of_one_region() -> None:
    nodes = [
        Node(id=name, capacity_layers=4, power=20.0, region=region)
        for name, region in (("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"))
    ]
    rtt_s = {"a": {"b": 0.1, "c": 0.2, "d": 9.0}, "c": {"b": 0.6}}
    plan = allocate(Cluster(layers=10, nodes=tuple(nodes), rtt_s=rtt_s), score="paper")
    # r = 0.1 s, T = 10 / 20 s, three servers; d cannot be used, and its link to a is none of the region's.
    assert (plan.k, plan.stages) == (1, 3)
    assert plan.score == pytest.approx(1 - 3 * 0.1 / 0.5)


@pytest.mark.parametrize("servers", [256, 1024])
@pytest.mark.parametrize("seed", range(3))
def test_large_mixed_swarms_build_nearly_all_pipelines(servers: int, seed: int) -> None:
    dice = Random(seed)
    capacities = [dice.randint(8, 34) for _ in range(servers)]
    cluster = cluster_of(capacities, 64)
    for score in ("k2_over_s", "paper"):
        plan = allocate(cluster, score=score)
        check_plan(plan, cluster)
        assert plan.k >= 0.97 * (sum(capacities) // 64)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=8), st.integers(64, 160), st.integers(64, 70), st.integers(0, 99)
)
@settings(max_examples=60)
def test_many_small_capacities_build_95_percent_or_provably_all(
    sizes: list[int], servers: int, layers: int, seed: int
) -> None:
    capacities = sorted(Random(seed).choices(sizes, k=servers), reverse=True)
    plan = allocate(cluster_of(capacities, layers))
    possible = len(least_servers(capacities, tightest(capacities, layers))) - 1
    assert plan.k >= min(possible, math.floor(0.95 * sum(capacities) / layers))


def test_what_cannot_add_up_is_no_gap_and_what_may_be_missing_is_told() -> None:
    sevens = allocate(cluster_of([7] * 640, 64))
    assert (sevens.k, sevens.gap) == (64, "")  # 70 layers for each 64, not the 68 that 95 % of the sum would be
    # No two of 31 layers make 64, and nobody stays for a third of them: the sum alone cannot show it.
    loose = allocate(cluster_of([33] + [31] * 11, 64))
    assert (loose.k, loose.gap) == (4, "4 of at most 5 pipelines (80.0 %)")


def test_pipelines_stay_in_their_region_although_a_mixed_one_were_more() -> None:
    plan = allocate(cluster_of((40, 30, 50, 20), 70, regions="xxyy"))
    assert sorted(sorted(share.id for share in pipeline) for pipeline in plan.pipelines) == [
        ["n0000", "n0001"],
        ["n0002", "n0003"],
    ]
    split = allocate(cluster_of((40, 20, 50, 15), 70, regions="xxyy"))
    assert split.k == 1  # neither region can: one of both
    assert {share.id for share in split.pipelines[0]} == {"n0000", "n0002"}


def test_left_over_servers_replicate_the_weakest_layers_of_their_own_region() -> None:
    nodes = (
        Node(id="a", capacity_layers=10, power=100.0, region="x"),
        Node(id="b", capacity_layers=5, power=50.0, region="y"),
        Node(id="c", capacity_layers=5, power=5.0, region="y"),
        Node(id="d", capacity_layers=2, power=7.0, region="y"),
        Node(id="e", capacity_layers=1, power=1.0, region="z"),
    )
    plan = allocate(Cluster(layers=10, nodes=nodes))
    (thin,) = (share.span for pipeline in plan.pipelines for share in pipeline if share.id == "c")
    spans = {share.id: share.span for share in plan.replicas}
    assert thin.covers(spans["d"])
    assert thin.covers(spans["e"])  # no pipeline in z: where the whole swarm is weakest
    assert spans["e"].start not in range(spans["d"].start, spans["d"].end)


def test_without_a_pipeline_servers_cover_as_much_as_they_can() -> None:
    plan = allocate(cluster_of((3, 4, 2), 12))
    assert (plan.k, plan.score) == (0, 0.0)
    assert sorted(share.span for share in plan.replicas) == [Span(0, 4), Span(4, 7), Span(7, 9)]


def test_neighbours_in_the_network_stand_next_to_one_another() -> None:
    places = {"a": 0.010, "b": 0.0, "c": 0.015, "d": 0.005}
    nodes = tuple(
        Node(id=name, capacity_layers=5, coordinate=Coordinate(x_s, 0.0, 0.001, 0.0)) for name, x_s in places.items()
    )
    (pipeline,) = allocate(Cluster(layers=20, nodes=nodes)).pipelines
    assert [share.id for share in pipeline] in (["b", "d", "a", "c"], ["c", "a", "d", "b"])


def test_an_impossible_server_is_a_spare() -> None:
    """A server without power takes layers only where it must, and else replicates."""
    nodes = (Node(id="a", capacity_layers=6, power=1.0), Node(id="b", capacity_layers=6, power=0.0))
    together = allocate(Cluster(layers=8, nodes=nodes))
    assert {share.id: len(share.span) for share in together.pipelines[0]} == {"a": 6, "b": 2}
    alone = allocate(Cluster(layers=6, nodes=nodes))
    assert [[share.id for share in pipeline] for pipeline in alone.pipelines] == [["a"], ["b"]]


def test_servers_that_leave_or_hold_nothing_are_unused() -> None:
    nodes = (
        *cluster_of((8, 0), 8).nodes,
        Node(id="x", capacity_layers=8, state=State.DRAINING),
        Node(id="y", capacity_layers=8, state=State.OFFLINE),
        Node(id="z", capacity_layers=8, state=State.JOINING),
    )
    plan = allocate(Cluster(layers=8, nodes=nodes))
    assert plan.k == 2
    assert plan.unused == ("n0001", "x", "y")
