"""Calibrations: the scale of any span, canonical bytes, and damage that is noticed."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_activations import HIDDEN, LAYERS, MODEL, stream, toy_calibration

from swarm.core.errors import ConfigError, MisuseError, ModelError
from swarm.core.spans import Span
from swarm.verification.verdicts.calibration import RMS_MARGIN, Calibration, CalibrationHeader, calibrate

CALIBRATION = toy_calibration()
BYTES = CALIBRATION.to_bytes()
SPANS = [Span(start, end) for start in range(LAYERS) for end in range(start + 1, LAYERS + 1)]


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_a_scale_is_the_deviation_of_the_spans_update(span: Span) -> None:
    """Computed the direct way, from the states at both ends."""
    states = stream(np.random.default_rng(11), 513)[:, 1:]
    direct = (states[span.end] - states[span.start]).std(axis=0)
    assert CALIBRATION.scale(span) == pytest.approx(direct, rel=2.0**-8)


def test_what_a_sink_does_is_left_out() -> None:
    states = stream(np.random.default_rng(5), 200)
    states[2:, 0] += 1e6
    counted = np.arange(200) > 0
    without = calibrate(MODEL, states[:, 1:], np.ones(199, bool), text="")
    assert calibrate(MODEL, states, counted, text="").to_bytes() == without.to_bytes()


def test_a_channel_that_never_moves_has_a_scale() -> None:
    states = stream(np.random.default_rng(5), 200)
    states[:, :, 7] = 2.0
    found = calibrate(MODEL, states, np.ones(200, bool), text="")
    scale = found.scale(Span(0, 2))
    assert 0 < scale[7] < scale.min(where=np.arange(HIDDEN) != 7, initial=np.inf)


def test_the_frozen_form() -> None:
    """Another digest means that receipts name calibrations that nobody has: that takes a new tag."""
    scales = np.arange(1, 7, dtype=np.uint16).reshape(3, 2) + 0x3F80
    ends = np.array([0.5, 1.0, 2.0], np.float32)
    made = Calibration(CalibrationHeader(str(MODEL), 2, 2, 64, "seed 1"), scales, ends, 2 * ends)
    assert made.digest().hex() == "b8fd62240a48051add228111c2690ae703d65205a1ec687bf3e52a4e1a3acb08"
    assert made.scale(Span(1, 2)).tolist() == [1 + 5 / 128, 1 + 6 / 128]


def test_bytes_come_back() -> None:
    read = Calibration.from_bytes(BYTES)
    assert read.header == CALIBRATION.header
    assert read.to_bytes() == BYTES
    assert read.digest() == CALIBRATION.digest()
    assert (read.scale(Span(1, 3)) == CALIBRATION.scale(Span(1, 3))).all()
    assert len(BYTES) < LAYERS * (LAYERS + 1) * HIDDEN + 8 * (LAYERS + 1) + 120


@settings(max_examples=50)
@given(st.integers(0, len(BYTES)), st.binary(max_size=8))
def test_a_cut_or_lengthened_file_is_refused(end: int, more: bytes) -> None:
    data = BYTES[:end] + more
    if data != BYTES:
        with pytest.raises(ModelError):
            Calibration.from_bytes(data)


def altered(**changes: object) -> bytes:
    header = msgspec.structs.replace(CALIBRATION.header, **changes)
    return Calibration(header, CALIBRATION.scales, CALIBRATION.low_rms, CALIBRATION.high_rms).to_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"layers": 0}, {"layers": 10**9}, {"hidden": 10**9}, {"hidden": HIDDEN + 1}, {"tokens": -1}, {"model": "no id"},
     {"text": "x" * 1000}],
)  # fmt: skip
def test_an_absurd_header_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        Calibration.from_bytes(altered(**changes))


@pytest.mark.parametrize("bits", [0x0000, 0x8000, 0xBF80, 0x7F80, 0x7FC0], ids=["0", "-0", "-1", "inf", "nan"])
def test_a_scale_that_cannot_be_is_refused(bits: int) -> None:
    scales = CALIBRATION.scales.copy()
    scales[3, 5] = bits
    with pytest.raises(ModelError, match="scale"):
        Calibration.from_bytes(
            Calibration(CALIBRATION.header, scales, CALIBRATION.low_rms, CALIBRATION.high_rms).to_bytes()
        )


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.5), (-1.0, 1.0), (np.nan, 1.0), (1.0, np.inf)])
def test_a_range_that_cannot_be_is_refused(low: float, high: float) -> None:
    lows, highs = CALIBRATION.low_rms.copy(), CALIBRATION.high_rms.copy()
    lows[1], highs[1] = low, high
    with pytest.raises(ModelError, match="range"):
        Calibration.from_bytes(Calibration(CALIBRATION.header, CALIBRATION.scales, lows, highs).to_bytes())


def test_rows_of_another_size_are_out_of_range() -> None:
    rows = stream(np.random.default_rng(12), 40, sink=False)[2]
    assert CALIBRATION.in_range(2, rows).all()
    assert not CALIBRATION.in_range(2, rows * 2.5 * RMS_MARGIN).any()
    assert not CALIBRATION.in_range(2, rows / (2.5 * RMS_MARGIN)).any()
    with np.errstate(invalid="ignore"):
        assert not CALIBRATION.in_range(2, rows * np.nan).any()
    assert not CALIBRATION.in_range(2, stream(np.random.default_rng(12), 2)[2])[0]  # the sink's


def test_what_cannot_be_calibrated() -> None:
    states = stream(np.random.default_rng(5), 100)
    with pytest.raises(MisuseError, match="too few"):
        calibrate(MODEL, states, np.arange(100) < 10, text="")
    with pytest.raises(MisuseError, match="do not fit"):
        calibrate(MODEL, states, np.ones(99, bool), text="")
    states[1, 50, 3] = np.nan
    with pytest.raises(MisuseError, match="finite"):
        calibrate(MODEL, states, np.ones(100, bool), text="")


def test_a_span_outside_the_model() -> None:
    with pytest.raises(ConfigError):
        CALIBRATION.scale(Span(2, LAYERS + 1))
