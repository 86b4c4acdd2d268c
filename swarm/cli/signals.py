"""Ctrl-C and SIGTERM, and waiting for whatever ends a server first."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any

STOPPED_EARLY = 130
"""Exit code of a server that was told to stop before it was ready."""


class Signals:
    """What Ctrl-C and SIGTERM ask for: the first to ``stop`` in good order, a second one to ``hurry``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


@contextlib.contextmanager
def stop_imports() -> Iterator[None]:
    """While modules load, Ctrl-C and SIGTERM end the process with ``STOPPED_EARLY``.

    A ``KeyboardInterrupt`` will not do: one that passes through a module's own ``exec`` makes Python kill itself with
    the signal at its end, although it was caught.
    """

    def leave(*_: object) -> None:
        raise SystemExit(STOPPED_EARLY)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def first_of(stop: asyncio.Event, *others: asyncio.Future[Any]) -> None:
    """Return once ``stop`` is set or one of ``others`` is done, however it ended."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, *others}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
