"""Histograms and reports: what a quantile is worth, and that the largest report fits a frame."""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import MisuseError
from swarm.core.limits import MAX_HEADER_BYTES
from swarm.wire.fields import MAX_SECONDS
from swarm.wire.frames import PREFIX_BYTES, encode_head, parse_message
from swarm.wire.status import (
    BUCKETS_S,
    MAX_CHAINS,
    MAX_LINKS,
    Histogram,
    LinkFigures,
    StageFigures,
    StatusReport,
    Totals,
)

durations = st.lists(st.floats(0, 12) | st.sampled_from(BUCKETS_S), min_size=1, max_size=60)
shares = st.floats(0, 1)


def histogram_of(taken_s: list[float]) -> Histogram:
    counts = [0] * (len(BUCKETS_S) + 1)
    for seconds in taken_s:
        counts[bisect_left(BUCKETS_S, seconds)] += 1
    return Histogram(tuple(counts), sum(taken_s))


@given(durations, shares, shares)
def test_a_quantile_never_falls_as_its_share_grows(taken_s: list[float], one: float, other: float) -> None:
    histogram = histogram_of(taken_s)
    low, high = histogram.quantile_s(min(one, other)), histogram.quantile_s(max(one, other))
    assert low is not None
    assert high is not None
    assert low <= high


@given(durations, shares)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(taken_s: list[float], share: float) -> None:
    found_s = histogram_of(taken_s).quantile_s(share)
    ordered = sorted(taken_s)
    true_s = ordered[max(0, next(n for n in range(len(ordered)) if n + 1 >= share * len(ordered)))]
    bucket = bisect_left(BUCKETS_S, true_s)
    low_s = BUCKETS_S[bucket - 1] if bucket else 0.0
    high_s = BUCKETS_S[min(bucket, len(BUCKETS_S) - 1)]
    assert found_s is not None
    assert low_s <= found_s <= max(low_s, high_s)


def test_no_durations_have_no_quantile_and_no_share_is_above_one() -> None:
    empty = Histogram((0,) * (len(BUCKETS_S) + 1), 0.0)
    assert (empty.total, empty.quantile_s(0.5)) == (0, None)
    for share in (-0.1, 1.1):
        with pytest.raises(MisuseError):
            empty.quantile_s(share)


def test_what_is_above_every_bound_counts_as_the_last() -> None:
    assert histogram_of([100.0]).quantile_s(1.0) == BUCKETS_S[-1]


def test_the_largest_report_fits_a_frame() -> None:
    most = 2**62
    chain = StageFigures(b"l" * 8, 65535, 4095, 4096, most, most, *[MAX_SECONDS] * 4, 1e9, 1e9)
    link = LinkFigures("\u2603" * 64, MAX_SECONDS, MAX_SECONDS, 1e9)
    histogram = Histogram((most,) * (len(BUCKETS_S) + 1), 1e12)
    report = StatusReport(
        1e10, 1.0, Totals(*[most] * 9), histogram, histogram, most, most, most,
        (chain,) * MAX_CHAINS, (link,) * MAX_LINKS,
    )  # fmt: skip
    head = encode_head(report)
    assert len(head) < MAX_HEADER_BYTES
    assert parse_message(head[PREFIX_BYTES:]) == report


def test_a_stage_without_layers_cannot_be() -> None:
    with pytest.raises(MisuseError):
        msgspec.structs.replace(StageFigures(b"l" * 8, 0, 0, 1, 0, 0, None, None, None, None, 0.0, 0.0), end=0)
