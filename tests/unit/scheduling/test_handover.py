"""A slow stage is handed over, a stalled one is not: the rule, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.scheduling.handover import (
    BETWEEN_S,
    RECENT_S,
    SILENT_S,
    SLOW_FOR_S,
    WORTH_S,
    Handovers,
    Report,
    limit_s,
)

LIMIT_S = 0.2
takes = st.one_of(st.none(), st.sampled_from([0.01, 0.2, 0.21, 1.0, 5.0]))
gaps = st.sampled_from([0.25, 0.5, 1.0, 1.9, 2.5, 20.0])
histories = st.lists(st.tuples(gaps, takes, st.sampled_from([0.0, 0.1, 0.5, 4.0])), max_size=40)


def slow(report: Report) -> bool:
    return max(report.step_s or 0.0, report.held_s) > LIMIT_S


def due(reports: list[Report]) -> bool:
    """By looking back over all of them: the last ones were slow, without a quick one or a long silence, for 3 s."""
    if not slow(reports[-1]):
        return False
    since_s = last_s = reports[-1].at_s
    for report in reversed(reports):
        if slow(report):
            if last_s - report.at_s > SILENT_S + LIMIT_S:
                break
            since_s = last_s = report.at_s
        elif report.step_s is not None:
            break
    return reports[-1].at_s - since_s >= SLOW_FOR_S


@given(histories)
def test_handed_over_exactly_after_three_seconds_of_slowness(history: list[tuple[float, float | None, float]]) -> None:
    rule, now_s, handed_s = Handovers(), 0.0, -BETWEEN_S
    reports: list[Report] = []
    for gap_s, step_s, held_s in history:
        now_s += gap_s
        reports.append(Report(now_s, step_s, held_s))
        wanted = due(reports) and now_s - handed_s >= BETWEEN_S
        assert rule.note(1, reports[-1], LIMIT_S) == wanted
        if wanted:
            handed_s, reports = now_s, []


@given(st.lists(st.tuples(gaps, st.integers(0, 2), takes, st.sampled_from([0.0, 9.0])), max_size=60))
def test_at_most_one_stage_a_minute(history: list[tuple[float, int, float | None, float]]) -> None:
    rule, now_s = Handovers(), 0.0
    handed: list[float] = []
    for gap_s, place, step_s, held_s in history:
        now_s += gap_s
        if rule.note(place, Report(now_s, step_s, held_s), LIMIT_S):
            handed.append(now_s)
    assert all(b - a >= BETWEEN_S for a, b in pairwise(handed))


def paces(step_s: float, stall_at_s: float, stall_s: float, every_s: float, until_s: float) -> Iterator[Report]:
    """What a stage reports that works without a pause, and stalls once."""
    now_s, arrived_s, told_s, done = 0.0, 0.0, every_s, list[float]()
    stalled = False
    while now_s < until_s:
        left_s = step_s
        if not stalled and now_s + step_s > stall_at_s:
            left_s, stalled = step_s + stall_s, True
        ends_s = now_s + left_s
        while told_s < ends_s:
            yield Report(told_s, sum(done) / len(done) if done else None, told_s - arrived_s)
            told_s, done = told_s + every_s, []
        now_s = arrived_s = ends_s
        done.append(left_s)


@given(
    step_s=st.sampled_from([0.005, 0.05, 0.15]),
    stall_at_s=st.floats(0, 5),
    stall_s=st.floats(0, 1.0),
    every_s=st.sampled_from([0.25, 0.5, 1.0]),
)
def test_a_stall_of_a_second_hands_nothing_over(
    step_s: float, stall_at_s: float, stall_s: float, every_s: float
) -> None:
    rule = Handovers()
    for report in paces(step_s, stall_at_s, stall_s, every_s, until_s=10.0):
        assert not rule.note(0, report, LIMIT_S)


@given(
    limit=st.sampled_from([0.02, LIMIT_S, 2.0, 5.0]), times=st.floats(1.1, 20.0), every_s=st.sampled_from([0.25, 1.0])
)
def test_a_stage_that_stays_slow_is_handed_over_soon(limit: float, times: float, every_s: float) -> None:
    rule, step_s = Handovers(), times * limit
    at_s = next(report.at_s for report in paces(step_s, 1e9, 0.0, every_s, 600.0) if rule.note(0, report, limit))
    assert SLOW_FOR_S <= at_s <= SLOW_FOR_S + 2 * limit + 3 * every_s + min(step_s, 2 * limit + every_s)


@given(st.lists(st.tuples(takes, st.floats(0, 9)), min_size=1, max_size=20))
def test_nobody_is_handed_over_without_an_alternative_or_while_a_prompt_is_computed(
    history: list[tuple[float | None, float]],
) -> None:
    alone, reading = Handovers(), Handovers()
    for second, (step_s, held_s) in enumerate(history):
        report = Report(float(second), step_s, held_s)
        assert not alone.note(0, report, None)
        assert not reading.note(0, report, LIMIT_S)
        reading.see(0, report)


def test_a_limit_of_its_own_for_every_report() -> None:
    """The view changes: what was slow against one alternative is not against the next."""
    rule = Handovers()
    for second in range(10):
        assert not rule.note(0, Report(second, 1.0, 0.0), 2.0 if second % 3 == 2 else 0.5)


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_the_limit_is_twice_the_alternative(computes_s: float, hops_s: float, own_hops_s: float) -> None:
    least_s = limit_s(computes_s + hops_s, hops_s, own_hops_s)
    assert least_s + own_hops_s >= 2 * (computes_s + hops_s) - 1e-9, "over twice as slow, hops and all"
    assert least_s >= 2 * computes_s - 1e-9, "and never for its hops alone"
    assert least_s >= computes_s + WORTH_S - 1e-9
    assert limit_s(0.05 + hops_s, hops_s, hops_s) == pytest.approx(max(0.1 + hops_s, 0.1))


def test_who_holds_a_step() -> None:
    rule = Handovers()
    assert rule.holder(0.0) is None
    rule.see(0, Report(10.0, None, 3.0))
    rule.see(1, Report(10.0, None, 7.0))
    rule.see(2, Report(10.0, 0.1, 0.0))
    assert rule.holder(10.5) == 1
    assert rule.holder(10.0 + RECENT_S + 0.1) is None, "what was told long ago is no evidence"
    rule.see(2, Report(11.0, None, 7.0))
    assert rule.holder(11.0) == 2, "of equals the later one: its step has passed the other"
    rule.restart()
    assert rule.holder(11.0) is None
