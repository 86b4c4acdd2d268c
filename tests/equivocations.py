"""Servers that sign two different receipts with one counter: the evidence, and the records that carry it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from swarm.core.accusation import Accusation
from swarm.core.keys import Identity
from swarm.core.records import sign_record
from swarm.verification.equivocation import EquivocationProof
from swarm.verification.receipts import NO_HASH, Opening, Receipt, sign_receipt

CLIENT = Identity(bytes([250]) * 32)
RECEIPT = 1


def receipt_of(signer: Identity, model: str, **changes: Any) -> Receipt:
    """A receipt that ``signer`` might sign: layers 0:1, the first full window."""
    opening = Opening(
        signer=signer.peer_id,
        client=CLIENT.peer_id,
        session=bytes(16),
        nonce=bytes(16),
        stage=0,
        start=0,
        end=1,
        model=model,
        calibration=NO_HASH,
        numerics="float32",
        commitment=bytes(32),
    )
    hashes = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32, bytes([4]) * 32
    return replace(Receipt(RECEIPT, opening, 0, 32, *hashes, counter=7, expires_s=2**31), **changes)


def evidence_against(signer: Identity, model: object, *, variant: int = 0) -> bytes:
    """A proof of equivocation by ``signer``; another ``variant`` is another proof."""
    one = receipt_of(signer, str(model))
    other = replace(one, out_root=bytes([9, variant]) * 16)
    return EquivocationProof.of(sign_receipt(signer, one), sign_receipt(signer, other)).to_bytes()


def accusation(holder: Identity, subject: Identity, model: object, now_s: float, /, **changes: Any) -> Accusation:
    """``holder`` accuses ``subject``, by evidence unless ``changes`` say otherwise."""
    fields: dict[str, Any] = {
        "model": str(model),
        "peer": holder.peer_id,
        "subject": subject.peer_id,
        "instance": 1,
        "sequence": 1,
        "expires_s": now_s + 200,
    }
    if "proofs" not in changes:
        fields["evidence"] = evidence_against(subject, model)
    return Accusation(**{**fields, **changes})


def signed_accusation(
    holder: Identity, subject: Identity, model: object, now_s: float, /, **changes: Any
) -> tuple[bytes, Accusation]:
    record = accusation(holder, subject, model, now_s, **changes)
    return sign_record(holder, record), record
