"""How many sessions a whole swarm takes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.knee import knee, swarm_knee
from swarm.scheduling.routing_types import RouteNeeds

NEEDS = RouteNeeds(head="remote")


def node(name: str, start: int, end: int, **changes: object) -> Node:
    fields = {"tau_s": 0.01, "step_s": (0.1, 0.11, 0.12, 0.16), "uplink_mbps": 1e6} | changes
    return Node(id=name, span=Span(start, end), **fields)  # type: ignore[arg-type]


def cluster(*nodes: Node, layers: int = 20) -> Cluster:
    return Cluster(layers=layers, nodes=nodes, defaults=Defaults(rtt_s=0.1, client_rtt_s=0.2))


def test_for_one_chain_it_is_the_chains() -> None:
    pair = node("a", 0, 10), node("b", 10, 20)
    chain = [(one, 10) for one in pair]
    assert swarm_knee(cluster(*pair), chain, NEEDS) == pytest.approx(knee(cluster(*pair), chain, NEEDS))


def test_a_second_chain_doubles_it_and_a_second_server_of_some_layers_does_not() -> None:
    pair = node("a", 0, 10), node("b", 10, 20)
    chain = [(one, 10) for one in pair]
    once = swarm_knee(cluster(*pair), chain, NEEDS)
    half = cluster(*pair, node("c", 0, 10))
    assert swarm_knee(half, chain, NEEDS) == pytest.approx(once)
    assert swarm_knee(replace(half, nodes=(*half.nodes, node("d", 10, 20))), chain, NEEDS) == pytest.approx(2 * once)


def test_one_absurd_rate_hides_no_other() -> None:
    pair = node("a", 0, 10), node("b", 10, 20)
    chain = [(one, 10) for one in pair]
    once = swarm_knee(cluster(*pair), chain, NEEDS)
    liar = node("liar", 0, 10, step_s=(1e-300,) * 4)
    assert swarm_knee(cluster(liar, *pair), chain, NEEDS) == pytest.approx(once)


def test_without_step_times_anywhere_there_is_no_limit() -> None:
    pair = node("a", 0, 10, step_s=(), tau_s=0.0), node("b", 10, 20, step_s=(), tau_s=0.0)
    assert math.isinf(swarm_knee(cluster(*pair), [(one, 10) for one in pair], NEEDS))
    spare = node("c", 0, 30), Node(id="d"), node("e", 30, 40)
    assert swarm_knee(cluster(*spare), [(spare[0], 20)], NEEDS) >= 1
