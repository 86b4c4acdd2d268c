"""Background tasks with an owner: nothing runs that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from swarm.core.errors import MisuseError

OnError = Callable[[str, Exception], None]
"""Called with a task's name and the exception it ended with."""


class Tasks:
    """Owns background tasks. ``close`` cancels them all and waits; an exception goes to ``on_error`` at once.

    Unlike ``asyncio.TaskGroup``, one task's failure does not take the others down: the owner decides.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Start ``work``; ``MisuseError`` after ``close``."""
        if self._closed:
            work.close()
            raise MisuseError(f"cannot start {name!r}: its owner has closed")
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel every task and wait until all have ended. Idempotent; one of the tasks may call it."""
        self._closed = True
        while others := [task for task in self._running if task is not asyncio.current_task()]:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            await asyncio.sleep(0)  # the done callbacks

    async def __aenter__(self) -> Tasks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            self._on_error(task.get_name(), error)
