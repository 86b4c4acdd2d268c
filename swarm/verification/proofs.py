"""Fraud proofs: a file from which anybody with the weights sees that a server answered what it did not compute.

It holds the server's own signed receipts, the rows it received, what it answered for one window, and the seed of the
challenge that the rows belong to. Nothing in it is anybody's conversation, and nothing has to be believed: signatures
tie rows to the server, the seed ties the text to the commitment that the receipts name, and the weights decide.

What cannot be proven so, and is for an auditor's own books alone: tokens (no receipt says with which parameters a tail
was to sample), sessions whose rows carry no token ids (nothing ties them to the seed), and windows that the server
signed a second time after a rollback or a heal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import msgspec

from swarm.core.errors import BadProofError, ConfigError, MisuseError, PeerError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.keys import verify
from swarm.core.limits import MAX_PROOF_BYTES, MAX_RECEIPT_BYTES
from swarm.core.numerics import DTYPE_BYTES, Numerics
from swarm.verification.challenges.challenge import MAX_ORDER, Table, check_challenge
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES
from swarm.verification.signed.canonical import read_canonical
from swarm.verification.signed.leaves import TAIL_LEAF_BYTES, Leaf, digest_rows, id_hashes, row_hashes
from swarm.verification.signed.receipts import (
    NO_HASH,
    RECEIPT_DOMAIN,
    WINDOW_ROWS,
    Hash,
    Opening,
    Receipt,
    Signature,
    SignedReceipt,
    check_rows,
    open_leaves,
)
from swarm.verification.verdicts.calibration import MAX_HIDDEN, Calibration, Floats
from swarm.verification.verdicts.judging import WindowVerdict, judge_rows
from swarm.verification.verdicts.verdict import DENSE, Outcome, Thresholds, check_comparable
from swarm.verification.verdicts.whitening import Rows

MAX_PROOF_WINDOWS = 512
"""16,384 rows: a longer session is proven by an earlier window."""
MAX_TABLE_IDS = 2**20
MAX_WALKED_IDS = 2**17
"""Of a table that is walked, times its order: what follows what is spelled out in memory, 200 bytes for each."""
MAX_TEMPLATE_TOKENS = 64
"""Of a chat template at either end of the prompt: so many tokens need not follow from the seed."""
MIN_SEEDED_TOKENS = 8
"""So many must."""
INT8_BLOCK = 64
"""Values to one scale in the int8 codec, as the wire has it."""

ProofCodec = Literal["raw", "int8"]
_Bytes = Annotated[bytes, msgspec.Meta(max_length=MAX_PROOF_BYTES)]
_Ids = Annotated[bytes, msgspec.Meta(max_length=4 * MAX_TABLE_IDS)]
_LeafBytes = Annotated[bytes, msgspec.Meta(max_length=TAIL_LEAF_BYTES)]
_Template = Annotated[int, msgspec.Meta(ge=0, le=MAX_TEMPLATE_TOKENS)]


class _Signed(msgspec.Struct, frozen=True, array_like=True):
    receipt: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_RECEIPT_BYTES)]
    signature: Signature


class _Text(msgspec.Struct, frozen=True, array_like=True):
    """The challenge: seed, table and prompt (ids and lengths as big-endian words), and its template's tokens."""

    seed: Annotated[bytes, msgspec.Meta(min_length=AUDIT_SECRET_BYTES, max_length=AUDIT_SECRET_BYTES)]
    order: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORDER)]
    starts: _Ids
    ids: _Ids
    prompts: _Ids
    prompt: _Ids
    prefix: _Template
    suffix: _Template


@dataclass(frozen=True, slots=True)
class ChallengeText:
    """Where a challenge's prompt came from: the ``table``, and how many of the session's first tokens it was.

    ``around`` are those of a chat template at its beginning and end. The seed is the session's audit secret.
    """

    table: Table
    prompt_tokens: int
    around: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False, slots=True)
