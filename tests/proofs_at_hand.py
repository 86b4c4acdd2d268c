"""Proofs against servers, well made, and the records that tell of them; whether fraud was one, weights would say."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace

from swarm.core.accusation import Accusation
from swarm.core.keys import Identity
from swarm.core.records import sign_record
from swarm.verification.challenges.challenge import Table, walk
from swarm.verification.challenges.commitment import commit
from swarm.verification.proofs import ChallengeText, FraudProof, ProofParts
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.leaves import digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.signed.receipts import NO_HASH, Opening, Receipt, sign_receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base

CLIENT = Identity(bytes([250]) * 32)
RECEIPT = 1


def opening_of(signer: Identity, model: str, **changes: Any) -> Opening:
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
    return replace(opening, **changes)


def receipt_of(signer: Identity, model: str, **changes: Any) -> Receipt:
    """A receipt that ``signer`` might sign: layers 0:1, the first full window."""
    opening = opening_of(signer, model)
    hashes = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32, bytes([4]) * 32
    return replace(Receipt(RECEIPT, opening, 0, 32, *hashes, counter=7, expires_s=2**31), **changes)


def evidence_against(signer: Identity, model: object, *, variant: int = 0) -> bytes:
    """A proof of equivocation by ``signer``; another ``variant`` is another proof."""
    one = receipt_of(signer, str(model))
    other = replace(one, out_root=bytes([9, variant]) * 16)
    return EquivocationProof.of(sign_receipt(signer, one), sign_receipt(signer, other)).to_bytes()


def fraud_against(signer: Identity, model: object, *, session: int = 0, hidden: int = 8) -> bytes:
    """A proof that ``signer`` answered a challenge with noise, in another ``session`` another one."""
    seed, rows = bytes([session]) * 32, 32
    table = Table(tuple(range(40)) * 3 + (7, 3, 1, 9, 2), order=2)
    ids = walk(seed, rows, table)
    outputs = Random(session).randbytes(rows * hidden * 4)
    digests = digest_rows(rows, outputs)
    leaves = step_leaves(0, id_hashes(ids), digests, row_hashes(digests, ids))
    opening = opening_of(signer, str(model), session=bytes([session]) * 16, commitment=commit(seed))
    builder = WindowBuilder(opening, counter_base(1_000_000, session))
    builder.append(leaves)
    parts = ProofParts(
        seed=seed,
        receipts=[sign_receipt(signer, receipt) for receipt in builder.close(rows, 2**31)],
        codec="raw",
        token_ids=ids,
        inputs=b"",
        outputs=outputs,
        leaves=leaves,
        calibration=bytes(32),
    )
    return FraudProof.of(parts, ChallengeText(table, rows)).to_bytes()


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
