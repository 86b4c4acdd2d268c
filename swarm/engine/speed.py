"""How fast a span computes, alone and unloaded: a short measurement before the first session comes.

One layer and all layers, timed apart, separate what every step costs from what every layer costs; several sessions in
one step show how batching pays. Times are the shortest of a few runs, since whatever else the machine did meanwhile
only made them longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from swarm.core.metrics import BATCHES
from swarm.core.spans import Span
from swarm.engine.executor import SpanEngine
from swarm.engine.kv import KVSlot
from swarm.engine.rows import rows_to_bytes
from swarm.engine.work import SpanInfo, Work

BUDGET_S = 4.0
"""For the whole measurement; a single run that takes longer than expected may exceed it."""
CHECK_S = 0.3
"""For measuring one step again, later."""
RUNS = 5
"""Of each kind, while there is time."""
STEP_TOKENS = 2
"""KV of one session of the measurement."""
PREFILL_ROWS = (16, 128)
"""A short prefill first; it says whether there is time for a longer one."""
LEAST_TAU_SHARE = 0.05
"""Layers together cost at least this share of a step; less is noise of the two times whose difference it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSpeed:
    """A decode step over n layers takes ``fixed_s + n * tau_s``; norm, head and sampling are part of ``fixed_s``.

    ``step_s`` is the time of a step over the whole span for 1, 2, 4 and 8 sessions together (empty: not measured), and
    ``prefill_tokens_per_s`` 0 if that was not measured.
    """

    tau_s: float
    fixed_s: float = 0.0
    step_s: tuple[float, ...] = ()
    prefill_tokens_per_s: float = 0.0

    @property
    def power_layers_per_s(self) -> float:
        """Layers of a decode step in a second, the fixed cost apart: so it does not depend on the span's length."""
        return 1.0 / self.tau_s if self.tau_s > 0 else 0.0


UNMEASURED = SpanSpeed(tau_s=1.0)
"""What is said of a span that nobody measured: slow enough to be nobody's first choice."""


def measure_speed(
    engine: SpanEngine, *, budget_s: float = BUDGET_S, check: Callable[[], None] = lambda: None
) -> SpanSpeed:
    """Time ``engine`` while nobody uses it; takes about ``budget_s`` at most, and some of its KV meanwhile.

    On a slow machine, or with little KV, only the first of this is measured, in this order: one layer, all layers, 2, 4
    and 8 sessions, prefill. Contexts are short: attention over a long one adds to every layer, which the real steps
    tell later. Blocks; raises what ``SpanEngine.run`` raises, and what ``check`` does, which is asked before each run.
    """
    stopwatch, span = _Stopwatch(engine, budget_s, check), engine.info.span
    one_s = stopwatch.step(Span(span.end - 1, span.end), 1, expected_s=0.0)
    if one_s is None:
        return UNMEASURED
    whole_s = one_s if len(span) == 1 else stopwatch.step(span, 1, expected_s=one_s * len(span))
    if whole_s is None:
        return SpanSpeed(tau_s=one_s)
    steps = [whole_s]
    for batch in BATCHES[1:]:
        step_s = stopwatch.step(span, batch, expected_s=1.5 * steps[-1])
        if step_s is None:
            break
        steps.append(step_s)
    # Fewer sessions never take longer than more: where they seem to, something else was running.
    steps = [min(steps[index:]) for index in range(len(steps))]
    tau_s, fixed_s = separate(one_s, steps[0], len(span))
    return SpanSpeed(
        tau_s=tau_s,
        fixed_s=fixed_s,
        step_s=tuple(steps) if len(steps) == len(BATCHES) else (),
        prefill_tokens_per_s=stopwatch.prefill(span, expected_s=PREFILL_ROWS[0] * whole_s / 4),
    )


def separate(one_s: float, whole_s: float, layers: int) -> tuple[float, float]:
    """``tau_s`` and ``fixed_s`` of a step that takes ``one_s`` over one layer and ``whole_s`` over ``layers``.

    The line through both points. Neither comes out negative, and together they give ``whole_s``.
    """
    tau_s = (whole_s - one_s) / (layers - 1) if layers > 1 else whole_s
    tau_s = min(max(tau_s, LEAST_TAU_SHARE * whole_s / layers), whole_s / layers)
    return tau_s, max(whole_s - layers * tau_s, 0.0)


def step_alone_s(engine: SpanEngine, *, budget_s: float = CHECK_S) -> float:
    """Seconds of one decode step over the whole span, of one session, outside the KV budget: the shortest of a few.

    Blocks for about ``budget_s``, on slow machines for one step; belongs into the thread that runs the engine.
    """
    slot = KVSlot(STEP_TOKENS, len(engine.info.span))
    until_s = time.perf_counter() + budget_s
    try:
        batch = [_work(slot, engine.info, engine.info.span, 1)]
        times_s = [_timed(engine, batch)]
        while len(times_s) < RUNS and time.perf_counter() + times_s[-1] < until_s:
            times_s.append(_timed(engine, batch))
        return min(times_s)
    finally:
        slot.release()


class _Stopwatch:
    """Times runs of an engine while there is time for them."""

    def __init__(self, engine: SpanEngine, budget_s: float, check: Callable[[], None]) -> None:
        self._engine = engine
        self._check = check
        self._until_s = time.perf_counter() + budget_s
        self._share_s = budget_s / (len(BATCHES) + 2)

    def step(self, span: Span, sessions: int, *, expected_s: float) -> float | None:
        """A decode step of so many sessions; None if there is no time or no KV."""
        return self._time(span, [STEP_TOKENS] * sessions, 1, expected_s)

    def prefill(self, span: Span, *, expected_s: float) -> float:
        """Tokens per second; 0 if there is no time or no KV."""
        speed = 0.0
        for rows in PREFILL_ROWS:
            took_s = self._time(span, [rows], rows, expected_s)
            if took_s is None:
                break
            speed = rows / took_s
            expected_s = took_s * PREFILL_ROWS[-1] / rows
        return speed

    def _time(self, span: Span, capacities: Sequence[int], rows: int, expected_s: float) -> float | None:
        """The shortest of a few runs, the first of which warms up and counts only if it stays alone."""
        engine, began_s = self._engine, time.perf_counter()
        fits = max(capacities) <= engine.info.context_tokens and sum(capacities) <= engine.free_tokens
        if not fits or began_s + expected_s > self._until_s:
            return None
        with ExitStack() as stack:
            slots = [engine.open(tokens) for tokens in capacities]
            for slot in slots:
                stack.callback(engine.close, slot)
            batch = [_work(slot, engine.info, span, rows, seed=seed) for seed, slot in enumerate(slots)]
            self._check()
            first_s = _timed(engine, batch)
            times_s: list[float] = []
            share_until_s = min(began_s + self._share_s, self._until_s)
            while len(times_s) < RUNS and time.perf_counter() + first_s < share_until_s:
                self._check()
                times_s.append(_timed(engine, batch))
            return min(times_s, default=first_s)


def _timed(engine: SpanEngine, batch: Sequence[Work]) -> float:
    began_s = time.perf_counter()
    engine.run(batch)
    return time.perf_counter() - began_s


def _work(slot: KVSlot, info: SpanInfo, span: Span, rows: int, *, seed: int = 0) -> Work:
    """Rows as a session would send them; the same each time, so that a mixture chooses the same experts."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn((rows, info.hidden_size), generator=generator).to(getattr(torch, info.dtype))
    logits = info.head and span.end == info.layer_count
    return Work(slot, 0, rows_to_bytes(hidden), None, rows, want=1, logits=logits, span=span)
