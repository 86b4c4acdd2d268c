"""The published allocation check, through the real functions."""

from __future__ import annotations

import pytest

from swarm.scheduling.allocation.covering import exact_covers
from swarm.scheduling.allocation.plan import check_plan
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.allocation.waterfill import water_fill
from swarm.scheduling.cluster import Cluster, Node

CAPACITIES, LAYERS = (40, 40, 20, 20, 10, 10), 70


def test_fewest_servers_of_one_two_and_three_pipelines() -> None:
    covers = exact_covers(CAPACITIES, LAYERS)
    assert {k: sum(map(len, groups)) for k, groups in enumerate(covers)} == {0: 0, 1: 2, 2: 6}
    assert sum(CAPACITIES) // LAYERS == 2  # three pipelines would need 210 layers of 140
    for groups in covers:
        assert all(sum(CAPACITIES[index] for index in group) >= LAYERS for group in groups)


def test_two_pipelines_score_better_than_one() -> None:
    nodes = tuple(Node(id=f"n{index}", capacity_layers=capacity) for index, capacity in enumerate(CAPACITIES))
    cluster = Cluster(layers=LAYERS, nodes=nodes)
    plan = allocate(cluster)
    check_plan(plan, cluster)
    assert (plan.k, plan.stages) == (2, 6)
    assert plan.score == pytest.approx(2 * 2 / 6)  # one pipeline of two servers: 0.5
    capacity = {node.id: node.capacity_layers for node in nodes}
    assert [sorted(capacity[share.id] for share in pipeline) for pipeline in plan.pipelines] == [[10, 20, 40]] * 2


def test_layers_by_water_filling() -> None:
    assert water_fill([24, 16, 8], [100.0, 50.0, 25.0], 30) == [17, 9, 4]
    assert water_fill([5, 100, 100], [1.0, 1.0, 1.0], 90) == [5, 43, 42]
