"""An event loop whose time jumps: when nothing can run, the next timer is due at once.

Unlike a clock object, this also moves ``asyncio.timeout`` and ``call_later``: production code keeps its real timeouts
in tests, and a wait of five minutes costs nothing. Work in other threads (a model's forward) counts as running: time
stands still until it has come back.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

HORIZON_S = 4 * 3600.0
"""A test that gets this far waits for something that never comes."""
PATIENT_TURNS = 2000
SPIN_S = 1e-5
"""After so many turns in a row without any wait somebody spins until a time comes: each turn then takes a little."""
WALL_OFFSET_S = 1_800_000_000.0


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for real only while threads are at work; otherwise moves the loop's time on by the wait."""

    loop: VirtualLoop
    _turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._turns += 1
            if self._turns > PATIENT_TURNS:
                self.loop.now_s += SPIN_S
            return ready
        self._turns = 0
        if self.loop.threads_at_work:
            return super().select(None)
        if timeout is None:
            raise RuntimeError("deadlock: everybody waits, and no timer is set")
        self.loop.now_s += timeout
        if self.loop.now_s > HORIZON_S:
            raise RuntimeError(f"the test waited for {HORIZON_S:g} virtual seconds")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.threads_at_work = 0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.threads_at_work += 1
        future.add_done_callback(self._returned)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        self.threads_at_work += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.threads_at_work -= 1

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self.threads_at_work -= 1


class LoopClock:
    """``swarm.core.clock.Clock`` over the time of the loop it is made in, for its threads as well."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return WALL_OFFSET_S + self.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
