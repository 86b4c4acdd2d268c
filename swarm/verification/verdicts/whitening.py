"""How far a server's answer is from a reference: the whitened update of a span, window by window (DESIGN 9).

In the residual stream one sink position and a few channels hold 99 % of the energy, and what a span adds is small
beside what passes through it. So the update (output minus input) is compared, each channel divided by the standard
deviation of its update, the sink left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swarm.core.errors import MisuseError
from swarm.core.spans import Span
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.verdicts.calibration import Calibration, Floats

SINK_ROWS = 1
"""Leading positions of a session that are not compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an update differs from the reference's.

    ``cosine`` is their cosine similarity, ``norm_difference`` the absolute difference of their norms over the
    reference's, ``error`` (e) the norm of their difference over the reference's norm; all whitened, over ``rows``
    rows together. ``error`` is infinite where nothing can be compared: a value that is not finite, a reference of
    zero.
    """

    cosine: float
    norm_difference: float
    error: float
    rows: int


NOTHING = Comparison(cosine=0.0, norm_difference=math.inf, error=math.inf, rows=0)


@dataclass(frozen=True, slots=True)
class Rows:
    """What one server had and gave for consecutive positions of a span: ``inputs`` and ``outputs`` ``[n, hidden]``.

    ``first`` is the absolute position of row 0.
    """

    first: int
    inputs: Floats
    outputs: Floats

    def __post_init__(self) -> None:
        if self.first < 0 or self.inputs.ndim != 2 or self.inputs.shape != self.outputs.shape:
            raise MisuseError(f"inputs {self.inputs.shape} do not fit outputs {self.outputs.shape}")

    def windows(self) -> list[tuple[int, Rows]]:
        """Cut at absolute multiples of ``WINDOW_ROWS``: (number of the window, its rows), in order."""
        end = self.first + len(self.inputs)
        numbers = range(self.first // WINDOW_ROWS, -(-end // WINDOW_ROWS)) if len(self.inputs) else ()
        return [(number, self._between(number * WINDOW_ROWS, (number + 1) * WINDOW_ROWS)) for number in numbers]

    def without_sink(self) -> Rows:
        return self._between(SINK_ROWS, self.first + len(self.inputs))

    def update(self) -> Floats:
        """Outputs minus inputs, float64."""
        return np.asarray(np.subtract(self.outputs, self.inputs, dtype=np.float64))

    def _between(self, start: int, end: int) -> Rows:
        cut = slice(max(start - self.first, 0), max(end - self.first, 0))
        return Rows(max(start, self.first), self.inputs[cut], self.outputs[cut])


def whitened(rows: Rows, calibration: Calibration, span: Span) -> Floats:
    """The update of ``rows`` over each channel's scale, float64 ``[n, hidden]``, n without the sink.

    Not finite where the rows are not. Raises ``MisuseError`` if the rows are not as wide as the model.
    """
    if rows.inputs.shape[1] != calibration.header.hidden:
        raise MisuseError(f"rows of {rows.inputs.shape[1]} channels, the model has {calibration.header.hidden}")
    with np.errstate(all="ignore"):  # a stranger's rows may overflow; the comparison says so
        return np.asarray(rows.without_sink().update() / calibration.scale(span))


def compare(update: Floats, reference: Floats) -> Comparison:
    """Compare two whitened updates ``[n, hidden]`` of the same positions as one vector each. O(n · hidden).

    Rounding noise of n rows averages out like 1 / sqrt(n): an error says less for a window of few rows. Raises
    ``MisuseError`` for two shapes.
    """
    if update.shape != reference.shape:
        raise MisuseError(f"updates of shapes {update.shape} and {reference.shape}")
    rows = len(update)
    with np.errstate(all="ignore"):
        ours, theirs = float(np.linalg.norm(update)), float(np.linalg.norm(reference))
        distance = float(np.linalg.norm(np.subtract(update, reference)))
        product = float(np.vdot(update, reference))
    if not (math.isfinite(ours) and math.isfinite(theirs) and math.isfinite(distance) and theirs > 0):
        return Comparison(0.0, math.inf, math.inf, rows)
    cosine = product / (ours * theirs) if ours > 0 and math.isfinite(product) else 0.0
    return Comparison(max(-1.0, min(1.0, cosine)), abs(ours - theirs) / theirs, distance / theirs, rows)


def mutual_error(one: Floats, other: Floats) -> float:
    """e of two answers of which neither is the reference: the larger of the two ways round, so that it is symmetric."""
    return max(compare(one, other).error, compare(other, one).error)


def inputs_count(rows: Rows, calibration: Calibration, span: Span) -> bool:
    """True if the window's inputs lie within the calibrated range of rms, the sink aside.

    On inputs far from any text honest servers diverge, and a hostile client can craft such; a window of them does not
    count, for nor against anybody. False also for a window that holds nothing but the sink.
    """
    inside = calibration.in_range(span.start, rows.without_sink().inputs)
    return bool(len(inside)) and bool(inside.all())


def outputs_count(rows: Rows, calibration: Calibration, span: Span) -> bool:
    """The same of outputs, to be asked of the reference's.

    A text of one token again and again makes sinks of ordinary positions, somewhere in the model. In the span that does
    it inputs look ordinary and one update outweighs all others, as a sink's does: everything would pass.
    """
    inside = calibration.in_range(span.end, rows.without_sink().outputs)
    return bool(len(inside)) and bool(inside.all())
