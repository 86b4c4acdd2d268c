"""How much a gateway does at once: so many answers, so many requests that wait for one, and none beyond."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.gateway.errors import HttpError, bad_request, closing

FIRST_GUESS_S = 5.0
"""How long an answer takes, before one has ended."""
WEIGHT = 0.2
"""Of the last answer in the running mean."""
MOST_WAIT_S = 120.0


@dataclass(eq=False, slots=True)
class _Waiter:
    count: int
    ready: asyncio.Future[None]


class Gate:
    """Lets ``limit`` answers run at once and ``queue`` requests wait their turn, first come first served."""

    def __init__(self, clock: Clock, *, limit: int, queue: int, queue_timeout_s: float) -> None:
        self._clock = clock
        self._limit = limit
        self._queue = queue
        self._queue_timeout_s = queue_timeout_s
        self._free = limit
        self._waiters: deque[_Waiter] = deque()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False
        self._takes_s = FIRST_GUESS_S

    @property
    def running(self) -> int:
        """Answers under way."""
        return self._limit - self._free

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A request, from before its body is read. Raises ``HttpError`` 429 if there are too many, 503 if closed."""
        if self._closed:
            raise closing()
        if self._inside >= self._limit + self._queue:
            raise self._full()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def slots(self, count: int) -> AsyncIterator[None]:
        """Room for ``count`` answers, once those who came before have theirs.

        Raises ``HttpError``: 400 if there are never so many, 429 after ``queue_timeout_s``, 503 if closed meanwhile.
        """
        if count > self._limit:
            raise bad_request(f"{count} answers asked for; this gateway gives {self._limit} at once", "n")
        await self._take(count)
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            self._takes_s += WEIGHT * (self._clock.monotonic_s() - began_s - self._takes_s)
            self._give_back(count)

    def close(self) -> None:
        """Let nobody in any more; who waits is told so. Who is inside may end. Idempotent."""
        self._closed = True
        while self._waiters:
            ready = self._waiters.popleft().ready
            if not ready.done():
                ready.set_exception(closing())

    async def emptied(self) -> None:
        """Return once no request is inside."""
        await self._empty.wait()

    async def _take(self, count: int) -> None:
        if self._closed:
            raise closing()
        if not self._waiters and count <= self._free:
            self._free -= count
            return
        waiter = _Waiter(count, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await waiter.ready
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.ready.done() and not waiter.ready.cancelled() and waiter.ready.exception() is None:
                self._free += count  # it was let in at the moment in which it gave up
            self._admit()
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    def _give_back(self, count: int) -> None:
        self._free += count
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._waiters[0].count <= self._free:
            waiter = self._waiters.popleft()
            if not waiter.ready.done():
                self._free -= waiter.count
                waiter.ready.set_result(None)

    def _full(self) -> HttpError:
        """Come back when those who are here have had their turn."""
        wait_s = self._takes_s * (1 + len(self._waiters) / self._limit)
        return HttpError(
            429,
            f"the gateway is busy: {self.running} answers under way, {self.waiting} requests wait",
            code="gateway_busy",
            kind="rate_limit_error",
            retry_after_s=min(wait_s, MOST_WAIT_S),
        )