class Charge:
    """What a proof says once everything but the computation has been checked. All rows are bytes as they were hashed.

    ``receipt`` is that of the window; ``inputs`` are rows ``[0, receipt.last)`` one after the other as the server
    received them, in ``codec`` (of an int8 row: its scales, then its codes), empty where it embeds ``token_ids``
    ``[receipt.last]``; ``outputs`` the window's raw rows in ``numerics.dtype``, ``hidden`` values each. ``calibration``
    is the digest of the one that the accuser judged by.
    """

    receipt: Receipt
    numerics: Numerics
    hidden: int
    codec: ProofCodec
    token_ids: tuple[int, ...]
    inputs: bytes
    outputs: bytes
    calibration: bytes

    @property
    def subject(self) -> PeerId:
        return PeerId(self.receipt.signer)

    @property
    def opening(self) -> Opening:
        return self.receipt.opening


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofParts:
    """What a fraud proof is made of; see ``Charge``.

    ``receipts`` are those of windows 0 to the one accused, each signed right after the one before it; ``leaves`` those
    of the last. ``token_ids`` are the session's, as many as there are. ``seed`` is its audit secret.
    """

    seed: bytes
    receipts: Sequence[SignedReceipt]
    codec: ProofCodec
    token_ids: Sequence[int]
    inputs: bytes
    outputs: bytes
    leaves: Sequence[Leaf]
    calibration: bytes


