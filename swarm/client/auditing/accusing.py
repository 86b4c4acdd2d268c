"""From a failed audit of a challenge to a fraud proof, and from anybody's proof to the sentence that it supports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from swarm.client.auditing.audit import StageAudit
from swarm.client.auditing.reference import Reference, Replay
from swarm.client.auditing.rows import RowForm, floats
from swarm.core.errors import BadProofError, MisuseError, PeerError, PeerLostError
from swarm.core.ids import PeerId
from swarm.verification.proofs import ChallengeText, Charge, FraudProof, ProofParts, check_calibration, judge_charge
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.standings.strikes import TRUSTED
from swarm.verification.verdicts.calibration import Calibration, Floats
from swarm.verification.verdicts.judging import WindowVerdict
from swarm.verification.verdicts.verdict import DENSE, Outcome, Thresholds, declared_thresholds
from swarm.verification.verdicts.whitening import Rows, mutual_error, whitened

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

    Raises a ``PeerError`` (mostly ``BadProofError``) that says what is wrong with the proof. Any other ``SwarmError``
    says nothing of it: another calibration here, nobody who computes it again, others that do not agree.
    """
    if length_matters:
        raise BadProofError("a model whose rows depend on the text's length, which no receipt tells")
    charge = await asyncio.to_thread(lambda: FraudProof.parse(data).check())
    check_calibration(charge, calibration)
    chosen = await references(charge)
    trusted = _check_enough(chosen, charge)
    inputs = floats(charge.inputs, _received(charge)) if charge.inputs else None
    replay = Replay(charge.opening.span, charge.numerics, charge.token_ids, inputs, charge.receipt.first, charge.hidden)
    answers = [await _computed(reference, replay) for reference in chosen]
    if inputs is None:
        inputs = await chosen[0].embedded(charge.token_ids)
    limits = declared_thresholds(thresholds, charge.numerics)
    court = _Court(charge, _suspect(charge, inputs), calibration, limits, inputs is not None)
    if not trusted:
        court.check_agreement(answers)
    verdicts = [court.judge(answer, reference) for answer, reference in zip(answers, chosen, strict=True)]
    return Conviction(charge.subject, charge, tuple(verdicts))


def _check_enough(chosen: Sequence[Reference], charge: Charge) -> bool:
    """True if one of them is trusted; ``MisuseError`` if they are not enough to say anything."""
    if any(reference.name == TRUSTED for reference in chosen):
        return True
    names = {reference.name for reference in chosen} - {charge.subject}
    if len(names) < 2 or len(names) < len(chosen):
        raise MisuseError("not enough others hold the accused layers", hint="check it with the weights")
    return False


async def _computed(reference: Reference, replay: Replay) -> Floats:
    """What a reference makes of it; that an auditor answers nonsense is no fault of the proof's."""
    try:
        return await reference.outputs(replay)
    except PeerError as error:
        if reference.name == TRUSTED:
            raise
        raise PeerLostError(f"{reference.name[-8:]} did not compute it again: {error.message}") from error


@dataclass(frozen=True, eq=False, slots=True)
class _Court:
    charge: Charge
    suspect: Rows
    calibration: Calibration
    thresholds: Thresholds
    inputs_known: bool

    def judge(self, answer: Floats, reference: Reference) -> WindowVerdict:
        return judge_charge(
            self.charge,
            self.suspect,
            answer,
            self.calibration,
            numerics=reference.numerics,
            thresholds=self.thresholds,
            inputs_known=self.inputs_known,
        )

    def check_agreement(self, answers: Sequence[Floats]) -> None:
        """Raise ``MisuseError`` if the auditors differ among themselves: then one of them may be the liar."""
        first, span = self.charge.receipt.first, self.charge.opening.span
        inputs = self.suspect.inputs[first:]
        updates = [whitened(Rows(first, inputs, answer), self.calibration, span) for answer in answers]
        if any(mutual_error(updates[0], update) > self.thresholds.pass_error for update in updates[1:]):
            raise MisuseError("those who computed it again do not agree", hint="check it with the weights")


def _received(charge: Charge) -> RowForm:
    return RowForm(charge.codec, charge.numerics.dtype, charge.hidden)


def _suspect(charge: Charge, inputs: Floats | None) -> Rows:
    """All rows: outputs of those before the window are nobody's business here."""
    receipt = charge.receipt
    outputs = np.zeros((receipt.last, charge.hidden), np.float32)
    outputs[receipt.first :] = floats(charge.outputs, RowForm("raw", charge.numerics.dtype, charge.hidden))
    return Rows(0, np.zeros_like(outputs) if inputs is None else inputs, outputs)
