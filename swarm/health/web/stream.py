"""Server-sent events: a whole state, then what changed, to readers that may be slow, gone, or too many."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from swarm.core.clock import Clock
from swarm.health.options import HealthOptions
from swarm.health.web.errors import ApiError
from swarm.health.web.feed import GZIP_HEAD, Encoded, Feed, gzip_tail
from swarm.runtime.http import household

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "Vary": "Accept-Encoding",
}
HELLO = Encoded(b"retry: 2000\n\n")
BEAT = Encoded(b"event: ping\ndata: {}\n\n")
PIECE_BYTES = 64 * 1024
"""Written at once: a reader on a slow line is given time for each, not for the whole."""
PATIENCE = 4
"""So many times the limit of a piece may all pieces of an event take: who is slower holds an old state in memory, and
had better begin anew with the newest."""
RETRY_S = 10.0


class Places:
    """How many streams are open, in all and by address (of IPv6, by /64)."""

    def __init__(self, *, limit: int, per_address: int) -> None:
        self._limit = limit
        self._per_address = per_address
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """By all together."""
        return self._taken.total()

    @contextmanager
    def one(self, address: str) -> Iterator[None]:
        """A place while a stream lasts; ``ApiError`` 503 if there is none."""
        if self.taken >= self._limit:
            raise _full(f"all {self._limit} streams are taken", "streams_full")
        home = household(address)
        if self._taken[home] >= self._per_address:
            raise _full(f"{self._per_address} streams go to your address already", "streams_per_address_full")
        self._taken[home] += 1
        try:
            yield
        finally:
            self._taken[home] -= 1
            self._taken += Counter()  # forgets whose count is zero


def _full(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, retry_after_s=RETRY_S)


class EventStream:
    """One reader."""

    def __init__(self, request: web.Request, feed: Feed, clock: Clock, options: HealthOptions, *, packed: bool) -> None:
        self._request = request
        self._feed = feed
        self._clock = clock
        self._options = options
        self._packed = packed
        self._crc = 0
        self._length = 0
        self.response = web.StreamResponse(headers=HEADERS | ({"Content-Encoding": "gzip"} if packed else {}))

    async def run(self, mark: str) -> str:
        """From ``mark`` (what the reader saw last, if anything) until it leaves or the feed closes; how it ended."""
        told = 0
        try:
            await self.response.prepare(self._request)
            if self._packed:
                await self._write(GZIP_HEAD)
            await self._send(HELLO)
            base = self._feed.known(mark)
            while not self._feed.closed.is_set():
                newest = self._feed.newest.revision
                if base != newest:
                    # Whoever read too slowly for its base to be kept gets a whole state again: nothing is queued.
                    await self._send(self._feed.event(base))
                    base, told = newest, told + 1
                elif not await self._moved(newest):
                    await self._send(BEAT)
            if self._packed:
                await self._write(gzip_tail(self._crc, self._length))
            return f"{told} events"
        except ConnectionResetError:
            return f"{told} events, reader left"

    async def _moved(self, revision: int) -> bool:
        """Wait for the next state; False if it did not come before it is time to say that we are alive."""
        moving = asyncio.ensure_future(self._feed.moved_from(revision))
        sleeping = asyncio.ensure_future(self._clock.sleep(self._options.beat_s))
        try:
            await asyncio.wait({moving, sleeping}, return_when=asyncio.FIRST_COMPLETED)
            return moving.done()
        finally:
            for task in (moving, sleeping):
                task.cancel()

    async def _send(self, event: Encoded) -> None:
        if not self._packed:
            await self._write(event.plain)
            return
        self._crc = zlib.crc32(event.plain, self._crc)
        self._length += len(event.plain)
        await self._write(event.packed)

    async def _write(self, data: bytes) -> None:
        """Raises ``ConnectionResetError`` if the reader is gone, or takes too long, for a piece or in all, and is cut
        off."""
        limit_s = self._options.write_timeout_s
        try:
            async with asyncio.timeout(PATIENCE * limit_s):
                for start in range(0, len(data), PIECE_BYTES):
                    async with asyncio.timeout(limit_s):
                        await self.response.write(data[start : start + PIECE_BYTES])
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the reader does not read") from None
