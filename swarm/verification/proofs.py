"""Fraud proofs: a file from which anybody with the weights sees that a server answered what it did not compute.

It holds the server's own signed receipts, the rows it received, what it answered for one window, and the seed of the
challenge that the rows belong to. Nothing in it is anybody's conversation, and nothing has to be believed: signatures
tie rows to the server, the seed ties the text to the commitment that the receipts name, and the weights decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_RECEIPT_BYTES
from swarm.core.numerics import Numerics
from swarm.verification.calibration import Calibration, Floats
from swarm.verification.challenge import Table
from swarm.verification.judging import WindowVerdict
from swarm.verification.receipts import Receipt, Signature, SignedReceipt
from swarm.verification.verdict import DENSE, Thresholds

Codec = Literal["raw", "int8"]
"""As the wire names them."""


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    receipt: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_RECEIPT_BYTES)]
    signature: Signature


@dataclass(frozen=True, eq=False, slots=True)
class Charge:
    """What a proof says once everything but the computation has been checked. All of it is bytes as they were hashed.

    ``receipt`` is that of the window; ``inputs`` are rows ``[0, receipt.last)`` one after the other as the server
    received them, in ``codec`` (of an int8 row: its scales, then its codes), empty where it embeds ``token_ids``;
    ``outputs`` the window's raw rows in ``numerics.dtype``. ``calibration`` is the digest the accuser judged by.
    """

    receipt: Receipt
    numerics: Numerics
    codec: Codec
    token_ids: tuple[int, ...]
    inputs: bytes
    outputs: bytes
    calibration: bytes


class FraudProof(msgspec.Struct, frozen=True, array_like=True):
    """See the module. ``check`` is everything that needs no weights, ``judge_charge`` the rest."""

    kind: Literal["fraud/1"]

    def to_bytes(self) -> bytes:
        """The canonical bytes, at most ``MAX_PROOF_BYTES``; their SHA-256 is the proof's name."""
        raise NotImplementedError

    @classmethod
    def parse(cls, data: bytes) -> FraudProof:
        """Read ``to_bytes``; ``BadProofError`` for anything else. What it proves, ``check`` and ``judge_charge`` say."""
        raise NotImplementedError

    def check(self) -> Charge:
        """What it accuses whom of, if signatures, trees, seed and prompt hold."""
        raise NotImplementedError
