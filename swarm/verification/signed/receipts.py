"""Receipts: a server's signed word on what went into one window of one stage, and what came out of it.

A receipt proves who answered for which layers. It does not prove that what they answered was computed: audits do.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import msgspec

from swarm.core.errors import BadProofError, ConfigError, ExpiredReceiptError, ProtocolViolation
from swarm.core.ids import SECRET_BYTES, SESSION_BYTES
from swarm.core.keys import SIGNATURE_BYTES, Identity, verify
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_LAYERS, MAX_RECEIPT_BYTES, MAX_STAGE_NUMBERS
from swarm.core.spans import Span
from swarm.verification.signed.canonical import read_canonical
from swarm.verification.signed.leaves import RECEIVED, SENT, Leaf
from swarm.verification.signed.merkle import HASH_BYTES, leaf_hash, merkle_root

RECEIPT_DOMAIN = b"swarm/receipt/1"
COUNTERSIGNATURE_DOMAIN = b"swarm/countersignature/1"
RECEIPT_VERSION = 1
WINDOW_ROWS = 32
"""Windows are absolute: [32w, 32w + 32), whoever signs them."""
NO_HASH = bytes(HASH_BYTES)
"""The calibration of a server that has none, and the predecessor of a session's first receipt."""

_HASH_DOMAIN = b"swarm/receipt-hash/1\0"

Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
PeerText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS)]


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """What both ends know of a stage since OPEN and ACCEPT, and what every receipt of it repeats.

    ``signer`` serves layers ``[start, end)`` as ``stage`` of the ``session`` of ``client``, who drew ``nonce``.
    ``calibration`` is the hash of the signer's calibration file, or ``NO_HASH``; ``numerics`` is what its announcement
    declares, as text. ``commitment`` is the client's H(r): the seed of a challenge, revealed, shows that the receipts
    are about nobody's conversation.
    """

    signer: PeerText
    client: PeerText
    session: Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
    stage: Annotated[int, msgspec.Meta(ge=0, lt=MAX_STAGE_NUMBERS)]
    start: Layer
    end: Layer
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
    calibration: Hash
    numerics: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    commitment: Hash

    def __post_init__(self) -> None:
        Span(self.start, self.end)

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """One window of one stage: rows at positions ``[first, last)``, inside one window and from its beginning.

    ``leaf_root`` is over the rows' leaves, ``in_root`` over their hashes as received, ``out_root`` as sent; three
    Merkle roots over ``last - first`` entries. ``previous`` is the hash of the receipt that the signer signed before in
    this session and stage, ``counter`` one more than that one's. A later receipt of the same or a lower window voids
    the earlier ones: there the session was rolled back. It counts until ``expires_s``, wall time in whole seconds.
    """

    version: Annotated[int, msgspec.Meta(ge=RECEIPT_VERSION, le=RECEIPT_VERSION)]
    opening: Opening
    first: Tokens
    last: Tokens
    leaf_root: Hash
    in_root: Hash
    out_root: Hash
    previous: Hash
    counter: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    expires_s: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]

    def __post_init__(self) -> None:
        if self.first % WINDOW_ROWS or not self.first < self.last <= self.first + WINDOW_ROWS:
            raise ConfigError(f"rows {self.first}:{self.last} are not a window of {WINDOW_ROWS} or its beginning")

    @property
    def window(self) -> int:
        return self.first // WINDOW_ROWS

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def signer(self) -> str:
        return self.opening.signer

    def canonical(self) -> bytes:
        """The one encoding that is signed and hashed: msgpack, shortest forms, fields in order, at most 1 KiB."""
        return _encoder.encode(self)

    def digest(self) -> bytes:
        """The receipt's hash: what the next one, the client's counter-signature and the choice of audits refer to.

        Over the receipt, not the signature: Ed25519 lets a signer sign one message in many ways.
        """
        return sha256(_HASH_DOMAIN + self.canonical()).digest()

    @classmethod
    def parse(cls, data: bytes) -> Receipt:
        """Read canonical bytes; raise ``ProtocolViolation`` for anything ``canonical`` would not write."""
        return read_canonical(data, _decoder, most_bytes=MAX_RECEIPT_BYTES, what="receipt", error=ProtocolViolation)


