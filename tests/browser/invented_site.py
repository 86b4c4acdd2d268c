"""The real health page over a swarm that a test invents, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NoReturn

from invented_swarms import history

from swarm.health.options import HealthOptions
from swarm.health.service import HealthService
from swarm.health.state import EventState, HistoryState, SwarmState
from swarm.runtime.clock import SystemClock

OPTIONS = HealthOptions(pace_s=0.02)


class Invented:
    """A watch's public side over states that somebody else makes."""

    def __init__(self, state: SwarmState) -> None:
        self._state = state
        self._moved = asyncio.Event()

    def show(self, state: SwarmState) -> None:
        self._state = state
        self._moved.set()
        self._moved = asyncio.Event()

    async def run(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("the wait ended")

    def state(self) -> SwarmState:
        return self._state

    async def changed(self, revision: int) -> SwarmState:
        while self._state.revision == revision:
            await self._moved.wait()
        return self._state

    async def history(self, model: str, hours: float) -> HistoryState:
        return history(model, hours, self._state.at)

    def events(self, after: int = 0, limit: int = 100) -> list[EventState]:
        return [event for event in self._state.events if event.number > after][-limit:]

    async def proof(self, digest: str) -> bytes | None:
        return None


class Site:
    """A page's server. ``url`` is where it listens, from the start on."""

    def __init__(self, state: SwarmState) -> None:
        self._source = Invented(state)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._port = 0
        self.up()
        self.url = f"http://127.0.0.1:{self._port}"

    @property
    def state(self) -> SwarmState:
        return self._source.state()

    def show(self, state: SwarmState) -> None:
        """The next state: of a higher revision than any before."""
        self._loop.call_soon_threadsafe(self._source.show, state)

    def up(self) -> None:
        """Listen (again)."""
        self._run(self._up())

    def down(self) -> None:
        """Every connection ends, and no new one is taken until ``up``."""
        self._run(self._down())

    def close(self) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, doing: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(30.0)

    async def _up(self) -> None:
        self._service = HealthService(self._source, SystemClock(), OPTIONS)
        self._port = await self._service.listen("127.0.0.1", self._port)
        self._running = asyncio.ensure_future(self._service.run())

    async def _down(self) -> None:
        await self._service.stop()
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
