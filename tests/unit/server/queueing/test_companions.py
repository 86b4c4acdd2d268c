"""When an idle engine waits, told by its own clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.server.queueing.companions import (
    EXPECTED_S,
    GATHER_LIMIT,
    GATHER_SHARE,
    MERGE_LIMIT_S,
    MERGE_SHARE,
    Companions,
)

FORWARD_S = 0.02
RING_S = 0.06


def wait_s(companions: Companions, ready: list[str], now_s: float) -> float:
    """How long it would wait if nobody came, paid for."""
    wait = companions.begin(ready, now_s)
    until_s = max(now_s, companions.until_s(wait, ready, now_s))
    companions.end(wait, until_s)
    return until_s - now_s


def warmed(*sessions: str, rounds: int = 20) -> tuple[Companions, float]:
    """Sessions that computed one after another for a while."""
    companions, now_s = Companions(), 0.0
    for _ in range(rounds):
        for session in sessions:
            companions.begin([session], now_s)
            now_s += RING_S / len(sessions)
            companions.computed([session], FORWARD_S, now_s)
    return companions, now_s


def test_a_lone_session_never_waits() -> None:
    companions, now_s = warmed("a")
    for step in range(100):
        assert wait_s(companions, ["a"], now_s + step * RING_S) == 0


def test_nobody_waits_before_anything_was_measured() -> None:
    assert wait_s(Companions(), ["a"], 0.0) == 0


def test_everybody_here_starts_at_once() -> None:
    companions, now_s = warmed("a", "b")
    assert wait_s(companions, ["b", "a", "newcomer"], now_s) == 0


def test_a_merge_waits_about_one_ring_once_and_then_only_gathers() -> None:
    companions, now_s = warmed("a", "b")
    first = wait_s(companions, ["a"], now_s)
    assert RING_S < first < 1.5 * RING_S
    waits = []
    for _ in range(3):
        now_s += RING_S
        companions.computed(["b"], FORWARD_S, now_s)
        companions.computed(["a"], FORWARD_S, now_s)
        waits.append(wait_s(companions, ["a"], now_s))
    spent = first + sum(wait for wait in waits if wait > RING_S)
    assert spent <= MERGE_LIMIT_S + MERGE_SHARE * now_s
    assert min(waits) == pytest.approx(GATHER_SHARE * FORWARD_S, rel=0.01) or min(waits) > RING_S


def test_gathering_starts_again_with_each_arrival_up_to_its_limit() -> None:
    companions, now_s = warmed("a", "b", "c", "d", "e", rounds=4)
    companions._credit_s = 0.0
    wait = companions.begin(["a"], now_s)
    gather_s = GATHER_SHARE * FORWARD_S
    assert companions.until_s(wait, ["a"], now_s) == pytest.approx(now_s + gather_s)
    wait.arrived_s = now_s + 0.9 * gather_s
    assert companions.until_s(wait, ["a", "b"], now_s) == pytest.approx(now_s + 1.9 * gather_s)
    wait.arrived_s = now_s + 5 * gather_s
    assert companions.until_s(wait, ["a", "b", "c"], now_s) == pytest.approx(now_s + GATHER_LIMIT * gather_s)


def test_who_stayed_away_or_left_is_not_waited_for() -> None:
    companions, now_s = warmed("a", "b")
    companions.forget("b")
    assert wait_s(companions, ["a"], now_s) == 0
    companions, now_s = warmed("a", "b")
    companions.computed(["a"], FORWARD_S, now_s + 2 * EXPECTED_S)
    assert wait_s(companions, ["a"], now_s + 2 * EXPECTED_S) == 0


def test_no_merge_where_a_forward_of_all_takes_much_longer() -> None:
    companions, now_s = warmed("a", "b")
    companions.computed(["a", "b"], 2 * FORWARD_S, now_s)
    assert wait_s(companions, ["a"], now_s) < FORWARD_S


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.0005, 0.3)), min_size=1, max_size=200))
def test_merging_never_spends_more_than_its_credit(steps: list[tuple[str, float]]) -> None:
    """Whatever comes when, all merges together stay within the first credit and a share of the time."""
    companions, now_s, merged_s = Companions(), 0.0, 0.0
    for session, gap_s in steps:
        now_s += gap_s
        wait = companions.begin([session], now_s)
        until_s = max(now_s, companions.until_s(wait, [session], now_s))
        companions.end(wait, until_s)
        if wait.merge_until_s > wait.began_s:
            merged_s += until_s - now_s
        now_s = until_s + FORWARD_S
        companions.computed([session], FORWARD_S, now_s)
    assert merged_s <= MERGE_LIMIT_S + MERGE_SHARE * now_s + 1e-9
