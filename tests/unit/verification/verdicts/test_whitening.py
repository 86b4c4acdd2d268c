"""The whitened update: what it sees that whole activations hide, and what it must not see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_activations import HIDDEN, HUGE, LAYERS, Floats, stream, toy_calibration

from swarm.core.errors import MisuseError
from swarm.core.spans import Span
from swarm.verification.verdicts.published import compare_whole
from swarm.verification.verdicts.whitening import (
    Comparison,
    Rows,
    compare,
    inputs_count,
    mutual_error,
    outputs_count,
    whitened,
)

CALIBRATION = toy_calibration()
SPAN = Span(1, 3)
STATES = stream(np.random.default_rng(21), 96)
INPUTS, OUTPUTS = STATES[SPAN.start], STATES[SPAN.end]


def found(outputs: Floats, *, first: int = 0, inputs: Floats = INPUTS, reference: Floats = OUTPUTS) -> Comparison:
    ours = whitened(Rows(first, inputs, outputs), CALIBRATION, SPAN)
    return compare(ours, whitened(Rows(first, inputs, reference), CALIBRATION, SPAN))


def test_the_same_answer() -> None:
    same = found(OUTPUTS)
    assert same == Comparison(same.cosine, norm_difference=0.0, error=0.0, rows=95)
    assert same.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("part", [0.01, 0.045, 0.1, 0.5])
def test_noise_of_a_known_size(part: float) -> None:
    """Noise of ``part`` of each channel's scale gives that e, and its cosine follows: 1 / sqrt(1 + e²)."""
    scale = CALIBRATION.scale(SPAN)
    noise = np.random.default_rng(22).normal(0, 1, OUTPUTS.shape) * scale * part
    noisy = found(OUTPUTS + noise)
    assert noisy.error == pytest.approx(part, rel=0.05)
    assert noisy.cosine == pytest.approx(1 / math.sqrt(1 + part**2), abs=0.01)


def test_an_input_passed_through_has_an_error_of_one() -> None:
    lazy = found(INPUTS)
    assert (lazy.error, lazy.cosine, lazy.norm_difference) == (1.0, 0.0, 1.0)


def test_a_skipped_layer_stands_out() -> None:
    """Two layers with independent updates of one size: leaving one out loses 1 / sqrt(2) of the whole."""
    skipped = found(STATES[SPAN.start + 1])
    assert skipped.error == pytest.approx(math.sqrt(0.5), rel=0.05)


def test_the_published_comparison_is_blind_to_both() -> None:
    """One sink and two huge channels: the server that does nothing passes it on every window, the sink's or not."""
    for _, rows in Rows(0, INPUTS, OUTPUTS).windows():
        blind = compare_whole(rows.inputs, rows.outputs)
        assert blind.passes
        assert blind.cosine > 0.999
    assert compare_whole(STATES[SPAN.start + 1], OUTPUTS).passes
    assert not compare_whole(INPUTS, -OUTPUTS).passes  # it does see something
    assert not compare_whole(INPUTS * 1.06, OUTPUTS).passes


def test_the_sink_does_not_count() -> None:
    wrong = OUTPUTS.copy()
    wrong[0] += 1e6
    assert found(wrong).error == 0
    assert found(wrong, first=32).error > 100  # there row 0 is an ordinary position


def test_every_channel_counts_by_its_own_scale() -> None:
    """An error of one scale in a channel of twice the scale is the same error."""
    scale = CALIBRATION.scale(SPAN)
    small, large = int(scale.argmin()), int(scale.argmax())
    assert scale[large] > 1.5 * scale[small]
    errors = []
    for channel in (small, large, HUGE[0]):
        wrong = OUTPUTS.copy()
        wrong[:, channel] += scale[channel]
        errors.append(found(wrong).error)
    assert errors == pytest.approx([errors[0]] * 3, rel=1e-6)


