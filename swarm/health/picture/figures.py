"""Servers' own figures made fit to be shown: rounded, so that what hardly changes does not change. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from swarm.health.state import StatsState
from swarm.wire.status import BUCKETS_S, WINDOW_S, Histogram, StatusReport

DIGITS = 2
"""Significant ones of measured durations and rates."""
MOST_OF_ONE = 4.0
"""So many times what is usual among them one server weighs at most in a histogram of many, whatever it claims."""
MAX_COUNT = 2**62


def rounded(value: float, digits: int = DIGITS) -> float:
    """``value`` to so many significant digits; what is no finite number becomes 0."""
    if not math.isfinite(value) or value == 0:
        return 0.0
    return float(f"{value:.{digits - 1}e}")


def rounded_or_none(value: float | None, digits: int = DIGITS) -> float | None:
    return None if value is None or not math.isfinite(value) else rounded(value, digits)


def window_s(report: StatusReport) -> float:
    """How long the counts of ``report`` were counted: ``WINDOW_S``, less for a young process, at least a second."""
    return min(max(report.uptime_s, 1.0), WINDOW_S)


def stats_of(report: StatusReport, at: float) -> StatsState:
    """What a server told at wall time ``at``."""
    span_s = window_s(report)
    return StatsState(
        figures_at=at,
        uptime_s=report.uptime_s,
        busy_share=round(report.busy_share, 2),
        decode_tokens_per_s=rounded(report.decode_rows / span_s),
        prefill_tokens_per_s=rounded(report.prefill_rows / span_s),
        answers_per_s=rounded(report.answers / span_s),
        forward_p50_s=rounded_or_none(report.forward_s.quantile_s(0.5)),
        forward_p99_s=rounded_or_none(report.forward_s.quantile_s(0.99)),
        step_p50_s=rounded_or_none(report.step_s.quantile_s(0.5)),
        step_p99_s=rounded_or_none(report.step_s.quantile_s(0.99)),
        sessions_total=report.totals.sessions,
        refused_total=report.totals.refused,
        heals_total=report.totals.heals,
        receipts_total=report.totals.receipts,
    )


def together(histograms: Sequence[Histogram]) -> Histogram:
    """One histogram of many servers', in which nobody weighs more than ``MOST_OF_ONE`` times the median."""
    totals = [total for histogram in histograms if (total := histogram.total)]
    most = max(int(MOST_OF_ONE * median(totals)), 1) if totals else 1
    counts, sum_s = [0] * (len(BUCKETS_S) + 1), 0.0
    for histogram in histograms:
        total = histogram.total
        for place, count in enumerate(histogram.counts):
            counts[place] += count if total <= most else count * most // total
        sum_s += histogram.sum_s if total <= most else histogram.sum_s * (most / total)
    return Histogram(counts=tuple(min(count, MAX_COUNT) for count in counts), sum_s=min(sum_s, 1e12))
