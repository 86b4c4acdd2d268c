"""Steps that are on their way through a chain, and who waits for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from swarm.core.errors import ProtocolViolation, SwarmError
from swarm.wire.frames import Frame
from swarm.wire.messages import Result, Step


class PendingSteps:
    """The results that are awaited, by generation, epoch and sequence, and the steps that are being sent."""

    def __init__(self) -> None:
        self._awaited: dict[tuple[int, int, int], tuple[asyncio.Future[Frame], int]] = {}
        self._sending: set[asyncio.Timeout] = set()

    def expect(self, step: Step) -> asyncio.Future[Frame]:
        """The future ``Result`` frame of a step."""
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._awaited[(step.generation, step.epoch, step.seq)] = future, step.keep + step.rows
        return future

    async def send(self, sending: Coroutine[Any, Any, None]) -> None:
        """Wait for ``sending``, but no longer than until ``fail``: a server may take no more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as scope:
                self._sending.add(scope)
                try:
                    await sending
                finally:
                    self._sending.discard(scope)

    def resolve(self, result: Result, frame: Frame) -> bool:
        """Give a result to whoever waits for it; False: nobody does. ``ProtocolViolation`` if it counts other rows."""
        where = result.generation, result.epoch, result.seq
        if where not in self._awaited:
            return False
        future, length = self._awaited[where]
        if result.kv_length != length:
            raise ProtocolViolation("the last server counts other rows than this client")
        del self._awaited[where]
        if not future.done():
            future.set_result(frame)
        return True

    def forget(self) -> None:
        """Nobody waits any more."""
        for future, _ in self._awaited.values():
            future.cancel()
        self._awaited.clear()

    def fail(self, error: SwarmError) -> None:
        """Whoever waits is told why there will be no result."""
        for future, _ in self._awaited.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as seen: a step that was given up is never awaited
        self._awaited.clear()
        for scope in self._sending:
            scope.reschedule(asyncio.get_running_loop().time())
