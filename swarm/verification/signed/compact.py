"""A receipt on the wire: what both ends do not already know. 177 bytes, 5.5 a row of a full window.

Layout, big-endian: window (4 bytes), rows (1), counter (8), expiry (4), leaf root, in root, out root (32 each),
signature (64). The rest of the receipt is the stage's ``Opening`` and the hash of the receipt before.
"""

from __future__ import annotations

import struct

from swarm.core.errors import (
    BrokenChainError,
    ConfigError,
    EquivocationError,
    ExpiredReceiptError,
    ProtocolViolation,
)
from swarm.core.keys import SIGNATURE_BYTES
from swarm.core.limits import MAX_CONTEXT_TOKENS
from swarm.verification.signed.equivocation import EquivocationProof, conflict
from swarm.verification.signed.merkle import HASH_BYTES
from swarm.verification.signed.receipts import (
    NO_HASH,
    RECEIPT_VERSION,
    WINDOW_ROWS,
    Opening,
    Receipt,
    SignedReceipt,
    verify_receipt,
)

MIN_LIFETIME_S = 600.0
"""A receipt that expires sooner could not be audited in time, so it is refused when it arrives."""

_LAYOUT = struct.Struct(f">IBQI{HASH_BYTES}s{HASH_BYTES}s{HASH_BYTES}s{SIGNATURE_BYTES}s")
COMPACT_BYTES = _LAYOUT.size


def pack(signed: SignedReceipt) -> bytes:
    """The wire form of a receipt, for a reader who follows the stage with a ``ReceiptChain``."""
    receipt = signed.receipt
    return _LAYOUT.pack(
        receipt.window,
        receipt.rows,
        receipt.counter,
        receipt.expires_s,
        receipt.leaf_root,
        receipt.in_root,
        receipt.out_root,
        signed.signature,
    )


def unpack(data: bytes, opening: Opening, previous: bytes) -> SignedReceipt:
    """The receipt that ``pack`` wrote, if the signer's was made for ``opening`` and after ``previous``.

    If not, the signature does not verify. Raises ``ProtocolViolation`` for bytes that are no receipt.
    """
    if len(data) != COMPACT_BYTES:
        raise ProtocolViolation(f"a receipt of {len(data)} bytes where {COMPACT_BYTES} travel", peer=opening.signer)
    window, rows, counter, expires_s, leaf_root, in_root, out_root, signature = _LAYOUT.unpack(data)
    first = window * WINDOW_ROWS
    if first + rows > MAX_CONTEXT_TOKENS or counter >= 2**63:
        raise ProtocolViolation("a receipt for rows beyond any context, or an impossible counter", peer=opening.signer)
    try:
        receipt = Receipt(
            RECEIPT_VERSION,
            opening,
            first,
            first + rows,
            leaf_root,
            in_root,
            out_root,
            previous,
            counter,
            expires_s,
        )
    except ConfigError as error:
        raise ProtocolViolation(error.message, peer=opening.signer) from error
    return SignedReceipt(receipt, signature)


class ReceiptChain:
    """The receipts of one stage in the order in which they were signed, as a reader rebuilds them. Keeps the last."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.last: SignedReceipt | None = None

    def receive(self, data: bytes, *, now_s: float) -> SignedReceipt:
        """The next receipt, its signature and place in the chain checked.

        Raises ``ProtocolViolation``, ``BadSignatureError`` (also where its predecessor or opening is another),
        ``ExpiredReceiptError`` for less than ``MIN_LIFETIME_S`` left, ``BrokenChainError`` for a counter that does not
        follow, ``EquivocationError`` with the proof for one that was used before. An error leaves the chain as it was.
        """
        last = self.last
        signed = unpack(data, self.opening, NO_HASH if last is None else last.receipt.digest())
        counter = signed.receipt.counter
        if last is not None and counter == last.receipt.counter:
            self._judge_repetition(unpack(data, self.opening, last.receipt.previous), last, now_s)
        if last is not None and counter != last.receipt.counter + 1:
            raise BrokenChainError(
                f"receipt {counter} after receipt {last.receipt.counter}: one was kept back", peer=self.opening.signer
            )
        receipt = verify_receipt(signed, now_s=now_s)
        if receipt.expires_s < now_s + MIN_LIFETIME_S:
            raise ExpiredReceiptError(
                f"a receipt that expires in {receipt.expires_s - now_s:.0f} s, too soon for an audit",
                peer=self.opening.signer,
            )
        self.last = signed
        return signed

    def _judge_repetition(self, again: SignedReceipt, last: SignedReceipt, now_s: float) -> None:
        verify_receipt(again, now_s=now_s)
        if conflict(again.receipt, last.receipt):
            raise EquivocationError(
                f"two receipts with counter {last.receipt.counter}",
                peer=self.opening.signer,
                proof=EquivocationProof.of(again, last).to_bytes(),
            )
