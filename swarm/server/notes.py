"""What is noted of computed rows until they are hashed, and the leaves that are made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from swarm.server.replay_log import Encoding
from swarm.verification.leaves import Answers, Leaf, digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.sketch import Sketcher
from swarm.wire.payload import Ids
from swarm.wire.tensors import Buffer, cut_tensor, to_float32


@dataclass(frozen=True, slots=True)
class Note:
    """A step's rows at positions ``[first, first + rows)``: as they came, as computed, and as they left.

    ``came`` is the tensor as the wire had it, in ``arriving``'s form; empty where token ids came alone. ``inputs`` and
    ``outputs`` are raw ``[rows, hidden]`` in the engine's dtype. ``ids`` rode along, in and out. ``left`` is the tensor
    of the last ``answered`` rows in ``leaving``'s form; None at a tail that samples, whose ``tokens`` stand for those
    rows. ``leads_on`` says that a next server follows, which ids ride on to; ``replayed`` rows were computed to feed
    a newcomer.
    """

    first: int
    rows: int
    ids: Ids | None
    came: Buffer
    arriving: Encoding
    inputs: Buffer
    outputs: Buffer
    left: Buffer | None
    leaving: Encoding
    answered: int
    tokens: Sequence[int] = ()
    leads_on: bool = True
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``[first, last)``, absolute, of a note."""

    note: Note
    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first

    @property
    def own(self) -> tuple[int, int]:
        """The same rows, counted from the note's first."""
        return self.first - self.note.first, self.last - self.note.first


def leaves_of(parts: Sequence[Part], raw: Encoding, sketcher: Sketcher | None) -> list[list[Leaf]]:
    """The leaves of each of ``parts``, which stand one after the other; ``raw`` is how inputs and outputs are encoded.

    13 µs a row of 2.3 KB; sketches are made of all parts at once, since one row's would take as long.
    """
    sketches = b"" if sketcher is None else _sketches(parts, raw, sketcher)
    leaves, done = [], 0
    for part in parts:
        leaves.append(_leaves(part, raw, sketches[16 * done : 16 * (done + part.rows)]))
        done += part.rows
    return leaves


def _leaves(part: Part, raw: Encoding, sketches: bytes) -> list[Leaf]:
    note, (first, last) = part.note, part.own
    ids = None if note.ids is None else note.ids[first:last].tolist()
    if len(note.came):
        received = row_hashes(_digests(note.came, note.arriving, first, last), ids)
    else:
        received = id_hashes(ids or ())
    outputs = _digests(note.outputs, raw, first, last)
    silent = max(0, min(last, note.rows - note.answered) - first)
    """Rows of these that nobody asked to answer."""
    if note.left is None:
        tokens = note.tokens[max(0, first - (note.rows - note.answered)) :][: part.rows - silent]
        answers = Answers(outputs[silent:], tokens)
        return step_leaves(part.first, received, outputs, None, sketches=sketches, answers=answers)
    sent = id_hashes([None] * silent)
    if silent < part.rows:
        skipped = note.rows - note.answered
        begin, end = max(first - skipped, 0), last - skipped
        same = note.left is note.outputs
        digests = outputs if same else _digests(note.left, note.leaving, begin, end)
        sent += row_hashes(digests, ids[silent:] if ids is not None and note.leads_on else None)
    return step_leaves(part.first, received, outputs, sent, sketches=sketches)


def _digests(tensor: Buffer, encoding: Encoding, first: int, last: int) -> list[bytes]:
    return digest_rows(last - first, *_cut(tensor, encoding, first, last))


def _cut(tensor: Buffer, encoding: Encoding, first: int, last: int) -> Iterator[Buffer]:
    parts = cut_tensor(tensor, encoding.codec, encoding.dtype, encoding.hidden, first, last)
    return (part for part in parts if len(part))


def _sketches(parts: Sequence[Part], raw: Encoding, sketcher: Sketcher) -> bytes:
    def rows(which: Literal["inputs", "outputs"]) -> npt.NDArray[np.float32]:
        cuts = [_cut(getattr(part.note, which), raw, *part.own) for part in parts]
        return to_float32(b"".join(piece for cut in cuts for piece in cut), raw.dtype).reshape(-1, raw.hidden)

    with np.errstate(all="ignore"):
        update = rows("outputs") - rows("inputs")
    return sketcher.sketch(update, first=parts[0].first).tobytes()
