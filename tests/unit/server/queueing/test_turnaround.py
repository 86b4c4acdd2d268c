"""What admission goes by, told by its own clock."""

from __future__ import annotations

import pytest

from swarm.server.queueing.turnaround import ACTIVE_S, FRESH_S, NEW_S, Turnaround

PROBED_S = (0.01, 0.012, 0.016, 0.024)


def went_around(turns: Turnaround, away_s: float, here_s: float, rounds: int = 200, share: float = 0.5) -> float:
    """One session, for so many rounds; when the last has ended."""
    now_s = 0.0
    for _ in range(rounds):
        turns.came_around("s", now_s, now_s + here_s, share)
        now_s += here_s + away_s
    return now_s - away_s


def test_a_round_is_away_and_here() -> None:
    assert Turnaround().rounds is None
    turns = Turnaround()
    went_around(turns, away_s=0.3, here_s=0.05)
    assert turns.rounds is not None
    assert (turns.rounds.away_s, turns.rounds.here_s, turns.rounds.share) == pytest.approx((0.3, 0.05, 0.5))


def test_it_follows_what_changes() -> None:
    turns = Turnaround()
    went_around(turns, away_s=0.3, here_s=0.05)
    went_around(turns, away_s=0.1, here_s=0.15)
    assert turns.rounds is not None
    assert (turns.rounds.away_s, turns.rounds.here_s) == pytest.approx((0.1, 0.15), rel=1e-3)


def test_thinking_is_not_the_way() -> None:
    """Somebody reads for an hour between two questions."""
    turns = Turnaround()
    ended_s = went_around(turns, away_s=0.3, here_s=0.05)
    turns.came_around("s", ended_s + 3600.0, ended_s + 3600.05, 0.5)
    assert turns.rounds is not None
    assert turns.rounds.away_s == pytest.approx(0.3)


def test_who_computed_lately_or_is_new_is_active() -> None:
    turns = Turnaround()
    turns.opened("new", 0.0)
    turns.opened("old", 0.0)
    turns.worked("old", 1.0)
    assert turns.active(1.0) == {"new", "old"}
    assert turns.active(1.1 + ACTIVE_S) == {"new"}
    assert not turns.active(NEW_S)
    turns.worked("old", 20.0)
    turns.forget("old")
    assert not turns.active(20.0)


def test_nothing_is_known_of_a_span_that_nobody_probed() -> None:
    turns = Turnaround()
    turns.computed(1, 0.02, 0.0, ())
    assert turns.times_s((), 0.0) == {}


def test_before_any_forward_the_probe_counts() -> None:
    assert Turnaround().times_s(PROBED_S, 0.0) == dict(zip((1, 2, 4, 8), PROBED_S, strict=True))


def test_forwards_of_a_size_correct_that_size_and_the_others_alike() -> None:
    """Twice as slow at two sessions: the other sizes are taken to be so too, until they are seen."""
    turns = Turnaround()
    for _ in range(100):
        turns.computed(2, 0.024, 0.0, PROBED_S)
    times_s = turns.times_s(PROBED_S, 1.0)
    assert times_s == pytest.approx({1: 0.02, 2: 0.024, 4: 0.032, 8: 0.048}, rel=1e-3)
    for _ in range(100):
        turns.computed(16, 0.060, 10.0, PROBED_S)
    assert turns.times_s(PROBED_S, 10.0)[16] == pytest.approx(0.060)


def test_forwards_of_long_ago_say_nothing() -> None:
    turns = Turnaround()
    turns.computed(16, 0.001, 0.0, PROBED_S)
    assert 16 in turns.times_s(PROBED_S, FRESH_S)
    assert 16 not in turns.times_s(PROBED_S, FRESH_S + 0.1)
