"""When a server stops to accept: checked against what closed rounds of sessions do, not against the formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.scheduling.shedding import (
    FEWEST,
    FIRST_WAIT_S,
    LEAST_WAIT_S,
    MANY_NAMES,
    MARGIN,
    MOST_WAIT_S,
    Allowance,
    Places,
    Rounds,
    knee_of,
    most_sessions,
)

TIMES_S = {1: 0.010, 2: 0.011, 4: 0.013, 8: 0.016}
MU = 8 / 0.016


def settled(stages: int, network_s: float, *, others_queue: bool) -> float:
    """Sessions that equal servers in a row end up with, all of them judging by what they measure themselves.

    Fluid limit: n sessions share mu of the slowest, so a round takes n/mu once that is more than a lone one; what is
    above waits, at all servers alike or at this one alone.
    """
    lone_s, sessions = network_s + stages * TIMES_S[1], 1.0
    for _ in range(10_000):
        waits_s = max(sessions / MU - lone_s, 0.0)
        here_s = TIMES_S[1] + (waits_s / stages if others_queue else waits_s)
        away_s = max(lone_s + waits_s - here_s, 0.0)
        if sessions + 1 > MARGIN * knee_of(TIMES_S, Rounds(away_s, here_s, 1 / stages)):
            break
        sessions += 1
    return sessions / (lone_s * MU)


@given(st.integers(1, 8), st.floats(0.05, 1.0))
def test_equal_servers_stop_at_the_margin(stages: int, network_s: float) -> None:
    """All queue alike: as many as keep 80 %, no matter how long the others' queues make the way."""
    room = 1.0 / ((network_s + stages * TIMES_S[1]) * MU)
    assert MARGIN - 2 * room <= settled(stages, network_s, others_queue=True) <= MARGIN


@given(st.integers(1, 30), st.floats(0.05, 1.0))
def test_a_server_that_is_slow_alone_stops_between_knee_and_margin(stages: int, network_s: float) -> None:
    room = 1.0 / ((network_s + stages * TIMES_S[1]) * MU)
    assert 1.0 - 2 * room <= settled(stages, network_s, others_queue=False) <= MARGIN


def test_longer_chains_settle_too() -> None:
    """Beyond eight equal stages a part of the others' queues is taken for distance: more are accepted, not for ever."""
    assert settled(20, 0.1, others_queue=True) < 2.1


def test_before_anybody_has_come_around() -> None:
    assert knee_of(TIMES_S, None) == pytest.approx(TIMES_S[1] * MU)
    assert knee_of({1: 0.01, 2: 0.03}, None) == 1.0


@given(st.floats(1, 100), st.integers(0, 200), st.integers(1, 20))
def test_a_few_sessions_are_always_welcome(knee: float, has: int, clients: int) -> None:
    assert most_sessions(knee, has=has, clients=clients) >= FEWEST / MARGIN
    assert most_sessions(knee, has=0, clients=clients) >= FEWEST


def test_who_has_many_leaves_a_fifth_to_others() -> None:
    assert most_sessions(40.0, has=49, clients=1) == 50.0
    assert most_sessions(40.0, has=25, clients=2) == 40.0
    assert most_sessions(40.0, has=24, clients=2) == 50.0


# -- how long to wait ---------------------------------------------------------------------------------------------


def test_waits_follow_the_places_that_come_free() -> None:
    """Twenty sessions of ten seconds: one ends every half second, and each who asks gets the next."""
    places = Places()
    assert places.wait_s(0.0, 20) == FIRST_WAIT_S
    places.ended(10.0)
    assert [places.wait_s(100.0, 20) for _ in range(4)] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert places.wait_s(101.0, 20) == pytest.approx(1.5)
    assert places.wait_s(200.0, 20) == pytest.approx(0.5)


@given(
    st.lists(st.floats(0, 1e5), max_size=5), st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1000)), max_size=50)
)
def test_waits_are_bounded(lives_s: list[float], asked: list[tuple[float, int]]) -> None:
    places, now_s = Places(), 0.0
    for life_s in lives_s:
        places.ended(life_s)
    for gap_s, sessions in asked:
        now_s += gap_s
        assert LEAST_WAIT_S <= places.wait_s(now_s, sessions) <= MOST_WAIT_S + 1e-6


# -- allowances ---------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 2), min_size=1, max_size=100))
def test_a_bucket_gives_its_rate_and_its_burst_and_no_more(gaps_s: list[float]) -> None:
    allowance, now_s, given_at = Allowance(per_s=2.0, burst=5), 0.0, []
    for gap_s in gaps_s:
        now_s += gap_s
        wait_s = allowance.take("a", now_s)
        if wait_s == 0:
            given_at.append(now_s)
        else:
            assert allowance.take("a", now_s + wait_s * 0.999) > 0 or wait_s < 1e-6
    for first, began_s in enumerate(given_at):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= 5 + 2.0 * (given_at[last] - began_s) + 1e-6


def test_a_bucket_is_each_ones_own() -> None:
    allowance = Allowance(per_s=1.0, burst=2)
    assert [allowance.take("a", 0.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(1.0)]
    assert allowance.take("b", 0.0) == 0.0
    assert allowance.take("a", 1.0) == 0.0


def test_full_buckets_are_forgotten() -> None:
    allowance = Allowance(per_s=100.0, burst=1)
    for n in range(10 * MANY_NAMES):
        assert allowance.take(f"id {n}", n / 100) == 0.0
    assert len(allowance) <= MANY_NAMES + 1
