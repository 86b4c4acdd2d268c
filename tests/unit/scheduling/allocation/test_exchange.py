"""Exchanges between pipelines: what they keep, and that no single one is left that helps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.scheduling.allocation.exchange import exchanged, matched, pipeline_rate
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.allocation.throughput import swarm_tokens_per_s, with_spans
from swarm.scheduling.allocation.waterfill import water_fill
from swarm.scheduling.cluster import Cluster, Node

LAYERS = 12
POWERS = st.sampled_from([0.0, 1.0, 3.0, 10.0, 0.1, 1e-300, 1e300])


@st.composite
def pipelines(draw: st.DrawFn, largest: int = 3) -> tuple[list[list[Node]], list[Node]]:
    """Groups that can each hold the model, and spares."""
    names = (f"n{index:02d}" for index in itertools.count())
    groups = []
    for _ in range(draw(st.integers(1, largest))):
        group: list[Node] = []
        while sum(node.capacity_layers for node in group) < LAYERS:
            group.append(Node(id=next(names), capacity_layers=draw(st.integers(2, LAYERS)), power=draw(POWERS)))
        groups.append(group)
    sizes = draw(st.lists(st.integers(1, LAYERS), max_size=2))
    return groups, [Node(id=next(names), capacity_layers=size, power=draw(POWERS)) for size in sizes]


def total(groups: list[list[Node]]) -> float:
    return sum(pipeline_rate(group, LAYERS) for group in groups)


@pytest.mark.parametrize(
    ("servers", "rate"),
    [
        ([(12, 6.0)], 0.5),
        ([(12, 6.0), (12, 18.0)], 2.0),  # 3 layers and 9
        ([(12, 6.0), (4, 18.0)], 0.75),  # the fast one is full with 4, so 8 are left
        ([(6, 1.0), (6, 1e300)], 1 / 6),
        ([(12, 1.0), (6, 1e-300)], 1 / 12),
        ([(6, 1.0), (6, 0.0)], 0.0),  # the one without power is needed
        ([(12, 1.0), (6, 0.0)], 1 / 12),
        ([(4, 3.0), (8, 6.0)], 0.75),  # both just full
    ],
)
def test_the_rate_of_a_pipeline_is_its_water_level(servers: list[tuple[int, float]], rate: float) -> None:
    group = [Node(id=f"n{index}", capacity_layers=size, power=power) for index, (size, power) in enumerate(servers)]
    assert pipeline_rate(group, LAYERS) == pytest.approx(rate)


@given(pipelines())
def test_whole_layers_are_shared_to_within_one_layer_of_that_rate(case: tuple[list[list[Node]], list[Node]]) -> None:
    for group in case[0]:
        shares = water_fill([node.capacity_layers for node in group], [node.power for node in group], LAYERS)
        if (rate := pipeline_rate(group, LAYERS)) > 0:
            for node, share in zip(group, shares, strict=True):
                assert share - 1 < node.power / rate * (1 + 1e-9)


@given(pipelines())
@settings(max_examples=200)
def test_exchanges_keep_sizes_and_capacities_and_never_cost_throughput(
    case: tuple[list[list[Node]], list[Node]],
) -> None:
    groups, spare = case
    strong = matched(groups, LAYERS)
    best = exchanged(strong, spare, LAYERS)
    for before, after in ((groups, strong), (strong, best)):
        assert [len(group) for group in after] == [len(group) for group in before]
        assert all(sum(node.capacity_layers for node in group) >= LAYERS for group in after)
        assert total(after) >= total(before) * (1 - 1e-12)
    assert sorted(node.id for group in strong for node in group) == sorted(
        node.id for group in groups for node in group
    )
    used = [node.id for group in best for node in group]
    assert len(set(used)) == len(used)
    assert set(used) <= {node.id for group in [*groups, spare] for node in group}


@given(pipelines(largest=2))
def test_no_single_exchange_is_left_that_helps(case: tuple[list[list[Node]], list[Node]]) -> None:
    groups, spare = case
    best = exchanged(groups, spare, LAYERS)
    used = {node.id for group in best for node in group}
    rest = [node for group in [*groups, spare] for node in group if node.id not in used]
    lines = [*best, rest]
    for a, b in itertools.combinations(range(len(lines)), 2):
        for i, j in itertools.product(range(len(lines[a])), range(len(lines[b]))):
            trial = [list(line) for line in lines]
            trial[a][i], trial[b][j] = lines[b][j], lines[a][i]
            if all(sum(node.capacity_layers for node in group) >= LAYERS for group in trial[:-1]):
                assert total(trial[:-1]) <= total(best) * (1 + 1e-6)


def test_the_strong_stand_together_and_a_strong_spare_takes_the_place_of_a_weak_one() -> None:
    powers = (9.0, 1.0, 9.0, 1.0, 5.0)
    nodes = tuple(Node(id=f"n{index}", capacity_layers=6, power=power) for index, power in enumerate(powers))
    cluster = Cluster(layers=12, nodes=nodes)
    plan = allocate(cluster)
    assert [{share.id for share in pipeline} for pipeline in plan.pipelines] == [{"n0", "n2"}, {"n4", "n1"}]
    assert swarm_tokens_per_s(with_spans(cluster, plan), 12) == pytest.approx(9 / 6 + 1 / 6 + 1 / 6)  # n3 beside n1
