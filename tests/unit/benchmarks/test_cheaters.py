"""Every cheater does what its name says, and nothing else: seen from its engine, or from its choice of tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.cheaters.catalogue import find, kinds
from benchmarks.cheaters.cheat import installed
from benchmarks.cheaters.rows import HONEST_WINDOWS, is_rare
from benchmarks.cheaters.tokens import TARGET
from swarm.core.errors import ConfigError
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.decoding.history import History
from swarm.decoding.sampling import choose, warp
from swarm.decoding.uniform import uniform
from swarm.engine.executor import SpanEngine
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.engine.work import Work
from swarm.models import ModelFiles
from swarm.models.progress import silent
from swarm.verification.verdicts.verdict import LOGIT_ERROR, Outcome, cdf_tolerance, judge_sampled_token

Floats = npt.NDArray[np.float32]
Load = Callable[..., SpanEngine]
SPAN = Span(10, 13)
WIDTH = 576
ROWS = 160


@pytest.fixture(scope="module")
def load(demo_files: ModelFiles) -> Load:
    def load(kind: str = "", span: Span = SPAN) -> SpanEngine:
        weights = LoadOptions("cpu", "float32", "none", {})
        request = SpanRequest(
            span=span, embeddings=span.start == 0, head=False, weights=weights, kv_tokens=8192, threads=1
        )
        if not kind:
            return open_span(demo_files, request, silent).engine
        with installed(find(kind)):
            return open_span(demo_files, request, silent).engine

    return load


@pytest.fixture(scope="module")
def honest(load: Load) -> SpanEngine:
    return load()


def rows(seed: int = 1, count: int = ROWS) -> Floats:
    """Something like hidden states: float32 ``[count, 576]``."""
    return np.random.default_rng(seed).normal(0, 3, (count, WIDTH)).astype(np.float32)


def answer(engine: SpanEngine, inputs: Floats, span: Span | None = None) -> Floats:
    """One session of one step."""
    slot = engine.open(len(inputs))
    try:
        [output] = engine.run([Work(slot, 0, inputs.tobytes(), None, len(inputs), want=len(inputs), span=span)])
    finally:
        engine.close(slot)
    return np.frombuffer(output.hidden or b"", np.float32).reshape(-1, WIDTH)


def error(inputs: Floats, outputs: Floats, reference: Floats) -> float:
    """|update - reference's| over the latter; the updates are not whitened here."""
    return float(np.linalg.norm(outputs - reference) / np.linalg.norm(reference - inputs))


def test_returns_its_input(load: Load) -> None:
    assert np.array_equal(answer(load("identity"), rows()), rows())


@pytest.mark.parametrize("layer", [10, 11, 12])
def test_leaves_out_one_layer(load: Load, honest: SpanEngine, layer: int) -> None:
    expected = rows()
    for kept in sorted({*range(SPAN.start, SPAN.end)} - {layer}):
        expected = answer(honest, expected, Span(kept, kept + 1))
    assert error(rows(), answer(load(f"skip:{layer}"), rows()), expected) < 1e-4


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("nf4", 0.02, 0.5), ("int8", 1e-3, 0.1), ("fp8", 5e-3, 0.1), ("noise", 2e-3, 0.05)],
)
def test_cheaper_weights(load: Load, honest: SpanEngine, kind: str, low: float, high: float) -> None:
    engine = load(kind)
    assert low < error(rows(), answer(engine, rows()), answer(honest, rows())) < high
    assert engine.info.quantization == "none"  # what it declares


def test_sees_no_further_than_64_tokens(load: Load, honest: SpanEngine) -> None:
    found, expected = answer(load("short-window"), rows()), answer(honest, rows())
    assert error(rows()[:64], found[:64], expected[:64]) < 1e-4
    assert error(rows()[64:], found[64:], expected[64:]) > 0.01


def test_surrogate_is_linear_and_better_than_nothing(load: Load) -> None:
    span = Span(0, 2)
    engine, true = load("surrogate", span), load(span=span)
    first, second = rows(1), rows(2)
    assert error(first, answer(engine, first + second), answer(engine, first) + answer(engine, second)) < 0.5
    ids = np.arange(1000, 1000 + ROWS)
    slots = true.open(ROWS), engine.open(ROWS)
    [right] = true.run([Work(slots[0], 0, None, ids, ROWS, want=ROWS)])
    [found] = engine.run([Work(slots[1], 0, None, ids, ROWS, want=ROWS)])
    wanted, got = (np.frombuffer(part.hidden or b"", np.float32).reshape(-1, WIDTH)[1:] for part in (right, found))
    assert np.linalg.norm(got - wanted) < 0.9 * np.linalg.norm(wanted)
    assert not np.allclose(got, wanted, atol=1e-3)


