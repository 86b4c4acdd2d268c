"""The start-up probe: what it measures, what it leaves out, and that it leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BusyError
from swarm.core.metrics import BATCHES
from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_span
from swarm.engine.kv import KVPool, KVSlot
from swarm.engine.speed import UNMEASURED, SpanSpeed, measure_speed, separate, step_alone_s
from swarm.engine.work import Output, SpanInfo, Work, check_batch

LAYERS = 12
SPAN = Span(20, 20 + LAYERS)


class FakeEngine:
    """An engine whose forwards take a time of their own making, on a clock of their own."""

    def __init__(self, cost_s: Callable[[int, int], float], *, kv_tokens: int = 4096, span: Span = SPAN) -> None:
        self.now_s = 0.0
        self.ran: list[tuple[int, int, int]] = []
        self.info = SpanInfo(
            span=span, layer_count=40, hidden_size=8, vocab_size=10, context_tokens=512, dtype="float32",
            quantization="none", embeddings=False, head=False, device="cpu", memory_bytes=0, kv_bytes_per_token=0,
        )  # fmt: skip
        self.pool = KVPool(total_tokens=kv_tokens, context_tokens=512, layer_count=len(span))
        self._cost_s = cost_s

    @property
    def free_tokens(self) -> int:
        return self.pool.free_tokens

    def open(self, tokens: int) -> KVSlot:
        return self.pool.open(tokens)

    def close(self, slot: KVSlot) -> None:
        self.pool.close(slot)

    def run(self, batch: Sequence[Work]) -> list[Output]:
        check_batch(batch, self.info)
        rows = sum(work.rows for work in batch)
        layers = len(batch[0].span or self.info.span)
        self.ran.append((layers, len(batch), rows))
        self.now_s += self._cost_s(layers, rows)
        return [Output(b"", None) for _ in batch]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def measured(engine: Any, **options: float) -> SpanSpeed:
        monkeypatch.setattr("swarm.engine.speed.time.perf_counter", lambda: engine.now_s)
        free = engine.free_tokens
        try:
            return measure_speed(engine, **options)
        finally:
            monkeypatch.undo()
            assert engine.free_tokens == free, "every slot was given back"

    return measured


def linear(tau_s: float, fixed_s: float, row_share: float = 0.0) -> Callable[[int, int], float]:
    return lambda layers, rows: (fixed_s + layers * tau_s) * (1 + row_share * (rows - 1))


def test_one_layer_and_all_separate_the_layers_cost_from_the_fixed_one(measure: Callable[..., Any]) -> None:
    speed = measure(FakeEngine(linear(0.002, 0.005, row_share=0.1)))
    assert (speed.tau_s, speed.fixed_s) == pytest.approx((0.002, 0.005))
    whole_s = 0.005 + LAYERS * 0.002
    assert speed.step_s == pytest.approx([whole_s * (1 + 0.1 * (batch - 1)) for batch in BATCHES])
    assert speed.prefill_tokens_per_s == pytest.approx(128 / (whole_s * (1 + 0.1 * 127)))
    assert speed.power_layers_per_s == pytest.approx(500.0)


def test_the_shortest_run_counts_and_the_first_warms_up(measure: Callable[..., Any]) -> None:
    engine = FakeEngine(linear(0.002, 0.005))
    plain, count = engine._cost_s, iter(range(10_000))
    engine._cost_s = lambda layers, rows: plain(layers, rows) * (9.0 if next(count) % 3 == 0 else 1.0)
    speed = measure(engine)
    assert (speed.tau_s, speed.fixed_s) == pytest.approx((0.002, 0.005))


def test_a_disturbed_run_of_few_sessions_is_corrected_by_one_of_more(measure: Callable[..., Any]) -> None:
    engine = FakeEngine(linear(0.002, 0.005))
    plain = engine._cost_s
    engine._cost_s = lambda layers, rows: plain(layers, rows) * (7.0 if layers == LAYERS and rows == 1 else 1.0)
    speed = measure(engine)
    assert (speed.tau_s, speed.fixed_s) == pytest.approx((0.002, 0.005))
    assert speed.step_s == pytest.approx([0.029] * len(BATCHES))


def test_a_single_layer_cannot_be_separated(measure: Callable[..., Any]) -> None:
    speed = measure(FakeEngine(linear(0.002, 0.005), span=Span(3, 4)))
    assert (speed.tau_s, speed.fixed_s) == pytest.approx((0.007, 0.0))


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.1, 0.5, 2.0, 10.0])
def test_a_slow_machine_is_measured_less_and_not_for_long(measure: Callable[..., Any], step_s: float) -> None:
    engine = FakeEngine(linear(step_s / LAYERS, 0.0, row_share=0.3))
    speed = measure(engine, budget_s=4.0)
    assert engine.now_s <= 4.0 + 2 * step_s
    assert speed.tau_s == pytest.approx(step_s / LAYERS)
    assert len(speed.step_s) in (0, len(BATCHES))
    assert bool(speed.step_s) == (step_s < 1.0), "all of t(b), or none of it"


@pytest.mark.parametrize("kv_tokens", [1, 2, 3, 15, 16, 40, 4096])
def test_little_kv_is_no_obstacle(measure: Callable[..., Any], kv_tokens: int) -> None:
    speed = measure(FakeEngine(linear(0.002, 0.005), kv_tokens=kv_tokens))
    if kv_tokens < 2:
        assert speed == UNMEASURED
        return
    assert (speed.tau_s, speed.fixed_s) == pytest.approx((0.002, 0.005))
    assert len(speed.step_s) == (4 if kv_tokens >= 16 else 0)
    assert (speed.prefill_tokens_per_s > 0) == (kv_tokens >= 16)


def test_a_forward_that_fails_gives_its_kv_back(measure: Callable[..., Any]) -> None:
    engine = FakeEngine(linear(0.002, 0.005))

    def fail(layers: int, rows: int) -> float:
        raise BusyError("no", retry_after_s=1.0)

    engine._cost_s = fail
    with pytest.raises(BusyError):
        measure(engine)


@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.integers(1, 200))
def test_whatever_was_measured_the_two_add_up_to_the_whole_step(one_s: float, whole_s: float, layers: int) -> None:
    tau_s, fixed_s = separate(one_s, whole_s, layers)
    assert fixed_s + layers * tau_s == pytest.approx(whole_s)
    assert tau_s >= 0
    assert fixed_s >= 0
    assert tau_s > 0 or whole_s < 1e-300, "layers are never free"


@pytest.mark.parametrize(("name", "start", "end"), [("llama", 2, 5), ("gpt_oss", 0, 2), ("deepseek_v3", 1, 4)])
def test_a_real_engine_is_measured_and_stays_usable(kit: Any, name: str, start: int, end: int) -> None:
    config = kit.configs[name]
    parts = build_span(config, Span(start, end), embeddings=False, head=end == 5)
    engine = SpanEngine(kit.fill(parts, kit.whole(config)), EngineOptions(kv_tokens=256))
    began_s = time.perf_counter()
    speed = measure_speed(engine, budget_s=1.0)
    assert time.perf_counter() - began_s < 30.0
    assert speed.tau_s > 0
    assert len(speed.step_s) == len(BATCHES)
    assert speed.prefill_tokens_per_s > 0
    assert 0 < step_alone_s(engine) < 30.0
    assert engine.free_tokens == 256
