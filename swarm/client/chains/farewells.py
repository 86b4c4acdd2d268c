"""Goodbyes that nobody waits for until the very end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Farewells:
    """Endings that run on their own."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def bid(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start ``work``, which raises nothing."""
        task = asyncio.create_task(work, name="farewell")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def said(self) -> None:
        """Return once all that were begun so far have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