def test_embeds_other_ids(load: Load) -> None:
    span = Span(0, 1)
    engine, true = load("other-ids", span), load(span=span)
    ids = np.array([7, 300, engine.info.vocab_size - 1])
    [found] = engine.run([Work(engine.open(3), 0, None, ids, 3, want=3)])
    [expected] = true.run([Work(true.open(3), 0, None, np.array([8, 301, 0]), 3, want=3)])
    assert found.hidden == expected.hidden


def test_stale_rows_are_those_of_the_session_before(load: Load, honest: SpanEngine) -> None:
    engine = load("stale")
    first, second = rows(1, 40), rows(2, 64)
    assert np.array_equal(answer(engine, first), answer(honest, first))
    found = answer(engine, second)
    assert np.array_equal(found[:40], answer(honest, first))
    assert np.array_equal(found[40:], answer(honest, second)[40:])  # it has no others


def test_another_requests_rows(load: Load, honest: SpanEngine) -> None:
    engine = load("another")
    pair = [rows(1, 32), rows(2, 32)]
    works = [Work(engine.open(32), 0, part.tobytes(), None, 32, want=32) for part in pair]
    found = [np.frombuffer(output.hidden or b"", np.float32).reshape(-1, WIDTH) for output in engine.run(works)]
    for got, asked, other in zip(found, pair, reversed(pair), strict=True):
        assert error(other, got, answer(honest, other)) < 1e-4
        assert error(asked, got, answer(honest, asked)) > 0.5
    third = answer(engine, rows(3, 40))
    assert error(pair[1], third[:32], answer(honest, pair[1])) < 1e-4
    assert np.array_equal(third[32:], third[:8])


def test_honest_at_first(load: Load, honest: SpanEngine) -> None:
    late, skipping = load("late:11"), load("skip:11")
    session = rows(4, 320)  # ten windows
    for begun in range(0, HONEST_WINDOWS, 10):
        assert np.array_equal(answer(late, session), answer(honest, session)), begun
    assert error(session, answer(late, session), answer(skipping, session)) < 1e-4


def test_cheats_now_and_then(load: Load, honest: SpanEngine) -> None:
    rare, inputs = load("rarely:12"), rows(8, 1536)
    marked = [is_rare(inputs[first].tobytes()) for first in range(0, len(inputs), 32)]
    assert 1 <= sum(marked) <= 6
    found, expected, without = (
        answer(rare, inputs),
        answer(honest, inputs),
        answer(honest, inputs, Span(SPAN.start, SPAN.end - 1)),
    )
    for window, cheated in enumerate(marked):  # the last layer: no other window is touched
        rows_of = slice(32 * window, 32 * window + 32)
        assert error(inputs[rows_of], found[rows_of], (without if cheated else expected)[rows_of]) < 1e-4


def _logits(position: int) -> Floats:
    return np.random.default_rng(position).normal(0, 2, 500).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_token_in_a_hundred_is_another(temperature: float) -> None:
    [(target, change)] = find("tokens").server
    assert target == TARGET
    cheating, params, history = change(choose), SamplingParams(temperature=temperature, seed=3), History(answer_start=0)
    changed = [
        position
        for position in range(4000)
        if cheating(_logits(position), history, position, params)
        != choose(_logits(position), history, position, params)
    ]
    assert 15 <= len(changed) <= 75


def test_a_token_in_reach_is_never_a_hard_failure() -> None:
    [(_, change)] = find("tokens-in-reach").server
    params, history = SamplingParams(temperature=0.8, seed=3), History(answer_start=0)
    tolerance = cdf_tolerance(LOGIT_ERROR["bfloat16"], 0.8)
    outcomes = []
    for position in range(3000):
        logits = _logits(position)
        token = change(choose)(logits, history, position, params).token_id
        sums = np.cumsum(warp(logits, history, params))
        outcomes.append(judge_sampled_token(token, sums, uniform(3, 0, position), tolerance=tolerance))
    assert set(outcomes) == {Outcome.PASS, Outcome.SOFT}
    assert outcomes.count(Outcome.SOFT) > 100


def test_unknown_kinds() -> None:
    for kind in ("skip", "skip:x", "nf4:3", "honest"):
        with pytest.raises(ConfigError, match=kind):
            find(kind)
    assert {"identity", "skip:N", "late:N"} <= set(kinds())