class FraudProof(msgspec.Struct, frozen=True, array_like=True):
    """See the module. ``check`` is everything that needs no weights, ``judge_charge`` the rest."""

    kind: Literal["fraud/1"]
    receipts: Annotated[tuple[_Signed, ...], msgspec.Meta(min_length=1, max_length=MAX_PROOF_WINDOWS)]
    text: _Text
    codec: ProofCodec
    token_ids: _Ids
    inputs: _Bytes
    outputs: _Bytes
    leaves: Annotated[tuple[_LeafBytes, ...], msgspec.Meta(min_length=1, max_length=WINDOW_ROWS)]
    calibration: Hash

    @classmethod
    def of(cls, parts: ProofParts, text: ChallengeText) -> FraudProof:
        """The proof that these make; ``ConfigError`` if nobody would accept it."""
        table, last = text.table, max((signed.receipt.last for signed in parts.receipts), default=0)
        try:
            found = cls(
                "fraud/1",
                tuple(_Signed(signed.receipt.canonical(), signed.signature) for signed in parts.receipts),
                _Text(
                    seed=parts.seed,
                    order=table.order,
                    starts=_pack(table.starts),
                    ids=_pack(table.ids),
                    prompts=_pack(table.prompts),
                    prompt=_pack(parts.token_ids[: text.prompt_tokens]),
                    prefix=text.around[0],
                    suffix=text.around[1],
                ),
                parts.codec,
                _pack(parts.token_ids[:last]),
                parts.inputs,
                parts.outputs,
                tuple(leaf.canonical() for leaf in parts.leaves),
                parts.calibration,
            )
            cls.parse(found.to_bytes()).check()
        except PeerError as error:
            raise ConfigError(f"nobody would accept this proof: {error.message}") from error
        return found

    def to_bytes(self) -> bytes:
        """The canonical bytes, at most ``MAX_PROOF_BYTES``; their SHA-256 is the proof's name."""
        return _encoder.encode(self)

    @classmethod
    def parse(cls, data: bytes) -> FraudProof:
        """Read ``to_bytes``; ``BadProofError`` for anything else. What it proves, ``check`` says, then the weights."""
        return read_canonical(data, _decoder, most_bytes=MAX_PROOF_BYTES, what="fraud proof")

    def check(self) -> Charge:
        """What it accuses whom of, if everything holds that can be checked without weights.

        Checked: that one server signed all receipts, one right after the other, for windows 0, 1, 2 and on; that the
        rows and ids are those it signed as received, and the outputs those of the leaves it signed; that the prompt is
        the challenge of the seed that the receipts' commitment was made from. When receipts expired does not matter.
        Raises ``BadProofError``, ``BadSignatureError`` or ``ProtocolViolation`` with what is wrong. About 0.2 ms a
        window and the hashing of its bytes.
        """
        receipts = self._receipts()
        last = receipts[-1]
        numerics = _numerics(last)
        token_ids = _unpack(self.token_ids)
        if len(token_ids) != last.last:
            raise BadProofError(f"{len(token_ids)} token ids for {last.last} rows")
        hidden = self._hidden(last, numerics)
        self._check_inputs(receipts, token_ids, numerics, hidden)
        self._check_outputs(last)
        self._check_text(last.opening, token_ids)
        return Charge(last, numerics, hidden, self.codec, token_ids, self.inputs, self.outputs, self.calibration)

    def _receipts(self) -> list[Receipt]:
        try:
            receipts = [Receipt.parse(signed.receipt) for signed in self.receipts]
        except ProtocolViolation as error:
            raise BadProofError(f"a fraud proof without receipts: {error.message}") from error
        if [receipt.window for receipt in receipts] != list(range(len(receipts))):
            raise BadProofError("not the receipts of every window from the first to the one accused")
        if any(receipt.opening != receipts[0].opening for receipt in receipts):
            raise BadProofError("receipts of different openings")
        if any(receipt.rows != WINDOW_ROWS for receipt in receipts[:-1]):
            raise BadProofError("rows are missing between two receipts")
        for before, after in pairwise(receipts):
            # One that was signed between them may have voided a row: then these rows were never one session's.
            if after.previous != before.digest() or after.counter != before.counter + 1:
                raise BadProofError("receipts that were not signed one right after the other")
        for receipt, signed in zip(receipts, self.receipts, strict=True):
            verify(receipt.signer, RECEIPT_DOMAIN, signed.receipt, signed.signature)
        return receipts

    def _hidden(self, last: Receipt, numerics: Numerics) -> int:
        hidden, rest = divmod(len(self.outputs), last.rows * DTYPE_BYTES[numerics.dtype])
        if rest or not 0 < hidden <= MAX_HIDDEN:
            raise BadProofError(f"{len(self.outputs)} bytes are not {last.rows} rows of {numerics.dtype}")
        return hidden

    def _check_inputs(
        self, receipts: Sequence[Receipt], token_ids: tuple[int, ...], numerics: Numerics, hidden: int
    ) -> None:
        rows = len(token_ids)
        if not self.inputs and receipts[0].opening.start == 0:
            hashes = id_hashes(token_ids)
        else:
            size = rows * row_bytes(self.codec, numerics.dtype, hidden)
            if len(self.inputs) != size:
                raise BadProofError(f"{len(self.inputs)} bytes of inputs where {rows} rows take {size}")
            hashes = row_hashes(digest_rows(rows, self.inputs), token_ids)
        for receipt in receipts:
            check_rows(receipt.in_root, hashes[receipt.first : receipt.last], receipt)

    def _check_outputs(self, last: Receipt) -> None:
        leaves = open_leaves(last, self.leaves)
        if [leaf.output for leaf in leaves] != digest_rows(last.rows, self.outputs):
            raise BadProofError("the outputs are not those of the leaves that were signed", peer=last.signer)

    def _check_text(self, opening: Opening, token_ids: tuple[int, ...]) -> None:
        text = self.text
        if not text.prompts and len(text.ids) // 4 * text.order > MAX_WALKED_IDS:
            raise BadProofError("a table that is too large to walk through")
        try:
            table = Table(_unpack(text.ids), text.order, _unpack(text.starts), _unpack(text.prompts))
        except ConfigError as error:
            raise BadProofError(f"no table that a challenge could come from: {error.message}") from error
        prompt = _unpack(text.prompt)
        if prompt[: len(token_ids)] != token_ids[: len(prompt)]:
            raise BadProofError("the rows are of another text than the prompt")
        if len(prompt) - text.prefix - text.suffix < MIN_SEEDED_TOKENS:
            raise BadProofError(f"fewer than {MIN_SEEDED_TOKENS} tokens of the text follow from the seed")
        check_challenge(opening.commitment, text.seed, prompt, table, (text.prefix, text.suffix))


