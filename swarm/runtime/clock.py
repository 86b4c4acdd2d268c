"""Clocks: the machine's, and one for tests that moves only when told to."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from swarm.core.errors import MisuseError

T = TypeVar("T")

_SETTLE_ROUNDS = 10_000


class SystemClock:
    """This machine's clocks and asyncio's sleep."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """Time that stands still until ``advance`` or ``run`` moves it; sleepers wake in the order of their deadlines.

    Both clocks start at the given values and move together. Everything runs in one event loop; work in other threads
    is not waited for.
    """

    def __init__(self, *, wall_s: float = 1_800_000_000.0, monotonic_s: float = 0.0) -> None:
        self._now_s = monotonic_s
        self._wall_offset_s = wall_s - monotonic_s
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has moved ``seconds`` on; at once (after letting others run) if not positive."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Move time on by ``seconds``, waking each sleeper at its own moment and letting it run before the next."""
        target_s = self._now_s + seconds
        await self.settle()
        while (deadline_s := self._next_deadline_s()) is not None and deadline_s <= target_s:
            await self._wake_until(deadline_s)
        self._now_s = target_s
        await self.settle()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, jumping to the next deadline whenever nothing else can run.

        Raises ``MisuseError`` if it waits for something that no sleeper will bring about.
        """
        task = asyncio.ensure_future(work)
        try:
            await self.settle()
            while not task.done():
                deadline_s = self._next_deadline_s()
                if deadline_s is None:
                    raise MisuseError("deadlock: everybody waits and nobody sleeps")
                await self._wake_until(deadline_s)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def settle(self) -> None:
        """Let every task that can run without time passing run until it waits."""
        ready = getattr(asyncio.get_running_loop(), "_ready", None)
        for _ in range(_SETTLE_ROUNDS if ready is not None else 100):
            await asyncio.sleep(0)
            if ready is not None and not ready:
                return

    def _next_deadline_s(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():  # cancelled sleepers
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def _wake_until(self, deadline_s: float) -> None:
        self._now_s = max(self._now_s, deadline_s)
        while self._sleepers and self._sleepers[0][0] <= self._now_s:
            wake = heapq.heappop(self._sleepers)[2]
            if not wake.done():
                wake.set_result(None)
        await self.settle()
