"""What audits may fetch in an hour."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.auditing.budget import Budget


def test_what_was_spent_an_hour_ago_no_longer_counts() -> None:
    budget = Budget(100)
    budget.spend(0.0, 60)
    assert budget.wait_s(10.0) == 0
    budget.spend(10.0, 60)
    assert budget.wait_s(10.0) == 3590.0
    assert budget.wait_s(3600.0) == 0


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=20),
    st.integers(1, 200),
)
def test_after_the_wait_and_not_before_less_than_the_limit_was_spent(spent: list[tuple[int, int]], limit: int) -> None:
    budget, window_s = Budget(limit, 60.0), 60.0
    times = list(accumulate(gap_s for gap_s, _ in spent))
    for at_s, (_, count) in zip(times, spent, strict=True):
        budget.spend(at_s, count)
    now_s = times[-1] if times else 0.0

    def in_window(at_s: float) -> int:
        return sum(count for when, (_, count) in zip(times, spent, strict=True) if when > at_s - window_s + 1e-9)

    wait_s = budget.wait_s(now_s)
    assert in_window(now_s + wait_s) < limit
    assert wait_s == 0 or in_window(now_s + wait_s - 1e-6) >= limit
    assert budget.wait_s(now_s) == pytest.approx(wait_s)
