"""Owned tasks: errors surface, close waits, nothing outlives its owner."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.errors import MisuseError
from swarm.runtime.tasks import Tasks


class Errors(list[tuple[str, Exception]]):
    def __call__(self, name: str, error: Exception) -> None:
        self.append((name, error))


async def forever() -> None:
    await asyncio.Event().wait()


async def test_an_exception_goes_to_the_owner_and_the_others_live_on() -> None:
    errors = Errors()
    async with Tasks(errors) as tasks:
        other = tasks.spawn(forever(), name="other")

        async def fail() -> None:
            raise ValueError("boom")

        failing = tasks.spawn(fail(), name="failing")
        await asyncio.wait({failing})
        await asyncio.sleep(0)
        assert [(name, str(error)) for name, error in errors] == [("failing", "boom")]
        assert not other.done()
        assert len(tasks) == 1
    assert other.cancelled()
    assert len(errors) == 1


async def test_close_waits_for_cleanup() -> None:
    cleaning, go_on, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def careful() -> None:
        try:
            await forever()
        finally:
            cleaning.set()
            await go_on.wait()
            cleaned.set()

    tasks = Tasks(Errors())
    tasks.spawn(careful(), name="careful")
    await asyncio.sleep(0)
    closing = asyncio.create_task(tasks.close())
    await cleaning.wait()
    assert not closing.done()
    go_on.set()
    await closing
    assert cleaned.is_set()
    await tasks.close()
    assert len(tasks) == 0


async def test_an_error_while_closing_still_surfaces() -> None:
    errors = Errors()

    async def fail_at_the_end() -> None:
        try:
            await forever()
        finally:
            raise ValueError("cleanup")

    tasks = Tasks(errors)
    tasks.spawn(fail_at_the_end(), name="cleaner")
    await asyncio.sleep(0)
    await tasks.close()
    assert [name for name, _ in errors] == ["cleaner"]


async def test_one_of_the_tasks_may_close_and_no_task_starts_afterwards() -> None:
    tasks = Tasks(Errors())
    other = tasks.spawn(forever(), name="other")
    closer = tasks.spawn(tasks.close(), name="closer")
    await closer
    assert other.cancelled()
    with pytest.raises(MisuseError, match="late"):
        tasks.spawn(forever(), name="late")
