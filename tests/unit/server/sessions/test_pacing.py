"""What a client is told of its steps' time at a server: means and ages, from times that come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.server.sessions.pacing import Paces
from swarm.wire.messages import Pace


def test_no_work_is_not_told() -> None:
    paces = Paces()
    assert paces.pace(None) is None
    paces.left(0.5, decode=True)
    assert paces.pace(None) == Pace(0.5, 0.0)
    assert paces.pace(None) is None, "once"


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1), st.none() | st.floats(0, 100))
def test_the_mean_is_over_decode_steps_since_the_last_word(
    steps: list[tuple[float, bool]], held_s: float | None
) -> None:
    paces = Paces()
    paces.left(1000.0, decode=True)
    paces.pace(None)
    for took_s, decode in steps:
        paces.left(took_s, decode=decode)
    decoded = [took_s for took_s, decode in steps if decode]
    pace = paces.pace(held_s)
    assert pace is not None
    assert pace.held_s == (held_s or 0.0)
    assert pace.step_s == (pytest.approx(sum(decoded) / len(decoded)) if decoded else None)


def test_a_step_that_is_stuck_is_told_again_and_again() -> None:
    paces = Paces()
    assert [paces.pace(held_s) for held_s in (0.7, 1.7, 2.7)] == [Pace(None, 0.7), Pace(None, 1.7), Pace(None, 2.7)]


def test_what_no_message_can_say_is_cut_to_its_bound() -> None:
    """A step stuck for hours, after a laptop slept."""
    paces = Paces()
    paces.left(1e6, decode=True)
    assert paces.pace(1e6) == Pace(3600.0, 3600.0)