def row_bytes(codec: ProofCodec, dtype: str, hidden: int) -> int:
    """Of one row on a link, its token id aside. ``dtype`` is one of ``DTYPE_BYTES``."""
    return hidden * DTYPE_BYTES[dtype] if codec == "raw" else hidden + 4 * -(-hidden // INT8_BLOCK)


def check_calibration(charge: Charge, calibration: Calibration) -> None:
    """See ``judge_charge``; for whoever wants to know before anything is computed."""
    if charge.opening.calibration not in (NO_HASH, charge.calibration):
        raise BadProofError("judged by another calibration than the one that the server named")
    if charge.calibration != calibration.digest():
        raise MisuseError(
            "this proof was judged by another calibration than the one here", hint="get the one that the swarm uses"
        )


def judge_charge(
    charge: Charge,
    suspect: Rows,
    reference: Floats,
    calibration: Calibration,
    *,
    numerics: Numerics,
    thresholds: Thresholds = DENSE,
    inputs_known: bool = True,
) -> WindowVerdict:
    """The verdict on the window that is accused, if it is guilty.

    ``suspect`` holds all rows from 0 on: inputs ``[receipt.last, hidden]`` and outputs, of which only the window's are
    looked at; ``reference`` is what one computed of the same inputs in ``numerics``, ``[window's rows, hidden]``.
    ``inputs_known`` as in ``judge_rows``.
    Raises ``BadProofError`` if the accuser judged by another calibration than the server named, for rows that no text
    leads to, be it only in the rows before the window (crafted rows can make honest servers differ), and unless the
    window fails hard. ``MisuseError`` for what says nothing of the proof: a reference of another quantization than the
    server declared, another calibration than the accuser's.
    """
    check_comparable(charge.numerics, numerics)
    receipt, opening = charge.receipt, charge.opening
    check_calibration(charge, calibration)
    if calibration.header.model != opening.model or opening.end > calibration.header.layers:
        raise BadProofError("about another model, or about layers that it does not have")
    if calibration.header.hidden != charge.hidden:
        raise BadProofError("rows of another width than the model's")
    before = suspect.without_sink().inputs
    if inputs_known and not calibration.in_range(opening.start, before).all():
        raise BadProofError("the inputs are outside what the model was calibrated for")
    window = slice(receipt.first, receipt.last)
    accused = Rows(receipt.first, suspect.inputs[window], suspect.outputs[window])
    (verdict,) = judge_rows(accused, reference, calibration, opening.span, thresholds, inputs_known=inputs_known)
    if verdict.outcome is Outcome.UNCOUNTED:
        raise BadProofError("the window does not count: its rows are not such as text leads to")
    if verdict.outcome is not Outcome.HARD:
        raise BadProofError(f"the server is right: e is {verdict.found.error:.3g}, {verdict.outcome}")
    return verdict


def _numerics(receipt: Receipt) -> Numerics:
    try:
        return Numerics.parse(receipt.opening.numerics)
    except ConfigError as error:
        raise BadProofError(f"a receipt in no known numerics: {error.message}", peer=receipt.signer) from error


def _pack(numbers: Sequence[int]) -> bytes:
    return b"".join(int(number).to_bytes(4, "big") for number in numbers)


def _unpack(data: bytes) -> tuple[int, ...]:
    if len(data) % 4:
        raise BadProofError("ids that are cut")
    return tuple(int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FraudProof)
