"""From rows to verdicts: what an audit has in hand, judged window by window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.verification.verdicts.calibration import Calibration, Floats
from swarm.verification.verdicts.verdict import DENSE, Outcome, Pair, Ruling, Thresholds, arbitrate, judge_window
from swarm.verification.verdicts.whitening import (
    Comparison,
    Rows,
    compare,
    inputs_count,
    mutual_error,
    outputs_count,
    whitened,
)


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """Window number ``window`` [32w, 32w + 32), how it compares, and what that means."""

    window: int
    found: Comparison
    outcome: Outcome


OUTSIDE = Ruling(void=True, reason="the rows are outside what the model was calibrated for")


def judge_rows(
    suspect: Rows,
    reference: Floats,
    calibration: Calibration,
    span: Span,
    thresholds: Thresholds = DENSE,
    *,
    inputs_known: bool = True,
) -> tuple[WindowVerdict, ...]:
    """Judge what a suspect made of its inputs by what the ``reference`` made of the same: outputs ``[n, hidden]``.

    A window counts if the inputs and the reference's outputs are of a size that text leads to. The rows may begin and
    end anywhere; windows at the edges are then judged by the rows that are there. Whoever has no embeddings does not
    know the inputs of a first stage (``inputs_known`` False): with zeros in their place e is measured against whole
    outputs, which are larger than their updates, and the outputs alone decide whether a window counts. O(n · hidden).
    Raises ``MisuseError`` for shapes that do not fit.
    """
    ours, theirs = suspect.windows(), Rows(suspect.first, suspect.inputs, reference).windows()
    verdicts = []
    for (window, rows), (_, good) in zip(ours, theirs, strict=True):
        found = compare(whitened(rows, calibration, span), whitened(good, calibration, span))
        ordinary = not inputs_known or inputs_count(rows, calibration, span)
        counts = ordinary and outputs_count(good, calibration, span)
        verdicts.append(WindowVerdict(window, found, judge_window(found, thresholds, counts=counts)))
    return tuple(verdicts)


def arbitrate_window(
    suspect: PeerId,
    answers: Mapping[PeerId, Rows],
    calibration: Calibration,
    span: Span,
    thresholds: Thresholds = DENSE,
    *,
    inputs_known: bool = True,
) -> Ruling:
    """Who of those who answered for one window is wrong: ``verdict.arbitrate`` of their rows.

    ``answers`` holds the suspect's rows and the auditors': of this window alone, and all for the same inputs. Void if
    the inputs do not count, or the outputs on which the other two agree do not; then nobody is suspected either.
    ``inputs_known`` as in ``judge_rows``.
    """
    if inputs_known and not inputs_count(answers[suspect], calibration, span):
        return OUTSIDE
    updates = {peer: whitened(rows, calibration, span) for peer, rows in answers.items()}
    errors: dict[Pair, float] = {(a, b): mutual_error(updates[a], updates[b]) for a, b in combinations(updates, 2)}
    ruling = arbitrate(suspect, [peer for peer in answers if peer != suspect], errors, thresholds)
    good = [rows for peer, rows in answers.items() if ruling.struck not in (None, peer)]
    if not all(outputs_count(rows, calibration, span) for rows in good):
        return OUTSIDE
    return ruling
