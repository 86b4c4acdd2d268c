"""An event loop in a thread of its own: asynchronous code for whoever calls from elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swarm.core.errors import MisuseError

T = TypeVar("T")
FAREWELL_S = 2.0
"""How long the end of a model waits for the calls that it cut short."""


class LoopThread:
    """One event loop in one daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = False
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarm-client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start ``work`` on the loop; ``MisuseError`` after ``stop``."""
        if self._stopping:
            work.close()
            raise MisuseError("the model is closed", hint="connect again")
        if threading.current_thread() is self._thread:
            work.close()
            raise MisuseError("a blocking call from swarm's own event loop", hint="await the async form instead")
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return call

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and wait; Ctrl-C cancels it and waits until it has cleaned up."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                concurrent.futures.wait([future], timeout=5.0)
            raise

    async def bridge(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` from the caller's own loop; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    @property
    def closed(self) -> bool:
        return self._stopping

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run ``callback`` on the loop some time soon, if it still runs. For finalizers: never raises or waits."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the loop and its thread; calls that other threads wait in are given a moment, then cancelled.

        Idempotent.
        """
        if self._stopping:
            return
        self._stopping = True
        _, late = concurrent.futures.wait(tuple(self._calls), timeout=FAREWELL_S)
        for call in late:
            call.cancel()
        concurrent.futures.wait(late, timeout=FAREWELL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10.0)
        if not self._thread.is_alive():
            self._loop.close()
