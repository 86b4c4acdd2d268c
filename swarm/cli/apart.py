"""Long work that nothing can interrupt, and how a process ends at once all the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


async def apart(work: Callable[[], T]) -> T:
    """What ``work`` returns, run in a thread of its own, which keeps nobody waiting: the process may end meanwhile."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # what ``work`` returned, which may be None

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True, name="apart").start()
    return await done


def leave_process(code: int) -> NoReturn:
    """End this process with ``code``, now: what it held is given back by the system.

    Python's own end frees every tensor and module one by one, which takes seconds, and may wait for a thread that
    still loads. Whoever calls it has closed what others rely on.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
