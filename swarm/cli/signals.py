"""Ctrl-C, SIGTERM and a closed terminal, and waiting for whatever ends a server first."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

STOPPED_EARLY = 130
"""Exit code of a server that was told to stop before it was ready, or to stop at once."""
ENDS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """What Ctrl-C and SIGTERM ask for: the first to ``stop`` in good order, a second one to ``hurry``.

    So does a closed terminal (SIGHUP), which never hurries: one may be told several times. Who started the process
    with it ignored (``nohup``) wants it to live on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, outputs: Sequence[int] = (1, 2)) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._terminals = [output for output in outputs if os.isatty(output)]
        for number in ENDS:
            loop.add_signal_handler(number, self._received)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    def _hung_up(self) -> None:
        """Leave, and write to where the terminal was no more: each write would fail, and leaving with it."""
        with open(os.devnull, "wb") as nowhere:
            for output in self._terminals:
                os.dup2(nowhere.fileno(), output)
        self._terminals = []
        self.stop.set()


class PauseSwitch:
    """SIGUSR1 pauses a server, SIGUSR2 lets it go on; unheard, either would end the process, so make one early."""

    def __init__(self) -> None:
        self.paused = False
        self.changed = asyncio.Event()
        """Set by each of the two, once ``follow`` was called."""
        for number, paused in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
            signal.signal(number, partial(self._noted, paused))

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake whoever waits in ``loop`` as well."""
        for number, paused in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):
            loop.add_signal_handler(number, self._switched, paused)

    def _noted(self, paused: bool, *_: object) -> None:
        self.paused = paused

    def _switched(self, paused: bool) -> None:
        self.paused = paused
        self.changed.set()


@contextlib.contextmanager
def stop_imports() -> Iterator[None]:
    """While modules load, Ctrl-C and SIGTERM end the process with ``STOPPED_EARLY``.

    A ``KeyboardInterrupt`` will not do: one that passes through a module's own ``exec`` makes Python kill itself with
    the signal at its end, although it was caught.
    """

    def leave(*_: object) -> None:
        raise SystemExit(STOPPED_EARLY)

    before = {number: signal.signal(number, leave) for number in ENDS}
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


async def unless_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, T]) -> T | None:
    """What ``starting`` returns or raises; None if ``stop`` is set before, and then it was cancelled and has ended."""
    task = asyncio.ensure_future(starting)
    try:
        await first_of(stop, task)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
