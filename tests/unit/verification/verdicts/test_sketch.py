"""Sketches: the same everywhere, and close to the error they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic_activations import HIDDEN, MODEL, toy_calibration

from swarm.core.errors import MisuseError
from swarm.core.spans import Span
from swarm.verification.verdicts.calibration import Calibration, CalibrationHeader
from swarm.verification.verdicts.sketch import SKETCH_STEP, Sketcher, is_sketch_of, sketch_error

CALIBRATION = toy_calibration()
SPAN = Span(1, 3)
SKETCHER = Sketcher.of(CALIBRATION, SPAN)
SCALE = CALIBRATION.scale(SPAN)
UPDATE = np.random.default_rng(31).normal(0, 1, (32, HIDDEN)) * SCALE


def test_the_frozen_projection() -> None:
    """Other values here mean that sketches of two versions cannot be compared: that takes a new tag."""
    scales = np.full((3, 8), 0x3F80, np.uint16)  # all scales are 1
    ends = np.ones(3, np.float32)
    made = Sketcher.of(Calibration(CalibrationHeader(str(MODEL), 2, 8, 64, "seed 1"), scales, ends, ends), Span(0, 2))
    update = np.arange(16, dtype=float).reshape(2, 8) / 10
    assert made.sketch(update, first=33).tolist() == [
        [-2, -17, 10, 7, 7, 0, -10, 0, 0, -7, -24, -3, -2, 5, 5, -2],
        [-5, 0, -44, 54, 54, 3, -7, -61, -61, -41, 17, 7, -2, 42, 2, 8],
    ]


def test_values_are_sign_sums_of_the_whitened_update() -> None:
    """Every value is a sum of ± the whitened channels over sqrt(hidden): its square is e's length on average."""
    sketches = SKETCHER.sketch(UPDATE, first=32) * SKETCH_STEP
    assert np.mean(sketches**2) == pytest.approx(np.mean((UPDATE / SCALE) ** 2), rel=0.15)
    assert np.unique(np.abs(SKETCHER.turns)).tolist() == [1.0]
    signs = SKETCHER.matrix * math.sqrt(HIDDEN) * SKETCH_STEP * SCALE[:, None]
    assert np.abs(signs) == pytest.approx(1.0, rel=1e-5)
    assert abs(signs.mean()) < 0.1
    one = np.zeros((1, HIDDEN))
    one[0, 17] = 3 * SCALE[17]
    expected = np.rint(signs[17] * SKETCHER.turns[5, 17] * 3 / math.sqrt(HIDDEN) / SKETCH_STEP)
    assert SKETCHER.sketch(one, first=64 + 5)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("part", [0.03, 0.1, 0.3, 1.0])
def test_it_stands_for_the_error(part: float) -> None:
    rng, reference = np.random.default_rng(32), SKETCHER.sketch(UPDATE, first=0)
    for _ in range(20):
        other = UPDATE + rng.normal(0, part, UPDATE.shape) * SCALE
        assert sketch_error(SKETCHER.sketch(other, first=0), reference) == pytest.approx(part, rel=0.2)


def test_an_error_of_one_direction_in_all_rows_is_not_missed() -> None:
    """With one projection for all rows the estimate would vary by a third."""
    rng, reference = np.random.default_rng(33), SKETCHER.sketch(UPDATE, first=0)
    for _ in range(20):
        same = np.tile(rng.normal(0, 0.3, HIDDEN), (32, 1))
        size = float(np.sqrt(np.mean(same**2)))
        assert sketch_error(SKETCHER.sketch(UPDATE + same * SCALE, first=0), reference) == pytest.approx(size, rel=0.25)


def test_spans_and_calibrations_have_their_own() -> None:
    other = Sketcher.of(CALIBRATION, Span(0, 3))
    assert (np.sign(other.matrix) != np.sign(SKETCHER.matrix)).mean() == pytest.approx(0.5, abs=0.1)
    again = Sketcher.of(Calibration.from_bytes(CALIBRATION.to_bytes()), SPAN)
    assert (again.matrix == SKETCHER.matrix).all()


def test_a_sketch_is_its_rows_within_a_step() -> None:
    sketches = SKETCHER.sketch(UPDATE, first=0)
    assert is_sketch_of(sketches, SKETCHER.sketch(UPDATE * (1 + 1e-6), first=0))
    nudged, wrong = sketches.copy(), sketches.copy()
    nudged[3, 4] += 1
    wrong[3, 4] += 2
    assert is_sketch_of(nudged, sketches)
    assert not is_sketch_of(wrong, sketches)
    assert not is_sketch_of(sketches[1:], sketches)


@pytest.mark.filterwarnings("error")
def test_what_is_no_number_or_too_large_is_cut() -> None:
    hostile = UPDATE.copy()
    hostile[0, 3], hostile[1], hostile[2] = np.nan, 1e30, np.inf
    sketches = SKETCHER.sketch(hostile, first=0)
    assert sketches[0].tolist() == [0] * 16
    assert set(np.abs(sketches[1]).tolist()) <= {127}
    assert (sketches[3:] == SKETCHER.sketch(UPDATE, first=0)[3:]).all()


def test_compared_with_nothing() -> None:
    nothing = SKETCHER.sketch(np.zeros((4, HIDDEN)), first=0)
    assert sketch_error(SKETCHER.sketch(UPDATE[:4], first=0), nothing) == math.inf
    assert sketch_error(nothing, SKETCHER.sketch(UPDATE[:4], first=0)) == pytest.approx(1.0, rel=0.01)


def test_shapes_must_fit() -> None:
    sketches = SKETCHER.sketch(UPDATE, first=0)
    with pytest.raises(MisuseError):
        SKETCHER.sketch(UPDATE[:, 1:], first=0)
    with pytest.raises(MisuseError):
        SKETCHER.sketch(UPDATE, first=-1)
    with pytest.raises(MisuseError):
        sketch_error(sketches, sketches[1:])
    with pytest.raises(MisuseError):
        sketch_error(sketches[:, 1:], sketches[:, 1:])