class SignedReceipt(msgspec.Struct, frozen=True, array_like=True):
    """A receipt and its signer's signature. Only ``verify_receipt`` says that they belong together."""

    receipt: Receipt
    signature: Signature


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Receipt)


def sign_receipt(identity: Identity, receipt: Receipt) -> SignedReceipt:
    """Sign ``receipt`` with its signer's key; ``ConfigError`` if it names another signer or nobody would accept it."""
    if receipt.signer != identity.peer_id:
        raise ConfigError("a receipt must be signed by the peer it names")
    canonical = receipt.canonical()
    try:
        Receipt.parse(canonical)
    except ProtocolViolation as error:
        raise ConfigError(f"nobody would accept this receipt: {error}") from error
    return SignedReceipt(receipt, identity.sign(RECEIPT_DOMAIN, canonical))


def verify_receipt(signed: SignedReceipt, *, now_s: float) -> Receipt:
    """The receipt, if its signer signed it and it has not expired at ``now_s``.

    Raises ``BadSignatureError`` or ``ExpiredReceiptError``; it never returns anything else. About 80 µs. Whether it is
    a receipt for what was asked is ``verify_coverage``'s question.
    """
    receipt = signed.receipt
    verify(receipt.signer, RECEIPT_DOMAIN, receipt.canonical(), signed.signature)
    if not now_s < receipt.expires_s:  # a NaN is no time at which a receipt counts
        raise ExpiredReceiptError(
            f"the receipt for rows {receipt.first}:{receipt.last} expired {now_s - receipt.expires_s:.0f} s ago",
            peer=receipt.signer,
        )
    return receipt


def countersign(identity: Identity, receipt: Receipt) -> bytes:
    """The client's 64 bytes on a receipt that it found linked: "served and linked", never "computed right".

    It stands for the receipts before in the chain too, since this one's hash holds theirs. ``ConfigError`` if
    ``identity`` is not the client that the receipt names.
    """
    if receipt.opening.client != identity.peer_id:
        raise ConfigError("only the client that a receipt names can counter-sign it")
    return identity.sign(COUNTERSIGNATURE_DOMAIN, receipt.digest())


def verify_countersignature(receipt: Receipt, signature: bytes) -> None:
    """Raise ``BadSignatureError`` unless the client that ``receipt`` names counter-signed it."""
    verify(receipt.opening.client, COUNTERSIGNATURE_DOMAIN, receipt.digest(), signature)


def open_leaves(receipt: Receipt, encoded: Sequence[bytes]) -> list[Leaf]:
    """A window's leaves, if they are those that ``receipt`` was signed over.

    Checked: their number, that they hash to ``leaf_root``, that their rows hash to ``in_root`` and ``out_root``, and
    that their positions are those of the window. Raises ``BadProofError``. If the leaves hash to ``leaf_root`` and
    still something else does not fit, the signer signed a contradiction and the leaves prove it; the message says so.
    """
    peer = receipt.signer
    if len(encoded) != receipt.rows or merkle_root([leaf_hash(leaf) for leaf in encoded]) != receipt.leaf_root:
        raise BadProofError("these are not the leaves that the receipt was signed over", peer=peer)
    leaves = [Leaf.parse(leaf) for leaf in encoded]
    if [leaf.position for leaf in leaves] != list(range(receipt.first, receipt.last)):
        raise BadProofError("a signed contradiction: leaves of other rows than the receipt's", peer=peer)
    for name, field, root in (("received", RECEIVED, receipt.in_root), ("sent", SENT, receipt.out_root)):
        if merkle_root([leaf[field] for leaf in encoded]) != root:
            raise BadProofError(f"a signed contradiction: the leaves' rows as {name} are not the root's", peer=peer)
    return leaves


def check_rows(root: bytes, hashes: Sequence[bytes], receipt: Receipt) -> None:
    """Raise ``BadProofError`` unless ``hashes`` (``row_hash`` of every row) are those below ``root``.

    ``root`` is ``receipt``'s ``in_root`` or ``out_root``: rows from a third party count only if they are those that the
    signer says it received or sent.
    """
    whole = len(hashes) == receipt.rows and all(len(part) == HASH_BYTES for part in hashes)
    if not whole or merkle_root(hashes) != root:
        raise BadProofError(f"not the rows {receipt.first}:{receipt.last} that the receipt speaks of")
