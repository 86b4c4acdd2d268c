"""The published concurrency table: five stages, RTT 0.38 s, no batching."""

from __future__ import annotations

from fractions import Fraction

import pytest
from closed_queue import Chain, simulate

from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.knee import knee
from swarm.scheduling.routing_types import RouteNeeds

RTT_S = Fraction(38, 100)
PUBLISHED = Chain(stages=5, service_s=RTT_S / 5)
"""The published table charges the whole round trip to the stages: a hop occupies its stage as compute does."""


def test_tokens_per_second_grow_with_sessions_up_to_the_number_of_stages() -> None:
    printed = [f"{float(simulate(PUBLISHED, sessions).tokens_per_s):.3f}" for sessions in range(1, 6)]
    assert printed == ["2.632", "5.263", "7.895", "10.526", "13.158"]


@pytest.mark.parametrize("sessions", [5, 6, 8, 13, 20])
def test_beyond_that_they_stay_flat(sessions: int) -> None:
    assert simulate(PUBLISHED, sessions).tokens_per_s == 5 / RTT_S


def test_latency_is_that_of_a_lone_token_until_then_and_the_queue_s_after() -> None:
    latency_ms = {sessions: 1000 * simulate(PUBLISHED, sessions).latency_s for sessions in (1, 3, 5, 10, 20)}
    assert latency_ms == {1: 380, 3: 380, 5: 380, 10: 760, 20: 1520}


@pytest.mark.parametrize("sessions", [1, 2, 4, 5, 7, 20])
@pytest.mark.parametrize("hop_s", [Fraction(0), Fraction(1, 20)])
def test_little_s_law_holds_exactly(sessions: int, hop_s: Fraction) -> None:
    measured = simulate(Chain(stages=5, service_s=Fraction(19, 250), hop_s=hop_s), sessions)
    assert measured.in_system == sessions
    assert measured.tokens_per_s * measured.latency_s == measured.in_system


def test_where_hops_hold_no_stage_the_knee_lies_at_traversal_times_rate() -> None:
    """DESIGN 7: ``C* = T·μ``, for equal unbatched stages ``p + R/t``; the published C = p is the case R = 0."""
    chain = Chain(stages=4, service_s=Fraction(1, 100), hop_s=Fraction(3, 100))
    for sessions in (1, 4, 9, 16):
        assert simulate(chain, sessions).tokens_per_s == sessions / chain.lone_s
    for sessions in (16, 17, 24, 40):
        assert simulate(chain, sessions).tokens_per_s == 1 / chain.service_s
    assert routing_knee(chain) == pytest.approx(16)
    assert routing_knee(PUBLISHED) == pytest.approx(5)


def routing_knee(chain: Chain) -> float:
    """What routing takes for the knee of these stages: each hop is half a round trip, so are the way in and out."""
    nodes = [
        Node(id=f"n{index}", span=Span(index, index + 1), tau_s=float(chain.service_s)) for index in range(chain.stages)
    ]
    cluster = Cluster(
        layers=chain.stages,
        nodes=tuple(nodes),
        activation_bytes=0,
        defaults=Defaults(rtt_s=float(2 * chain.hop_s), client_rtt_s=float(chain.hop_s)),
    )
    return knee(cluster, [(node, 1) for node in nodes], RouteNeeds())
