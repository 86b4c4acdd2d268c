"""An upload limit that holds: all streams of a node share one rate, and small frames pass large ones.

The transport below has buffers of its own, so bytes are held back here and handed on in pieces no larger than what
leaves in ``PIECE_S``. A decode step's row waits for one such piece at most, not for the prefill chunk it is part of.
Everything that is written on streams counts, with what the layers below add to it; what the libp2p daemon says for
itself (its share of the directory) does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from swarm.core.clock import Clock
from swarm.core.errors import PeerLostError
from swarm.core.ids import PeerId
from swarm.transport.protocol import Stream, StreamHandler, Transport

PATIENT_SHARE = 0.2
"""Of the rate, what is kept for whoever has waited longest while smaller writes could use it all."""
PIECE_S = 0.01
MIN_PIECE_BYTES = 1024
MAX_PIECE_BYTES = 32 * 1024
BURST_S = 0.05
"""After a pause so much may leave at once."""
BUFFER_BYTES = 256 * 1024
"""Held back for one stream before whoever writes has to wait."""
CLOSE_S = 0.5
"""How long a stream that is closed may take to send what it holds."""
SEGMENT_BYTES = 1448
SEGMENT_OVERHEAD_BYTES = 52
WRITE_OVERHEAD_BYTES = 30


def line_bytes(size_bytes: int) -> int:
    """What a write of ``size_bytes`` takes on the line: TCP and IPv4 headers of each segment, and libp2p's of each
    write (noise 18, yamux 12)."""
    size_bytes += WRITE_OVERHEAD_BYTES
    return size_bytes + SEGMENT_OVERHEAD_BYTES * -(-size_bytes // SEGMENT_BYTES)


class UplinkCap:
    """Says who may send next so that all together stay under ``mbps`` in the long run. One for all streams of a node.

    Over any time T no more than ``mbps · (T + BURST_S)`` and one piece is let go. Pieces of the smallest write come
    first (a decode step's row, a result, a no-op: before prompts), in the order in which they were asked for; but of
    what leaves while another piece has waited longer, ``PATIENT_SHARE`` is the one that has waited longest. O(streams
    that wait) a piece.
    """

    def __init__(self, mbps: float, clock: Clock) -> None:
        self.mbps = mbps
        self.piece_bytes = max(MIN_PIECE_BYTES, min(int(1e6 / 8 * mbps * PIECE_S), MAX_PIECE_BYTES))
        self._bytes_per_s = 1e6 / 8 * mbps
        self._clock = clock
        self._free_s = float("-inf")
        self._waiting: list[_Piece] = []
        self._numbers = count()
        self._ahead_bytes = 0.0
        """By how much the smaller ones have had more than their share."""
        self._running: asyncio.Task[None] | None = None

    def take(self, size_bytes: int) -> bool:
        """Let a piece go now if nobody waits and the line is free; True if so."""
        if self._running is not None or self._wait_s() > 0:
            return False
        self._charge(size_bytes)
        return True

    async def turn(self, size_bytes: int, write_bytes: int) -> None:
        """Return when a piece of a write of ``write_bytes`` may go. Cancelled before, it counts for nothing."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Piece(write_bytes, next(self._numbers), size_bytes, granted))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="uplink cap")
        await granted

    async def _run(self) -> None:
        try:
            while self._waiting:
                if (wait_s := self._wait_s()) > 0:
                    await self._clock.sleep(wait_s)
                    continue
                piece = self._next()
                if not piece.granted.done():  # else whoever asked was cancelled
                    self._charge(piece.size_bytes)
                    piece.granted.set_result(None)
                    await asyncio.sleep(0)  # it may have another piece to ask for
        finally:
            self._running = None

    def _next(self) -> _Piece:
        """Whose turn it is."""
        smallest = min(self._waiting, key=lambda piece: (piece.write_bytes, piece.number))
        oldest = min(self._waiting, key=lambda piece: piece.number)
        if oldest is smallest:
            chosen = smallest
        elif self._ahead_bytes < 0:
            chosen = smallest
            self._ahead_bytes += PATIENT_SHARE * chosen.size_bytes
        else:
            chosen = oldest
            spent_bytes = (1 - PATIENT_SHARE) * chosen.size_bytes
            self._ahead_bytes = max(self._ahead_bytes - spent_bytes, -float(self.piece_bytes))
        self._waiting.remove(chosen)
        return chosen

    def _wait_s(self) -> float:
        return self._free_s - BURST_S - self._clock.monotonic_s()

    def _charge(self, size_bytes: int) -> None:
        """Note what leaves: ``_free_s`` is when a line of this rate would be done with all that was let go."""
        self._free_s = max(self._free_s, self._clock.monotonic_s()) + line_bytes(size_bytes) / self._bytes_per_s


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """What waits for its turn: a part of one write, its number in the order of asking."""

    write_bytes: int
    number: int
    size_bytes: int
    granted: asyncio.Future[None]


class CappedStream:
    """A stream whose writes wait for their turn; reads are ``inner``'s own."""

    def __init__(self, inner: Stream, cap: UplinkCap) -> None:
        self._inner = inner
        self._cap = cap
        self._held: deque[tuple[memoryview, int]] = deque()
        """Pieces, each with the size of the write that it is part of."""
        self._held_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._left = asyncio.Event()
        self._lost: PeerLostError | None = None
        self._closing = False

    @property
    def peer(self) -> PeerId:
        return self._inner.peer

    @property
    def address(self) -> str:
        """See ``Stream.address``."""
        return self._inner.address

    async def read_exactly(self, count: int) -> bytes:
        """See ``Stream.read_exactly``."""
        return await self._inner.read_exactly(count)

    async def write(self, *parts: bytes | memoryview) -> None:
        """See ``Stream.write``."""
        if self._lost is not None:
            raise self._lost
        if self._closing:
            raise PeerLostError("the stream was closed here", peer=self.peer)
        size_bytes = sum(len(part) for part in parts)
        if self._sending is None and size_bytes <= self._cap.piece_bytes and self._cap.take(size_bytes):
            await self._inner.write(*parts)
            return
        self._hold(b"".join(parts))
        while self._held_bytes > BUFFER_BYTES and self._lost is None:
            self._left.clear()
            await self._left.wait()
        if self._lost is not None:
            raise self._lost

    async def close(self) -> None:
        """See ``Stream.close``. What is held back still leaves if that takes no more than ``CLOSE_S``."""
        if not self._closing and self._sending is not None:
            self._closing = True
            await asyncio.wait([self._sending], timeout=CLOSE_S)
        self._closing = True
        if (sending := self._sending) is not None:
            sending.cancel()
            await asyncio.wait([sending])
        self._lost = self._lost or PeerLostError("the stream was closed here", peer=self.peer)
        self._left.set()
        await self._inner.close()

    def _hold(self, data: bytes) -> None:
        whole = memoryview(data)
        for start in range(0, len(whole), self._cap.piece_bytes):
            piece = whole[start : start + self._cap.piece_bytes]
            self._held.append((piece, len(whole)))
            self._held_bytes += len(piece)
        if self._sending is None and self._held:
            self._sending = asyncio.create_task(self._send(), name="capped stream")

    async def _send(self) -> None:
        try:
            while self._held:
                piece, write_bytes = self._held[0]
                await self._cap.turn(len(piece), write_bytes)
                await self._inner.write(piece)
                self._held.popleft()
                self._held_bytes -= len(piece)
                self._left.set()
        except PeerLostError as error:
            self._lost = error
            self._held.clear()
            self._left.set()
        finally:
            self._sending = None


class CappedTransport:
    """``inner`` with all its streams under one ``cap``."""

    def __init__(self, inner: Transport, cap: UplinkCap) -> None:
        self._inner = inner
        self._cap = cap

    @property
    def peer_id(self) -> PeerId:
        return self._inner.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """See ``Transport.addresses``."""
        return self._inner.addresses

    async def listen(self, protocol: str, handler: StreamHandler) -> None:
        """See ``Transport.listen``."""

        async def capped(stream: Stream) -> None:
            mine = CappedStream(stream, self._cap)
            try:
                await handler(mine)
            finally:
                await mine.close()

        await self._inner.listen(protocol, capped)

    async def dial(
        self, peer: PeerId, protocol: str, *, addresses: Sequence[str] = (), timeout_s: float = 10.0
    ) -> Stream:
        """See ``Transport.dial``."""
        return CappedStream(await self._inner.dial(peer, protocol, addresses=addresses, timeout_s=timeout_s), self._cap)

    async def close(self) -> None:
        """See ``Transport.close``."""
        await self._inner.close()
