"""FETCH streams: a client has rows of its closed sessions back, to have them audited."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.errors import BadSignatureError, NetworkError, PeerError, ProtocolViolation, RefusedError
from swarm.core.ids import PeerId, SessionKey
from swarm.server.record.kept import Kept
from swarm.server.record.replay_log import REPLAY_ROWS
from swarm.server.record.shelf import Shelf
from swarm.server.sessions.links import Rendezvous
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream
from swarm.verification.challenges.commitment import check_opening
from swarm.wire.evidence import FetchedRows, FetchRows
from swarm.wire.messages import Busy, Refused
from swarm.wire.session import Channel, Role
from swarm.wire.tensors import Buffer

log = logging.getLogger(__name__)

MAX_FETCH_FRAME_BYTES = 1024
"""Of what a client sends here."""
FETCH_IDLE_S = 10.0
"""How long a stream may wait for the next request."""
MAX_STREAMS = 32
MAX_STREAMS_PER_PEER = 4
BUSY_RETRY_S = 2.0
END_S = 2.0
"""How long a request may wait for its session to end."""
END_POLL_S = 0.02
BYTES_PER_S = 16e6
"""For one peer, and for all together twice as much, in the long run; both may have two seconds' worth at once."""
BURST_S = 2.0


class Throttle:
    """How long to wait before so many bytes may go, ``bytes_per_s`` in the long run. The caller knows the time."""

    def __init__(self, bytes_per_s: float, burst_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst_s = burst_s
        self._free_s: dict[str, float] = {}

    def wait_s(self, name: str, size_bytes: int, now_s: float) -> float:
        """Note that ``name`` sends so much after the wait that is returned."""
        if name not in self._free_s:
            self._free_s = {known: free_s for known, free_s in self._free_s.items() if free_s > now_s}
        free_s = max(self._free_s.get(name, now_s), now_s) + size_bytes / self._bytes_per_s
        self._free_s[name] = free_s
        return max(0.0, free_s - self._burst_s - now_s)


@dataclass(frozen=True, slots=True)
class _Rows:
    """One frame's worth of what was asked for."""

    head: FetchedRows
    parts: tuple[Buffer, ...]


class Fetching:
    """Answers FETCH streams from ``shelf``; ``table`` tells which sessions are not over yet."""

    def __init__(self, shelf: Shelf, table: Rendezvous, clock: Clock) -> None:
        self._shelf = shelf
        self._table = table
        self._clock = clock
        self._streams: Counter[PeerId] = Counter()
        self._each = Throttle(BYTES_PER_S, BURST_S)
        self._all = Throttle(2 * BYTES_PER_S, BURST_S)

    async def serve(self, stream: Stream) -> None:
        """One stream, until its client ends it, says nothing for ``FETCH_IDLE_S``, or is refused."""
        fetch = FrameStream(stream, Channel.FETCH, Role.LISTENER, max_frame_bytes=MAX_FETCH_FRAME_BYTES)
        peer = fetch.peer
        if self._streams[peer] >= 2 * MAX_STREAMS_PER_PEER or self._streams.total() >= 2 * MAX_STREAMS:
            return  # too many even to be told that they are
        self._streams[peer] += 1
        busy = self._streams[peer] > MAX_STREAMS_PER_PEER or self._streams.total() > MAX_STREAMS
        try:
            await self._answer_all(fetch, busy=busy)
        except (NetworkError, PeerError) as error:
            log.debug("fetch stream from %s ended: %s", peer[-8:], error)
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _answer_all(self, fetch: FrameStream, *, busy: bool) -> None:
        while True:
            request = (await fetch.receive_within(FETCH_IDLE_S, "request for rows")).message
            if not isinstance(request, FetchRows):
                raise ProtocolViolation("a fetch stream carries requests for rows", peer=fetch.peer)
            if busy:
                await fetch.send(Busy(BUSY_RETRY_S, "too many streams ask for rows"))
                return
            await self._ended(SessionKey(fetch.peer, request.session, request.stage))
            try:
                kept = self._kept(fetch.peer, request)
            except RefusedError as error:
                await fetch.send(Refused(error.message))
                return
            for rows in _rows_of(kept, request):
                await self._pause(fetch.peer, sum(len(part) for part in rows.parts))
                await fetch.send(rows.head, *rows.parts)

    async def _pause(self, peer: PeerId, size_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        waits_s = self._each.wait_s(peer, size_bytes, now_s), self._all.wait_s("all", size_bytes, now_s)
        await self._clock.sleep(max(waits_s))

    async def _ended(self, key: SessionKey) -> None:
        """Its client may ask on another stream before CLOSE has been read, or the session's work has ended."""
        until_s = self._clock.monotonic_s() + END_S
        while (key in self._table or self._shelf.expects(key)) and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(END_POLL_S)

    def _kept(self, client: PeerId, request: FetchRows) -> Kept:
        """What is kept of the rows asked for; ``RefusedError`` with the reason why they are not for ``client``."""
        key = SessionKey(client, request.session, request.stage)
        if key in self._table:
            raise RefusedError("this session is not over")
        closed = self._shelf.find(key)
        if closed is None:
            raise RefusedError("nothing is kept of this session: it was never yours, or it has been too long")
        try:
            check_opening(closed.commitment, request.secret)
        except BadSignatureError as error:
            raise RefusedError(error.message) from error
        kept = closed.kept
        if request.last > kept.rows:
            raise RefusedError(f"rows up to {request.last} of a session that ended with {kept.rows}")
        log_of = {"outputs": kept.computed, "sent": kept.sent}
        if request.want == "sent" and kept.is_tail:
            raise RefusedError("what the last stage sent went to the client")
        if request.want != "leaves" and log_of[request.want].rows < request.last:
            raise RefusedError("these rows were dropped for want of memory")
        return kept


def _rows_of(kept: Kept, request: FetchRows) -> Iterator[_Rows]:
    """Frames of at most 128 rows, whatever becomes of the session meanwhile."""
    if request.want == "leaves":
        leaves = kept.leaves(request.first, request.last)
        for first in range(0, len(leaves), REPLAY_ROWS):
            part = leaves[first : first + REPLAY_ROWS]
            yield _Rows(FetchedRows(request.first + first, len(part)), (b"".join(part),))
        return
    rows = kept.computed if request.want == "outputs" else kept.sent
    for frame in rows.frames(request.last, first=request.first, bare=request.want == "outputs"):
        yield _Rows(FetchedRows(frame.keep, frame.rows, frame.ids), tuple(frame.parts))
