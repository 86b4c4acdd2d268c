"""Servers' own figures made fit to be shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sights import NO_COUNTS, few, histogram, report

from swarm.health.picture.figures import MOST_OF_ONE, rounded, rounded_or_none, stats_of, together, window_s
from swarm.wire.status import BUCKETS_S, WINDOW_S, Histogram, Totals

numbers = st.lists(
    st.one_of(st.integers(0, 1000), st.just(2**62)), min_size=len(BUCKETS_S) + 1, max_size=len(BUCKETS_S) + 1
)
histograms = st.builds(lambda counts: Histogram(counts=tuple(counts), sum_s=1.0), numbers)


@given(st.floats(-1e300, 1e300), st.integers(1, 6))
def test_rounding_is_off_by_half_a_digit_and_done_once(value: float, digits: int) -> None:
    once = rounded(value, digits)
    assert rounded(once, digits) == once
    assert abs(once - value) <= abs(value) * 0.5 * 10 ** (1 - digits) * (1 + 1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_none(value: float) -> None:
    assert rounded(value) == 0.0
    assert rounded_or_none(value) is None
    assert rounded_or_none(None) is None


def test_rates_are_over_the_time_that_was_counted() -> None:
    told = report(decode_rows=600, prefill_rows=60, answers=6)
    stats = stats_of(told, 5.0)
    assert (stats.decode_tokens_per_s, stats.prefill_tokens_per_s, stats.answers_per_s) == (10.0, 1.0, 0.1)
    assert stats.figures_at == 5.0
    assert window_s(report(uptime_s=1e9)) == WINDOW_S
    assert window_s(report(uptime_s=30.0)) == 30.0
    assert window_s(report(uptime_s=0.0)) == 1.0


def test_what_it_told_is_passed_on() -> None:
    told = report(
        busy_share=0.123,
        totals=Totals(sessions=4, refused=3, heals=2, receipts=1),
        forward_s=histogram(b3=10),
        uptime_s=9.0,
    )
    stats = stats_of(told, 0.0)
    assert (stats.sessions_total, stats.refused_total, stats.heals_total, stats.receipts_total) == (4, 3, 2, 1)
    assert (stats.busy_share, stats.uptime_s) == (0.12, 9.0)
    assert stats.forward_p50_s == pytest.approx(0.0075)
    assert stats.step_p50_s is None


@few
@given(st.lists(histograms, max_size=5))
def test_together_nobody_weighs_much_more_than_is_usual(several: list[Histogram]) -> None:
    whole = together(several)
    totals = sorted(one.total for one in several if one.total)
    if not totals:
        assert whole.total == 0
        return
    middle = (totals[(len(totals) - 1) // 2] + totals[len(totals) // 2]) / 2
    assert whole.total <= MOST_OF_ONE * middle * len(totals) * (1 + 1e-9)
    if totals[-1] <= MOST_OF_ONE * totals[0]:
        assert whole.counts == tuple(
            min(sum(column), 2**62) for column in zip(*(one.counts for one in several), strict=True)
        )


def test_none_together_are_none() -> None:
    assert together([]) == together([NO_COUNTS, NO_COUNTS]) == NO_COUNTS
