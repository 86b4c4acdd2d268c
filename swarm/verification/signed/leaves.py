"""What a receipt's leaves say: one leaf is one row that a stage took in, and what it made of it.

Hashes of rows. ``digest_rows`` hashes a row's own bytes; ``row_hash`` names a row as it stood on a link, its token id
included where one rode along. Both ends of a link compute the latter from the bytes that crossed it, so for an honest
pair what the one sent is what the other received, whatever the dtype or codec.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from swarm.core.errors import BadProofError, MisuseError
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_VOCABULARY
from swarm.verification.signed.merkle import HASH_BYTES, leaf_hash

SKETCH_BYTES = 16
"""One signed byte for each of a sketch's values."""
NO_SKETCH = bytes(SKETCH_BYTES)
"""Of a server that has no calibration for its span."""
NO_ROW = sha256(b"").digest()
"""The digest where there is no tensor: token ids alone, or a row that was not sent at all."""

_COMMON = struct.Struct(f">BI{HASH_BYTES}s{HASH_BYTES}s{HASH_BYTES}s{SKETCH_BYTES}s")
_ANSWER = struct.Struct(f">{HASH_BYTES}sI")
_MIDDLE, _TAIL = 0, 1
RECEIVED = slice(5, 5 + HASH_BYTES)
"""Where a leaf's bytes hold the hash of the row as received."""
SENT = slice(5 + 2 * HASH_BYTES, 5 + 3 * HASH_BYTES)
"""And of the row as sent."""
LEAF_BYTES = _COMMON.size
TAIL_LEAF_BYTES = _COMMON.size + _ANSWER.size

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Leaf:
    """One accepted row of one stage.

    ``received`` and ``sent`` are ``row_hash``es of the row as it came and as it left; ``output`` is the digest of what
    the stage computed, in its own dtype and before the wire's codec. ``sketch`` is 16 signed bytes of the whitened
    update, or ``NO_SKETCH``. Where a tail with a head answered the row, ``final`` is the digest of the row that the
    head read and ``token_id`` what it chose, to stand at ``position + 1``; else ``final`` is empty and it is None.
    """

    position: int
    received: bytes
    output: bytes
    sent: bytes
    sketch: bytes = NO_SKETCH
    final: bytes = b""
    token_id: int | None = None

    def canonical(self) -> bytes:
        """117 bytes, or 153 of an answered row: kind (0 or 1), position, the fields in order; big-endian.

        ``MisuseError`` for a field of another length, or a number out of bounds.
        """
        hashes = (self.received, self.output, self.sent)
        sizes_fit = all(len(part) == HASH_BYTES for part in hashes) and len(self.sketch) == SKETCH_BYTES
        if not sizes_fit or not 0 <= self.position < MAX_CONTEXT_TOKENS:
            raise MisuseError(f"a leaf that cannot be, at position {self.position}")
        if self.token_id is None and not self.final:
            return _COMMON.pack(_MIDDLE, self.position, *hashes, self.sketch)
        if self.token_id is None or len(self.final) != HASH_BYTES or not 0 <= self.token_id < MAX_VOCABULARY:
            raise MisuseError(f"half an answer, or an impossible one, at position {self.position}")
        return _COMMON.pack(_TAIL, self.position, *hashes, self.sketch) + _ANSWER.pack(self.final, self.token_id)

    @classmethod
    def parse(cls, data: bytes) -> Leaf:
        """Read canonical bytes; raise ``BadProofError`` for what ``canonical`` would never write."""
        if len(data) not in (LEAF_BYTES, TAIL_LEAF_BYTES):
            raise BadProofError(f"a leaf of {len(data)} bytes")
        kind, position, received, output, sent, sketch = _COMMON.unpack_from(data)
        if kind != (_TAIL if len(data) == TAIL_LEAF_BYTES else _MIDDLE) or position >= MAX_CONTEXT_TOKENS:
            raise BadProofError("a leaf of no known kind, or beyond any context")
        if kind == _MIDDLE:
            return cls(position, received, output, sent, sketch)
        final, token_id = _ANSWER.unpack_from(data, LEAF_BYTES)
        if token_id >= MAX_VOCABULARY:
            raise BadProofError("a leaf with a token outside any vocabulary")
        return cls(position, received, output, sent, sketch, final, token_id)


