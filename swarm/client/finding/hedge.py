"""Several tries at one thing, each begun when those before failed or were silent; the first that works wins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeVar

HEDGE_S = 2.0
"""Silence after which the next try begins: servers answer within a round trip, unless a forward holds up their loop."""
MAX_TRIES = 4
"""At once."""


class Closable(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


async def first_open(
    first: Coroutine[Any, Any, T],
    another: Callable[[], Coroutine[Any, Any, T] | None],
    won: Callable[[], None],
    losers: set[asyncio.Task[None]],
) -> T:
    """The result of the first try that succeeds; the error of the last if none does.

    ``another`` gives the next try, or None if there is none now. ``won`` is called while the others are still under
    way. These are then cancelled, and closed if they succeed all the same, by tasks in ``losers``, so that nobody waits
    for them. Cancelled, all tries end before this raises.
    """
    tries: set[asyncio.Task[T]] = {asyncio.create_task(first)}
    try:
        while True:
            done, tries = await asyncio.wait(tries, timeout=HEDGE_S, return_when=asyncio.FIRST_COMPLETED)
            opened = [task for task in done if not task.cancelled() and task.exception() is None]
            if opened:
                won()
                tries |= set(opened[1:])
                return opened[0].result()
            if not tries:
                return done.pop().result()  # raises
            if len(tries) < MAX_TRIES and (more := another()) is not None:
                tries.add(asyncio.create_task(more))
    except asyncio.CancelledError:
        await asyncio.gather(*map(_end, tries))
        tries = set()
        raise
    finally:
        for task in tries:
            loser = asyncio.create_task(_end(task), name="a try that lost")
            losers.add(loser)
            loser.add_done_callback(losers.discard)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a try; close what it has opened nevertheless."""
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        opened = await task
        await opened.close()