@given(st.integers(0, 100), st.integers(0, 100))
def test_windows_tile_the_rows(first: int, count: int) -> None:
    places = np.repeat(np.arange(first, first + count, dtype=float)[:, None], 2, axis=1)
    cut = Rows(first, places, places + 0.5).windows()
    assert [number for number, _ in cut] == sorted({place // 32 for place in range(first, first + count)})
    assert [place for _, rows in cut for place in rows.inputs[:, 0]] == places[:, 0].tolist()
    for number, rows in cut:
        assert rows.first == rows.inputs[0, 0]
        assert all(place // 32 == number for place in rows.inputs[:, 0])
        assert (rows.update() == 0.5).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 3e38])
@pytest.mark.filterwarnings("error")
def test_what_is_no_number_agrees_with_nothing(value: float) -> None:
    wrong = OUTPUTS.astype(np.float64)
    wrong[40, 7] = value
    assert found(wrong).error > 1e30
    assert found(OUTPUTS, reference=wrong).error >= 1 - 1e-9
    ours, theirs = (whitened(Rows(0, INPUTS, rows), CALIBRATION, SPAN) for rows in (wrong, OUTPUTS))
    assert mutual_error(ours, theirs) > 1e30


@given(st.integers(0, 2**32 - 1), st.floats(0, 3))
def test_mutual_error_is_symmetric_and_the_stricter(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(0, 1, (4, 6)), rng.normal(0, size, (4, 6))
    assert mutual_error(one, other) == mutual_error(other, one)
    assert mutual_error(one, other) >= compare(one, other).error
    assert mutual_error(one, one) == 0
    if size == 0:
        assert mutual_error(one, other) == math.inf  # compared with nothing


def test_which_windows_count() -> None:
    one, last = (Rows(first, INPUTS[first : first + 32], OUTPUTS[first : first + 32]) for first in (0, 64))
    assert inputs_count(one, CALIBRATION, SPAN)  # the sink's row is far outside, and left out
    assert inputs_count(last, CALIBRATION, SPAN)
    crafted = INPUTS[64:96].copy()
    crafted[5] *= 10
    assert not inputs_count(Rows(64, crafted, OUTPUTS[64:96]), CALIBRATION, SPAN)
    assert not inputs_count(Rows(0, INPUTS[:1], OUTPUTS[:1]), CALIBRATION, SPAN)
    assert found(OUTPUTS[:1], inputs=INPUTS[:1], reference=OUTPUTS[:1]).rows == 0


def test_a_new_sink_inside_the_span_does_not_count() -> None:
    """Its update outweighs all others, so a server that returns all the other inputs would pass."""
    grown, lazy = OUTPUTS[64:96].copy(), INPUTS[64:96].copy()
    grown[5, HUGE] += 30_000
    lazy[5] = grown[5]
    inputs = INPUTS[64:96]
    assert found(lazy, first=64, inputs=inputs, reference=grown).error < 0.045
    good = Rows(64, inputs, grown)
    assert inputs_count(good, CALIBRATION, SPAN)
    assert not outputs_count(good, CALIBRATION, SPAN)
    assert outputs_count(Rows(64, inputs, OUTPUTS[64:96]), CALIBRATION, SPAN)
    assert not outputs_count(Rows(0, INPUTS[:1], OUTPUTS[:1]), CALIBRATION, SPAN)


def test_shapes_must_fit() -> None:
    with pytest.raises(MisuseError):
        Rows(0, INPUTS, OUTPUTS[1:])
    with pytest.raises(MisuseError):
        Rows(-1, INPUTS, OUTPUTS)
    with pytest.raises(MisuseError):
        compare(INPUTS, OUTPUTS[1:])
    with pytest.raises(MisuseError, match=str(HIDDEN)):
        whitened(Rows(0, INPUTS[:, 1:], OUTPUTS[:, 1:]), CALIBRATION, Span(0, LAYERS))
