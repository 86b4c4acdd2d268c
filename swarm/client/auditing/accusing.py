"""From a failed audit of a challenge to a fraud proof, and from anybody's proof to the sentence that it supports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from swarm.client.auditing.audit import StageAudit
from swarm.client.auditing.auditors import ServerReference
from swarm.client.auditing.reference import Reference, Replay
from swarm.client.auditing.rows import RowForm, floats
from swarm.core.errors import BadProofError, MisuseError
from swarm.core.ids import PeerId
from swarm.verification.calibration import Calibration, Floats
from swarm.verification.judging import WindowVerdict
from swarm.verification.proofs import ChallengeText, Charge, FraudProof, ProofParts, judge_charge
from swarm.verification.receipts import WINDOW_ROWS
from swarm.verification.verdict import DENSE, Outcome, Thresholds
from swarm.verification.whitening import Rows, mutual_error, whitened

__all__ = ["ChallengeText", "Conviction", "References", "convict", "prove"]

References = Callable[[Charge], Awaitable[Sequence[Reference]]]
"""Who computes a charge again: the own replica alone, or two servers that cover the span."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """A proof that holds: ``subject`` answered for ``charge`` what it did not compute. One verdict per reference."""

    subject: PeerId
    charge: Charge
    verdicts: tuple[WindowVerdict, ...]

    @property
    def sentence(self) -> str:
        """For people."""
        receipt, opening, found = self.charge.receipt, self.charge.opening, self.verdicts[0].found
        return (
            f"{self.subject} signed for layers {opening.span} of {opening.model} in {opening.numerics} and did not "
            f"compute them: rows {receipt.first}:{receipt.last} are off by e = {found.error:.3g} "
            f"(cosine {found.cosine:.4f})"
        )


def prove(audit: StageAudit, text: ChallengeText, calibration: Calibration) -> FraudProof:
    """The proof of the first window that failed hard by its rows, in a session whose secret was a challenge's seed.

    Raises ``MisuseError`` if nothing can be proven to others: no such window, a session with a local head (its rows
    carry no ids), a stage that did not sign for every window from the first, or a server whose tokens alone are wrong
    (no receipt says with which parameters it was to sample).
    """
    material = audit.material
    failed = [window.window for window in audit.windows if window.rows is Outcome.HARD]
    if material is None or not failed:
        raise MisuseError("no window failed by its rows, which is all that can be proven to others")
    if not material.record.remote_head:
        raise MisuseError("the rows of a session with a local head carry no ids that would tie them to a challenge")
    window = failed[0]
    receipts = [signed for signed in material.receipts if signed.receipt.window <= window]
    last, begin = receipts[-1].receipt.last, window * WINDOW_ROWS - material.first
    rows = last - window * WINDOW_ROWS
    size = material.raw.row_bytes
    parts = ProofParts(
        seed=material.record.secret,
        receipts=receipts,
        codec=material.form.codec,
        token_ids=material.record.token_ids,
        inputs=material.inputs[: last * material.form.row_bytes],
        outputs=material.outputs[begin * size : (begin + rows) * size],
        leaves=material.leaves[begin : begin + rows],
        calibration=calibration.digest(),
    )
    return FraudProof.of(parts, text)


async def convict(
    data: bytes,
    references: References,
    calibration: Calibration,
    thresholds: Thresholds = DENSE,
    *,
    length_matters: bool = False,
) -> Conviction:
    """Check a proof that came from anybody: signatures, trees, seed, then the rows, computed again.

    One trusted reference is enough; of others it takes two, who are neither the accused nor one another and agree.
    ``length_matters``: rows of this model depend on how long the whole text was to be, which no receipt says; then
    nothing can be proven.
    Raises ``BadProofError`` (or another ``PeerError``) that says what is wrong with it, what a reference raises, and
    ``MisuseError`` if the references are not enough to say anything.
    """
    if length_matters:
        raise BadProofError("a model whose rows depend on the text's length, which no receipt tells")
    charge = await asyncio.to_thread(lambda: FraudProof.parse(data).check())
    chosen = await references(charge)
    trusted = not any(isinstance(reference, ServerReference) for reference in chosen)
    names = {reference.name for reference in chosen} - {charge.subject}
    if not chosen or (not trusted and (len(names) < 2 or len(names) < len(chosen))):
        raise MisuseError("not enough of others hold the accused layers", hint="check it with the weights (--model)")
    inputs = floats(charge.inputs, _received(charge)) if charge.inputs else None
    first = charge.receipt.first
    replay = Replay(charge.opening.span, charge.numerics, charge.token_ids, inputs, first, charge.hidden)
    answers = [np.asarray(await reference.outputs(replay)) for reference in chosen]
    if inputs is None:
        inputs = await chosen[0].embedded(charge.token_ids)
    known = inputs is not None
    suspect = _suspect(charge, inputs)
    verdicts = []
    for reference, outputs in zip(chosen, answers, strict=True):
        verdicts.append(
            judge_charge(
                charge,
                suspect,
                outputs,
                calibration,
                numerics=reference.numerics,
                thresholds=thresholds,
                inputs_known=known,
            )
        )
    if not trusted:
        _check_agreement(charge, suspect, answers, calibration, thresholds)
    return Conviction(charge.subject, charge, tuple(verdicts))


def _received(charge: Charge) -> RowForm:
    return RowForm(charge.codec, charge.numerics.dtype, charge.hidden)


def _suspect(charge: Charge, inputs: Floats | None) -> Rows:
    """All rows: outputs of those before the window are nobody's business here."""
    receipt = charge.receipt
    outputs = np.zeros((receipt.last, charge.hidden), np.float32)
    outputs[receipt.first :] = floats(charge.outputs, RowForm("raw", charge.numerics.dtype, charge.hidden))
    return Rows(0, np.zeros_like(outputs) if inputs is None else inputs, outputs)


def _check_agreement(
    charge: Charge, suspect: Rows, answers: Sequence[Floats], calibration: Calibration, thresholds: Thresholds
) -> None:
    """Raise ``BadProofError`` if the auditors differ among themselves: then one of them may be the liar."""
    first, span = charge.receipt.first, charge.opening.span
    updates = [whitened(Rows(first, suspect.inputs[first:], answer), calibration, span) for answer in answers]
    if any(mutual_error(updates[0], update) > thresholds.pass_error for update in updates[1:]):
        raise BadProofError("those who computed it again do not agree with each other")
