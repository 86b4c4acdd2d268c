"""One piece of work at a time, which others may end as well as whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Errand:
    """Runs work in a task of its own."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None

    async def run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Wait for ``work`` to end, however it does; cancelled, end it first."""
        self._task = task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ran)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task

    def stop(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """``stop``, and return once it has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _ran(self, _: asyncio.Task[None]) -> None:
        self._task = None
