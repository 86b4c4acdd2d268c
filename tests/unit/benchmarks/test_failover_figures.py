"""What the failover benchmark and the soak make of what they saw."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from benchmarks import failover, ordeal, soak
from benchmarks.failover import BEFORE_TOKENS, Harm, Sample
from benchmarks.ordeal import Outcome, Watch
from benchmarks.questions import Answered
from swarm.client.results import GenerationResult, Progress
from swarm.core.sampling import SamplingParams


class Clock:
    """``time`` for a module: its seconds are the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (failover, ordeal):
        monkeypatch.setattr(module, "time", clock)
    return clock


class FakeFleet:
    """Notes what was done to whom."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    def kill(self, number: int) -> None:
        self.done.append(("kill", number))

    def freeze(self, number: int) -> None:
        self.done.append(("freeze", number))


def answered(**changes: Any) -> Answered:
    result = GenerationResult(
        text="", token_ids=(1, 2), finish_reason="length", prompt_tokens=1, ttft_s=0.0, tokens_per_s=0.0, chain=(),
        exact=True, seed=0, **changes,
    )  # fmt: skip
    return Answered("short", (5,), SamplingParams(), 2, True, result)


@pytest.mark.parametrize(("freeze", "act"), [(False, "kill"), (True, "freeze")])
def test_a_loss_comes_with_a_token_and_the_pause_lasts_until_the_next(clock: Clock, freeze: bool, act: str) -> None:
    fleet: Any = FakeFleet()
    harm = Harm(fleet, 4, freeze=freeze)
    for token in range(BEFORE_TOKENS):
        clock.now_s = 0.1 * token
        assert fleet.done == []
        harm(Progress("decode", token + 1, 20))
    assert fleet.done == [(act, 4)]
    clock.now_s += 2.0
    harm(Progress("healing", 0, 100))
    clock.now_s += 0.5
    harm(Progress("healing", 100, 100))
    harm(Progress("decode", BEFORE_TOKENS + 1, 20))
    clock.now_s += 3.0
    harm(Progress("decode", BEFORE_TOKENS + 2, 20))
    assert harm.times() == pytest.approx((2.5, 2.0, 0.1))


def test_the_goal_is_detection_and_the_spans_own_prefill() -> None:
    sample = Sample(pause_s=3.0, detection_s=1.0, step_s=0.1, full_reprefill_s=4.0, span_prefill_s=1.0)
    assert sample.over_goal_s == pytest.approx(0.8)


def test_a_freeze_is_met_with_the_shortest_context_alone() -> None:
    options = argparse.Namespace(contexts=[128, 512], losses=["tail", "freeze"])
    assert failover._cases(options) == [("tail", 128), ("freeze", 128), ("tail", 512)]


def test_an_answers_pause_is_its_longest_wait_between_tokens(clock: Clock) -> None:
    outcome = Outcome()
    watch = Watch(outcome)
    for at_s, done in ((5.0, 1), (6.0, 2), (9.0, 3), (50.0, 1), (50.5, 2)):  # two answers; between them nobody waits
        clock.now_s = at_s
        watch(Progress("decode", done, 3))
        if (done, at_s) in ((3, 9.0), (2, 50.5)):
            watch.answered(answered())
    assert outcome.pauses_s == [3.0, 0.5]


def test_a_soak_without_answers_has_figures_too() -> None:
    figures = soak.figures(Outcome())
    assert figures["answers"] == figures["heals"] == 0
    assert figures["longest_pause_s"] == 0.0
    whole = Outcome(answers=[answered()], pauses_s=[0.5])
    whole.add(Outcome(answers=[answered()], pauses_s=[2.0], errors=["one"]))
    assert soak.figures(whole)["longest_pause_s"] == 2.0
    assert soak.figures(whole)["answers_by_kind"] == {"short": 2}
    assert soak.figures(whole)["errors"] == ["one"]


def test_growth_counts_from_a_servers_first_round_on() -> None:
    memory = [{1: 100_000_000, 2: 50_000_000}, {1: 104_000_000, 3: 7_000_000}, {1: 110_000_000, 3: 6_000_000}]
    assert soak.growth_mb(memory) == [5.0, -1.0]
    assert soak.growth_mb([]) == []