def digest_rows(rows: int, *parts: Buffer) -> list[bytes]:
    """SHA-256 of each of ``rows`` rows; row i is the i-th equal slice of every part, joined.

    A raw tensor ``[rows, hidden]`` is one part; an int8 payload is two, its scales and its codes. No part, or empty
    ones, give ``NO_ROW``. ``MisuseError`` if a part does not divide into ``rows``.
    """
    if rows == 1:  # decoding, one row a step
        return [sha256(b"".join(parts)).digest()]
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    if rows < 1 or any(len(view) % rows for view in views):
        raise MisuseError(f"bytes that are not {rows} equal rows")
    if len(views) == 1:
        view, size = views[0], len(views[0]) // rows
        return [sha256(view[start : start + size]).digest() for start in range(0, len(view), size)]
    sizes = [len(view) // rows for view in views]
    return [
        sha256(b"".join(view[row * size : (row + 1) * size] for view, size in zip(views, sizes, strict=True))).digest()
        for row in range(rows)
    ]


def row_hash(digest: bytes, token_id: int | None = None) -> bytes:
    """The hash of a row as it stood on a link: its digest, after its little-endian token id if one rode along."""
    return leaf_hash(digest if token_id is None else token_id.to_bytes(4, "little") + digest)


def row_hashes(digests: Sequence[bytes], token_ids: Sequence[int] | None = None) -> list[bytes]:
    """``row_hash`` of every row. ``MisuseError`` if there are not as many ids as rows."""
    if token_ids is None:
        return [leaf_hash(digest) for digest in digests]
    if len(token_ids) != len(digests):
        raise MisuseError(f"{len(token_ids)} token ids for {len(digests)} rows")
    return [row_hash(digest, int(token_id)) for digest, token_id in zip(digests, token_ids, strict=True)]


def id_hashes(token_ids: Sequence[int | None]) -> list[bytes]:
    """``row_hash`` of rows without a tensor: ids on their way into a head server that embeds, or a tail's answers.

    None stands for a row that was not sent at all, because nobody asked for an answer to it.
    """
    return [row_hash(NO_ROW, None if token_id is None else int(token_id)) for token_id in token_ids]


@dataclass(frozen=True, slots=True)
class Answers:
    """What a tail with a head said of the last rows of a step: digests of the rows its head read, and its tokens."""

    finals: Sequence[bytes]
    token_ids: Sequence[int]


def step_leaves(
    first: int,
    received: Sequence[bytes],
    outputs: Sequence[bytes],
    sent: Sequence[bytes] | None,
    *,
    sketches: bytes = b"",
    answers: Answers | None = None,
) -> list[Leaf]:
    """The leaves of one step, whose rows stand at ``first`` and on.

    ``received`` and ``sent`` are ``row_hashes``, ``outputs`` digests, all ``[rows]``; ``sketches`` is 16 bytes a row,
    or empty without a calibration. A tail with a head has ``answers`` for its last rows and ``sent`` is None: it sends
    its tokens and nothing else. ``MisuseError`` if anything is not there for every row.
    """
    rows = len(received)
    finals: list[bytes] = [b""] * rows
    tokens: list[int | None] = [None] * rows
    if answers is not None and answers.token_ids:
        finals[-len(answers.finals) :] = answers.finals
        tokens[-len(answers.token_ids) :] = answers.token_ids
    passed = id_hashes(tokens) if sent is None else sent
    marks = sketches or NO_SKETCH * rows
    halves = answers is not None and len(answers.finals) != len(answers.token_ids)
    if halves or {len(outputs), len(passed), len(finals)} != {rows} or len(marks) != rows * SKETCH_BYTES:
        raise MisuseError(f"not everything is there for {rows} rows")
    return [
        Leaf(
            first + row,
            received[row],
            outputs[row],
            passed[row],
            marks[row * SKETCH_BYTES : (row + 1) * SKETCH_BYTES],
            finals[row],
            tokens[row],
        )
        for row in range(rows)
    ]
