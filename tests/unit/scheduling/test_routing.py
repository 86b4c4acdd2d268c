"""find_route: known answers."""

import pytest

from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.routing import RouteNeeds, find_route, price

SLOW = Node(id="slow", span=Span(0, 64), tau_s=0.003)
A, B = Node(id="a", span=Span(0, 32), tau_s=0.001), Node(id="b", span=Span(32, 64), tau_s=0.001)
NEAR = Defaults(rtt_s=0.010, client_rtt_s=0.010, uplink_mbps=1000.0)


def test_two_fast_halves_beat_one_slow_whole() -> None:
    cluster = Cluster(layers=64, nodes=(SLOW, A, B), defaults=NEAR, activation_bytes=0)
    route = find_route(cluster, needs=RouteNeeds())
    assert [(stage.peer, stage.span) for stage in route.stages] == [("a", Span(0, 32)), ("b", Span(32, 64))]
    assert route.latency_s == pytest.approx(0.064 + 0.010 / 2 + 0.010)
    assert route.latency_s == pytest.approx(price(cluster, route.stages, RouteNeeds()))


def test_a_span_may_be_entered_in_the_middle() -> None:
    x, y = Node(id="x", span=Span(0, 40), tau_s=0.001), Node(id="y", span=Span(24, 64), tau_s=0.001)
    route = find_route(Cluster(layers=64, nodes=(x, y), defaults=NEAR), needs=RouteNeeds())
    assert route.peers == ("x", "y")
    assert 24 <= route.stages[1].span.start <= 40
