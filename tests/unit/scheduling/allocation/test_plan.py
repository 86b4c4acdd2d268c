"""The certificate of a plan names what does not hold."""

from __future__ import annotations

import pytest

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Plan, Share, by_size, check_plan
from swarm.scheduling.cluster import Cluster, Node

CLUSTER = Cluster(layers=8, nodes=tuple(Node(id=name, capacity_layers=6) for name in "abc"))


def line(*shares: tuple[str, int, int]) -> tuple[Share, ...]:
    return tuple(Share(name, Span(start, end)) for name, start, end in shares)


GOOD = Plan(pipelines=(line(("a", 0, 4), ("b", 4, 8)),), replicas=line(("c", 2, 8)))


def test_a_plan_that_holds_passes_and_counts_its_parts() -> None:
    check_plan(GOOD, CLUSTER)
    assert (GOOD.k, GOOD.stages) == (1, 2)
    assert [GOOD.span_of(name) for name in "abcd"] == [Span(0, 4), Span(4, 8), Span(2, 8), None]


@pytest.mark.parametrize(
    ("plan", "what"),
    [
        (Plan(pipelines=(line(("a", 0, 4), ("b", 5, 8)),), unused=("c",)), "pipeline 0 has a seam at layer 4"),
        (Plan(pipelines=(line(("a", 0, 4), ("b", 3, 8)),), unused=("c",)), "pipeline 0 has a seam at layer 4"),
        (Plan(pipelines=(line(("a", 0, 4), ("b", 4, 7)),), unused=("c",)), "pipeline 0 ends at layer 7 of 8"),
        (Plan(pipelines=(line(("a", 0, 7), ("b", 7, 8)),), unused=("c",)), "node a holds 7 layers and has room for 6"),
        (Plan(pipelines=(), replicas=line(("a", 6, 9)), unused=("b", "c")), "outside the model"),
        (Plan(pipelines=(), replicas=line(("d", 0, 2)), unused=("a", "b", "c")), "there is no node d"),
        (Plan(pipelines=(line(("a", 0, 4), ("a", 4, 8)),), unused=("b", "c")), "stands in two places"),
        (Plan(pipelines=(line(("a", 0, 4), ("b", 4, 8)),)), "or in none"),
        (Plan(pipelines=(line(("a", 0, 4), ("b", 4, 8)),), unused=("b", "c")), "stands in two places"),
    ],
)
def test_what_does_not_hold_is_named(plan: Plan, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_plan(plan, CLUSTER)


def test_the_largest_come_first_whatever_their_order() -> None:
    nodes = [
        Node(id="d", capacity_layers=5, power=1.0),
        Node(id="b", capacity_layers=9, power=1.0),
        Node(id="c", capacity_layers=5, power=1.0),
        Node(id="a", capacity_layers=5, power=2.0),
    ]
    assert [node.id for node in by_size(nodes)] == ["b", "a", "c", "d"]
    assert by_size(nodes[::-1]) == by_size(nodes)
