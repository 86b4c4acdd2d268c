"""Exponential averages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.smoothing import smoothed

ROUNDING = 1e-6
figures = st.floats(0, 1e6)


@given(st.lists(figures, min_size=1, max_size=20), st.floats(0, 1))
def test_it_stays_among_what_was_measured(measured: list[float], weight: float) -> None:
    average = None
    for new in measured:
        average = smoothed(average, new, weight)
    assert average is not None
    assert min(measured) - ROUNDING <= average <= max(measured) + ROUNDING


@given(figures, figures, st.floats(0, 0.9), st.integers(1, 50))
def test_what_was_before_fades_by_the_weight(before: float, new: float, weight: float, times: int) -> None:
    average = before
    for _ in range(times):
        average = smoothed(average, new, weight)
    assert average - new == pytest.approx((before - new) * (1 - weight) ** times, rel=1e-6, abs=1e-6)


def test_the_first_stands_for_itself() -> None:
    assert smoothed(None, 3.0, 0.1) == 3.0
