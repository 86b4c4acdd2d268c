"""Equivocation: one signer, one nonce, one counter, two different receipts. No honest server does that, ever.

So the proof needs no weights, no replay and no trust: two signatures. Honest servers are safe from it even where a
client opens twice with one nonce, since their counters never repeat (``windows.counter_base``).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from swarm.core.errors import BadProofError, ConfigError, ProtocolViolation
from swarm.core.keys import verify
from swarm.core.limits import MAX_EQUIVOCATION_PROOF_BYTES, MAX_RECEIPT_BYTES
from swarm.verification.signed.canonical import read_canonical
from swarm.verification.signed.receipts import RECEIPT_DOMAIN, Receipt, Signature, SignedReceipt

_ReceiptBytes = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_RECEIPT_BYTES)]


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    receipt: _ReceiptBytes
    signature: Signature


class EquivocationProof(msgspec.Struct, frozen=True, array_like=True):
    """Two signed receipts, as the bytes that were signed; the one with the smaller bytes stands first."""

    kind: Literal["equivocation/1"]
    one: _Signed
    other: _Signed

    @classmethod
    def of(cls, one: SignedReceipt, other: SignedReceipt) -> EquivocationProof:
        """The proof that two receipts make; ``ConfigError`` if they make none, see ``conflict``."""
        if not conflict(one.receipt, other.receipt):
            raise ConfigError("these receipts do not contradict each other")
        pair = [_Signed(signed.receipt.canonical(), signed.signature) for signed in (one, other)]
        pair.sort(key=lambda signed: signed.receipt)
        return cls("equivocation/1", *pair)

    def to_bytes(self) -> bytes:
        """All that anybody needs, at most 4 KiB."""
        return _encoder.encode(self)

    @classmethod
    def parse(cls, data: bytes) -> EquivocationProof:
        """Read ``to_bytes``; raise ``BadProofError`` for anything else. What it proves, only ``verify`` says."""
        return read_canonical(data, _decoder, most_bytes=MAX_EQUIVOCATION_PROOF_BYTES, what="proof of equivocation")

    def verify(self) -> tuple[Receipt, Receipt]:
        """The two receipts, if the proof holds; then their signer is to be ejected.

        Raises ``BadProofError`` if they do not conflict, ``BadSignatureError`` if one of them is not its signer's. When
        they expired does not matter. About 150 µs.
        """
        try:
            one, other = Receipt.parse(self.one.receipt), Receipt.parse(self.other.receipt)
        except ProtocolViolation as error:
            raise BadProofError(f"a proof of equivocation without receipts: {error}") from error
        if not conflict(one, other) or not self.one.receipt < self.other.receipt:
            raise BadProofError("the receipts of this proof do not contradict each other")
        for receipt, signed in ((one, self.one), (other, self.other)):
            verify(receipt.signer, RECEIPT_DOMAIN, signed.receipt, signed.signature)
        return one, other


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EquivocationProof)


def conflict(one: Receipt, other: Receipt) -> bool:
    """True if no honest server signs both: signer, nonce and counter are the same, and something else is not."""
    if one.counter != other.counter or one.signer != other.signer or one.opening.nonce != other.opening.nonce:
        return False
    return one != other
