"""From decode steps to two numbers: batches, waits, and the way back to idle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.record_base import MAX_RATE
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.server.reports.meter import IDLE_AFTER_S, MAX_S, SUSPICIOUS, Load, Meter

SPEED = SpanSpeed(tau_s=0.002, fixed_s=0.004, step_s=(0.024, 0.026, 0.03, 0.04), prefill_tokens_per_s=500.0)
LAYERS = 10
ALONE_S = 0.024
IDLE = Load(0.002, 0.004)


def near(load: Load) -> object:
    return pytest.approx((load.tau_s, load.fixed_s))


class Server:
    """A meter and the time; ``steps`` feeds it forwards that come one after the other."""

    def __init__(self, speed: SpanSpeed = SPEED) -> None:
        self.meter = Meter(speed)
        self.now_s = 100.0

    def steps(self, count: int, *, took_s: float, sessions: int = 1, wait_s: float = 0.0, layers: int = LAYERS) -> None:
        for _ in range(count):
            self.now_s += took_s
            self.meter.computed([layers] * sessions, [wait_s] * sessions, took_s, self.now_s)

    def load(self, sessions: int = 1, queued_steps: int = 0) -> tuple[float, float]:
        present = self.meter.present(self.now_s, sessions=sessions, queued_steps=queued_steps)
        return present.tau_s, present.fixed_s

    def doubts(self) -> bool:
        return self.meter.doubtful

    def step_s(self, layers: int = LAYERS) -> float:
        tau_s, fixed_s = self.load()
        return fixed_s + layers * tau_s


def test_before_any_step_the_probe_speaks() -> None:
    assert Server().load() == Server().load(sessions=0) == near(IDLE)


def test_steps_as_fast_as_the_probe_change_nothing() -> None:
    server = Server()
    server.steps(100, took_s=ALONE_S)
    assert server.load() == near(IDLE)
    assert not server.doubts()


@pytest.mark.parametrize("layers", [1, 3, LAYERS])
def test_a_slower_forward_is_shared_out_between_layers_and_fixed_cost(layers: int) -> None:
    """Whatever part of the span a session runs, a step costs what was measured."""
    server = Server()
    server.steps(100, took_s=3 * (0.004 + layers * 0.002), layers=layers)
    assert server.load() == near(Load(0.006, 0.012))


def test_waiting_belongs_to_the_fixed_cost() -> None:
    server = Server()
    server.steps(100, took_s=ALONE_S, wait_s=0.5)
    assert server.load() == near(Load(0.002, 0.504))


def test_in_a_batch_every_session_waits_for_the_whole_forward() -> None:
    server = Server()
    server.steps(100, took_s=0.04, sessions=8)
    assert server.step_s() == pytest.approx(0.04)
    server = Server()
    server.meter.computed([10, 2], [0.0, 0.0], 0.032, server.now_s)  # two spans, two forwards one after the other
    tau_s, fixed_s = server.load()
    assert (fixed_s + 10 * tau_s) + (fixed_s + 2 * tau_s) == pytest.approx(2 * 0.032)


def test_a_large_batch_counts_for_each_of_its_steps() -> None:
    """Of 7 + 1 steps seven took long: that is what a step costs, not the mean of the two forwards."""
    server = Server()
    for _ in range(100):
        server.steps(1, took_s=0.1, sessions=7)
        server.steps(1, took_s=ALONE_S, sessions=1)
    assert server.step_s() > 0.07


def test_a_change_shows_within_few_steps_and_within_seconds_when_they_are_rare() -> None:
    server = Server()
    server.steps(50, took_s=ALONE_S)
    server.steps(10, took_s=10 * ALONE_S)
    assert server.step_s() > 9 * ALONE_S
    rare = Server()
    rare.steps(50, took_s=ALONE_S)
    rare.now_s += 2.5
    rare.steps(1, took_s=10 * ALONE_S)
    assert rare.step_s() > 8 * ALONE_S


def test_one_odd_step_is_not_believed_at_once() -> None:
    server = Server()
    server.steps(50, took_s=ALONE_S)
    server.steps(1, took_s=10 * ALONE_S)
    assert server.step_s() < 4 * ALONE_S


def test_when_the_queue_is_empty_the_idle_values_come_back() -> None:
    server = Server()
    server.steps(50, took_s=10 * ALONE_S, sessions=8, wait_s=1.0)
    assert server.step_s() > 1.0
    assert server.load(sessions=0) == near(IDLE), "nobody is here"
    server.now_s += IDLE_AFTER_S / 2
    assert server.step_s() > 1.0, "between two steps it is not idle"
    server.now_s += IDLE_AFTER_S
    assert server.load(sessions=8) == near(IDLE), "they are here and ask for nothing"
    assert server.load(sessions=8, queued_steps=1)[1] > 1.0, "one does ask"


def test_the_next_session_starts_at_the_idle_values_and_not_where_the_last_one_ended() -> None:
    server = Server()
    server.steps(50, took_s=10 * ALONE_S, sessions=8, wait_s=1.0)
    server.meter.rest()
    server.now_s += 60.0
    server.steps(1, took_s=ALONE_S)
    assert server.load() == near(IDLE)


def test_who_became_faster_notices_by_himself() -> None:
    server = Server()
    server.steps(100, took_s=0.5 * ALONE_S)
    assert server.load(sessions=0) == near(Load(0.001, 0.002))
    assert server.meter.step_s == pytest.approx([0.012, 0.013, 0.015, 0.02])
    assert server.meter.prefill_tokens_per_s == pytest.approx(1000.0)


def test_batches_and_waits_say_nothing_of_the_idle_speed() -> None:
    server = Server()
    server.steps(100, took_s=0.1, sessions=8, wait_s=1.0)
    assert server.load(sessions=0) == near(IDLE)
    assert not server.doubts()


def test_who_became_slower_doubts_and_a_check_settles_it_both_ways() -> None:
    server = Server()
    server.steps(100, took_s=2 * ALONE_S)
    assert server.doubts()
    assert server.load(sessions=0) == near(IDLE), "until it was checked"
    server.meter.checked(LAYERS, 2 * ALONE_S)
    assert server.load(sessions=0) == near(Load(0.004, 0.008))
    assert server.doubts(), "it may recover while nobody uses it"
    assert not server.meter.contradicted, "which is not urgent"
    server.meter.checked(LAYERS, ALONE_S)
    assert server.load(sessions=0) == near(IDLE)
    assert not server.doubts()
    server.steps(100, took_s=(SUSPICIOUS - 0.05) * ALONE_S)
    assert not server.doubts(), "a little slower is noise"


def test_a_disturbed_check_is_repeated_although_the_probe_was_as_slow() -> None:
    server = Server()
    server.steps(100, took_s=0.3 * ALONE_S)  # the probe had met a busy machine
    server.meter.checked(LAYERS, 0.9 * ALONE_S)  # and so did a check
    assert server.doubts()
    server.meter.checked(LAYERS, 0.3 * ALONE_S)
    assert not server.doubts()


def test_in_the_end_a_server_resigns_itself_to_being_slower() -> None:
    server = Server()
    checks = 0
    server.meter.checked(LAYERS, 3 * ALONE_S)
    while server.doubts():
        server.meter.checked(LAYERS, 3 * ALONE_S)
        checks += 1
        assert checks < 200
    assert checks > 20
    assert server.load(sessions=0) == near(Load(0.006, 0.012))


def test_without_a_probe_the_first_steps_are_one() -> None:
    server = Server(UNMEASURED)
    assert server.load() == (1.0, 0.0)
    server.steps(3, took_s=0.05)
    assert server.load() == pytest.approx((0.005, 0.0))
    assert server.load(sessions=0) == pytest.approx((0.005, 0.0))


def test_steps_that_take_no_time_are_free() -> None:
    server = Server(SpanSpeed(tau_s=0.0))
    server.steps(5, took_s=0.1)
    server.meter.checked(LAYERS, 0.1)
    assert server.load() == (0.0, 0.0)


durations = st.floats(0.0, 1e6)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 80), max_size=8), durations, durations, st.floats(0, 1e9)), max_size=20)
)
def test_whatever_was_measured_the_figures_are_some_that_readers_take(
    forwards: list[tuple[list[int], float, float, float]],
) -> None:
    meter = Meter(SPEED)
    now_s = 0.0
    for layers, wait_s, took_s, pause_s in forwards:
        now_s += pause_s
        meter.computed(layers, [wait_s] * len(layers), took_s, now_s)
        for sessions in (0, 1):
            load = meter.present(now_s, sessions=sessions, queued_steps=sessions)
            assert 0 <= load.tau_s <= MAX_S
            assert 0 <= load.fixed_s <= MAX_S
        assert all(0 <= step_s <= MAX_S for step_s in meter.step_s)
        assert 0 <= meter.prefill_tokens_per_s <= MAX_RATE
