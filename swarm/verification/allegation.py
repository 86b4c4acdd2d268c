"""What a proof accuses whom of, before anything is computed again: its form, its signatures, its subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarm.core.ids import PeerId
from swarm.verification.proofs import FraudProof
from swarm.verification.signed.equivocation import EquivocationProof

ProofKind = Literal["equivocation", "fraud"]


@dataclass(frozen=True, slots=True)
class Allegation:
    """That ``subject``, as a server of ``model`` in ``session``, did ``what``. If it did, of fraud, the weights say."""

    subject: PeerId
    model: str
    session: bytes
    what: str


def read_charge(kind: ProofKind, data: bytes) -> Allegation:
    """What the proof says, if all holds that needs no weights. Takes some time for a large one.

    Raises ``BadProofError``, ``BadSignatureError`` or ``ProtocolViolation`` with what is wrong.
    """
    if kind == "equivocation":
        one, _ = EquivocationProof.parse(data).verify()
        opening, what = one.opening, f"it signed two different receipts with counter {one.counter}"
    else:
        receipt = FraudProof.parse(data).check().receipt
        opening = receipt.opening
        what = f"it answered for layers {opening.span} and rows {receipt.first}:{receipt.last} what it did not compute"
    return Allegation(PeerId(opening.signer), opening.model, opening.session, what)
