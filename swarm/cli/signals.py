"""Ctrl-C and SIGTERM, and waiting for whatever ends a server first."""

from __future__ import annotations

import asyncio
import signal
from typing import Any


class Signals:
    """What Ctrl-C and SIGTERM ask for: the first to ``stop`` in good order, a second one to ``hurry``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def first_of(stop: asyncio.Event, *others: asyncio.Future[Any]) -> None:
    """Return once ``stop`` is set or one of ``others`` is done, however it ended."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
