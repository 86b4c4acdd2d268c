"""What a stage sent on, row by row as the wire had it, so that whoever takes over from the next server can be fed.

Costs a decoded token one entry in a list and no copy: the bytes are those that went to the next server. What a stage
computed is kept in the same way, for audits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from swarm.wire.payload import ID_BYTES
from swarm.wire.tensors import Buffer, cut_tensor

REPLAY_ROWS = 128
"""Rows of one frame: a newcomer computes the first while the next are on their way."""
OWN_HORIZON = 1
"""A horizon that leaves every row the table of its own length, as a decode step of one row has it. Such rows can be
replayed together, where a horizon of 0 would give them all the table of the longest."""


class ReplayBudget:
    """The bytes that all logs of a server may hold together.

    ``spare`` gives up something that is kept for nobody's present need, and says whether there was anything.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.spare: Callable[[], bool] = lambda: False

    def take(self, size_bytes: int) -> bool:
        """Reserve; False if that is more than is left, even with everything spared."""
        while self.used_bytes + size_bytes > self.limit_bytes:
            if not self.spare():
                return False
        self.used_bytes += size_bytes
        return True

    def charge(self, size_bytes: int) -> None:
        """Count what is held in any case, be it more than is left; negative: less of it."""
        self.used_bytes += size_bytes
        while size_bytes >= 0 and self.used_bytes > self.limit_bytes and self.spare():
            pass

    def give(self, size_bytes: int) -> None:
        """Return what was reserved."""
        self.used_bytes -= size_bytes


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the tensors of a log are encoded: what ``encode_tensor`` takes."""

    codec: str
    dtype: str
    hidden: int


@dataclass(frozen=True, slots=True)
class ReplayRows:
    """Rows ``[keep, keep + rows)`` as a ``Replay`` carries them; ``parts`` in order are its payload."""

    keep: int
    rows: int
    ids: bool
    horizon: int
    parts: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class _Segment:
    """The rows of one step: ``ids`` are 4 bytes a row, or none; ``tensor`` is encoded."""

    rows: int
    ids: Buffer
    tensor: Buffer
    horizon: int

    @property
    def size_bytes(self) -> int:
        return len(self.ids) + memoryview(self.tensor).nbytes


class ReplayLog:
    """One session's rows, contiguous from row 0, within a budget that all sessions share.

    A log that does not fit any more, or would have a gap, is dropped whole and stays empty until it begins again at
    row 0: half a log is of no use to anybody. ``close`` gives back what it holds.
    """

    def __init__(self, budget: ReplayBudget) -> None:
        self.rows = 0
        self._budget = budget
        self._encoding: Encoding | None = None
        self._segments: list[_Segment] = []
        self._dropped = False

    @property
    def size_bytes(self) -> int:
        """What it counts for. O(rows)."""
        return sum(segment.size_bytes for segment in self._segments)

    def append(self, keep: int, rows: int, ids: Buffer, tensor: Buffer, encoding: Encoding, horizon: int) -> None:
        """Note ``rows`` sent after ``keep``, with the step's ``horizon`` (0: ``keep + rows``). Amortised O(1).

        ``ids`` is empty or 4 bytes a row, ``tensor`` encoded ``[rows, hidden]``; both are kept, not copied.
        """
        self.truncate(keep)
        if self._dropped:
            return
        if keep > self.rows or (self.rows and encoding != self._encoding):
            self._drop()
            return
        own = rows == 1 and horizon <= keep + 1
        segment = _Segment(rows, ids, tensor, OWN_HORIZON if own else horizon or keep + rows)
        if not self._budget.take(segment.size_bytes):
            self._drop()
            return
        self._encoding = encoding
        self._segments.append(segment)
        self.rows += rows

    def truncate(self, keep: int) -> None:
        """Forget all but the first ``keep`` rows; at 0 a dropped log begins again."""
        while self.rows > keep:
            segment = self._segments.pop()
            self.rows -= segment.rows
            self._budget.give(segment.size_bytes)
            if self.rows < keep:
                self._keep_part(segment, keep - self.rows)
        if keep == 0:
            self._dropped = False

    def readdress(self, encoding: Encoding) -> None:
        """From now on rows are for a server that reads ``encoding``: a log in another one is of no use to it."""
        if self.rows and encoding != self._encoding:
            self._drop()

    def close(self) -> None:
        """Forget everything."""
        self.truncate(0)

    def frames(self, rows: int, *, first: int = 0, bare: bool = False) -> Iterator[ReplayRows]:
        """Rows ``[first, rows)`` in frames of at most ``REPLAY_ROWS``, those of one horizon together.

        ``bare`` leaves out token ids, and so does not mind horizons. Made of what the log holds at the call, whatever
        happens to it later; none if that is fewer rows.
        """
        if self._encoding is None or rows > self.rows:
            return iter(())
        segments = tuple(replace(one, ids=b"", horizon=0) for one in self._segments) if bare else tuple(self._segments)
        return _frames(segments, self._encoding, first, rows)

    def _keep_part(self, segment: _Segment, rows: int) -> None:
        """Put the first rows of a segment back, copied, so that the rest of its memory is free."""
        assert self._encoding is not None
        tensor = b"".join(_cut(segment.tensor, self._encoding, 0, rows))
        part = _Segment(rows, bytes(segment.ids[: ID_BYTES * rows]), tensor, segment.horizon)
        self._budget.take(part.size_bytes)  # less than was just given back
        self._segments.append(part)
        self.rows += rows

    def _drop(self) -> None:
        self.truncate(0)
        self._dropped = True


def _cut(tensor: Buffer, encoding: Encoding, first: int, last: int) -> tuple[Buffer, Buffer]:
    return cut_tensor(tensor, encoding.codec, encoding.dtype, encoding.hidden, first, last)


def _frames(segments: Sequence[_Segment], encoding: Encoding, done: int, rows: int) -> Iterator[ReplayRows]:
    keep = done
    pieces: list[tuple[_Segment, int, int]] = []
    start = 0
    """Where a segment begins."""
    for segment in segments:
        first = max(0, done - start)
        while first < segment.rows and done < rows:
            if pieces and (done - keep == REPLAY_ROWS or not _alike(pieces[0][0], segment)):
                yield _frame(keep, pieces, encoding)
                keep, pieces = done, []
            last = min(segment.rows, first + REPLAY_ROWS - (done - keep), first + rows - done)
            pieces.append((segment, first, last))
            done += last - first
            first = last
        start += segment.rows
    if pieces:
        yield _frame(keep, pieces, encoding)


def _alike(one: _Segment, other: _Segment) -> bool:
    return one.horizon == other.horizon and bool(one.ids) == bool(other.ids)


def _frame(keep: int, pieces: Sequence[tuple[_Segment, int, int]], encoding: Encoding) -> ReplayRows:
    cuts = [_cut(segment.tensor, encoding, first, last) for segment, first, last in pieces]
    ids = [memoryview(segment.ids)[ID_BYTES * first : ID_BYTES * last] for segment, first, last in pieces]
    parts = [*ids, *(scales for scales, _ in cuts), *(values for _, values in cuts)]
    segment = pieces[0][0]
    rows = sum(last - first for _, first, last in pieces)
    return ReplayRows(keep, rows, bool(segment.ids), segment.horizon, tuple(part for part in parts if len(part)))
