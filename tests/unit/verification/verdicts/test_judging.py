"""Rows in, verdicts out: honest and lying servers on synthetic activations."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic_activations import Floats, stream, toy_calibration

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.verification.verdicts.judging import arbitrate_window, judge_rows
from swarm.verification.verdicts.verdict import SOFT_ONLY, Outcome
from swarm.verification.verdicts.whitening import Rows

CALIBRATION = toy_calibration()
SPAN = Span(0, 4)
STATES = stream(np.random.default_rng(41), 100)
INPUTS, OUTPUTS = STATES[SPAN.start], STATES[SPAN.end]
SUSPECT, FIRST, SECOND = (PeerId(name) for name in ("suspect", "first", "second"))


def rounded(rows: Floats, part: float, seed: int = 1) -> Floats:
    """Off by ``part`` of every channel's scale, as other kernels would be."""
    return np.asarray(rows + np.random.default_rng(seed).normal(0, part, rows.shape) * CALIBRATION.scale(SPAN))


def outcomes(outputs: Floats, first: int = 0) -> list[tuple[int, str]]:
    verdicts = judge_rows(Rows(first, INPUTS, outputs), OUTPUTS, CALIBRATION, SPAN)
    return [(verdict.window, verdict.outcome) for verdict in verdicts]


def test_every_window_has_its_verdict() -> None:
    assert outcomes(rounded(OUTPUTS, 0.015)) == [(0, "pass"), (1, "pass"), (2, "pass"), (3, "pass")]
    assert outcomes(INPUTS) == [(0, "hard"), (1, "hard"), (2, "hard"), (3, "hard")]
    mixed = OUTPUTS.copy()
    mixed[40:50] = STATES[3][40:50]  # the last layer skipped on ten positions
    mixed[64:] = rounded(mixed[64:], 0.07)
    assert outcomes(mixed) == [(0, "pass"), (1, "hard"), (2, "soft"), (3, "soft")]


def test_windows_lie_where_the_rows_do() -> None:
    sink = 30_000.0  # only position 0 may hold one
    assert INPUTS[0].max() > sink / 2
    assert outcomes(OUTPUTS, first=32) == [(1, "uncounted"), (2, "pass"), (3, "pass"), (4, "pass")]
    verdicts = judge_rows(Rows(40, INPUTS[40:], OUTPUTS[40:]), OUTPUTS[40:], CALIBRATION, SPAN)
    assert [(verdict.window, verdict.found.rows) for verdict in verdicts] == [(1, 24), (2, 32), (3, 4)]


def ruling(suspect: Floats, first: Floats, second: Floats, **options: object) -> tuple[PeerId | None, bool]:
    answers = {SUSPECT: suspect, FIRST: first, SECOND: second}
    rows = {peer: Rows(64, INPUTS[64:96], outputs[64:96]) for peer, outputs in answers.items()}
    found = arbitrate_window(SUSPECT, rows, CALIBRATION, SPAN, **options)  # type: ignore[arg-type]
    return found.struck, found.void


def test_arbitration_of_rows() -> None:
    honest = [rounded(OUTPUTS, 0.015, seed) for seed in range(3)]
    assert ruling(*honest) == (None, False)
    assert ruling(STATES[3], honest[1], honest[2]) == (SUSPECT, False)
    assert ruling(honest[0], INPUTS, honest[2]) == (FIRST, False)
    assert ruling(honest[0], honest[1], np.full_like(OUTPUTS, np.nan)) == (SECOND, False)
    assert ruling(STATES[3], INPUTS, honest[2]) == (None, True)
    assert ruling(STATES[3], honest[1], honest[2], thresholds=SOFT_ONLY) == (None, True)


def test_crafted_inputs_blame_nobody() -> None:
    rows = {peer: Rows(64, INPUTS[64:96] * 100, OUTPUTS[64:96] * size) for peer, size in
            ((SUSPECT, 1.0), (FIRST, 2.0), (SECOND, 2.0))}  # fmt: skip
    found = arbitrate_window(SUSPECT, rows, CALIBRATION, SPAN)
    assert (found.struck, found.void, found.suspects) == (None, True, ())


def test_outputs_that_no_text_leads_to_blame_nobody() -> None:
    """The two that agree may be right; but on a new sink inside the span any third would look right or wrong."""
    grown = OUTPUTS.copy()
    grown[70, 3] += 30_000
    (*_, verdict, _) = judge_rows(Rows(0, INPUTS, INPUTS), grown, CALIBRATION, SPAN)
    assert (verdict.window, verdict.outcome) == (2, "uncounted")
    assert ruling(INPUTS, grown, grown) == (None, True)
    assert ruling(grown, OUTPUTS, OUTPUTS) == (SUSPECT, False)  # nobody voids a window by its own outputs


def test_two_answers_are_not_enough() -> None:
    rows = {SUSPECT: Rows(64, INPUTS[64:96], INPUTS[64:96]), FIRST: Rows(64, INPUTS[64:96], OUTPUTS[64:96])}
    assert arbitrate_window(SUSPECT, rows, CALIBRATION, SPAN).void


def test_shapes_must_fit() -> None:
    with pytest.raises(MisuseError):
        judge_rows(Rows(0, INPUTS, OUTPUTS), OUTPUTS[1:], CALIBRATION, SPAN)
    assert judge_rows(Rows(0, INPUTS[:0], OUTPUTS[:0]), OUTPUTS[:0], CALIBRATION, SPAN) == ()
    (only,) = judge_rows(Rows(0, INPUTS[:1], OUTPUTS[:1]), OUTPUTS[:1], CALIBRATION, SPAN)
    assert only.outcome is Outcome.UNCOUNTED  # nothing but the sink
