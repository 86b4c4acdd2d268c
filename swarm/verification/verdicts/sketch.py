"""Sixteen bytes that stand for a row's whitened update, so that two answers can be compared before rows are fetched."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.core.errors import MisuseError
from swarm.core.spans import Span
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.verdicts.calibration import Calibration, Floats

SKETCH_VALUES = 16
SKETCH_STEP = 1.0 / 24
"""What one step of a value stands for, in units of the update's rms: values beyond 5.3 are cut off."""

Sketches = npt.NDArray[np.int8]

_DOMAIN = b"swarm/sketch/1\0"
_LARGEST = 127


@dataclass(frozen=True, eq=False, slots=True)
class Sketcher:
    """The projections of one span: the update of a row ``[hidden]`` and its position → 16 values.

    A value is the whitened update times random signs over sqrt(hidden), in steps of ``SKETCH_STEP``, rounded to the
    nearest whole number (ties to even) and cut to -127..127. The sign of a channel is the product of one of 16, by
    value, and one of 32, by the position modulo 32: a difference that has the same direction in every row does not
    meet the same projection in all. The signs are the bits of SHAKE-256 over a tag, the calibration's digest and the
    span, so they are the same for all. ``matrix`` ``[hidden, 16]`` holds those by value, with the scales; ``turns``
    ``[32, hidden]`` those by position.
    """

    matrix: npt.NDArray[np.float32]
    turns: npt.NDArray[np.float32]

    @classmethod
    def of(cls, calibration: Calibration, span: Span, *, digest: bytes | None = None) -> Sketcher:
        """The sketcher of ``span``; hashes the calibration, unless told its ``digest``. 192 · hidden bytes: keep it."""
        hidden = calibration.header.hidden
        layers = span.start.to_bytes(4, "big") + span.end.to_bytes(4, "big")
        seed = _DOMAIN + (digest or calibration.digest()) + layers
        stream = hashlib.shake_256(seed).digest((SKETCH_VALUES + WINDOW_ROWS) * hidden // 8)
        signs = 1.0 - 2.0 * np.unpackbits(np.frombuffer(stream, np.uint8))
        by_value = signs[: SKETCH_VALUES * hidden].reshape(hidden, SKETCH_VALUES)
        by_position = signs[SKETCH_VALUES * hidden :].reshape(WINDOW_ROWS, hidden)
        weights = by_value / (math.sqrt(hidden) * SKETCH_STEP * calibration.scale(span)[:, None])
        return cls(weights.astype(np.float32), by_position.astype(np.float32))

    def sketch(self, update: Floats, *, first: int) -> Sketches:
        """Sketches, int8 ``[n, 16]``, of updates ``[n, hidden]`` (not whitened) from position ``first`` on.

        In float32: 33 · hidden operations a row. What is not finite becomes zero. Two machines may differ by one step
        where a value lies between two.
        """
        if update.ndim != 2 or update.shape[1] != len(self.matrix) or first < 0:
            raise MisuseError(f"cannot sketch updates of shape {update.shape} from position {first}")
        turns = self.turns[np.arange(first, first + len(update)) % WINDOW_ROWS]
        with np.errstate(all="ignore"):
            values = (np.asarray(update, np.float32) * turns) @ self.matrix
            whole = np.rint(np.minimum(np.maximum(values, -_LARGEST), _LARGEST))
            whole[np.isnan(whole)] = 0.0
        return np.asarray(whole, np.int8)


def sketch_error(sketches: Sketches, reference: Sketches) -> float:
    """An estimate of e from sketches ``[n, 16]`` of the same n rows, the sink's not among them.

    The projection keeps squared lengths in the mean (Johnson and Lindenstrauss; signs: Achlioptas 2003), so e² is
    about ``|s - s_ref|² / |s_ref|²``, less what rounding both adds: 1/6 for each value. Over a window of 32 rows the
    estimate is within 15 % of e (measured, e of 0.03 to 0.4); below e = 0.01 the rounding hides it. It decides what
    to fetch, never a verdict: a liar may have signed whatever it likes. Infinite if the reference is zero.
    """
    if sketches.shape != reference.shape or sketches.shape[1:] != (SKETCH_VALUES,):
        raise MisuseError(f"sketches of shapes {sketches.shape} and {reference.shape}")
    ours, theirs = sketches.astype(np.int64), reference.astype(np.int64)
    length = int((theirs**2).sum())
    if length == 0:
        return math.inf
    difference = float(((ours - theirs) ** 2).sum()) - ours.size / 6
    return math.sqrt(max(difference, 0.0) / length)


def is_sketch_of(signed: Sketches, recomputed: Sketches) -> bool:
    """True if a signed sketch is the rows' own, within the one step by which two machines may differ."""
    if signed.shape != recomputed.shape:
        return False
    return bool((np.abs(signed.astype(np.int64) - recomputed.astype(np.int64)) <= 1).all())
