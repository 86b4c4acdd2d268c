"""The gate: never more at once than it lets, first come first served, and no place is ever lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.gateway.errors import HttpError
from swarm.gateway.gate import Gate
from swarm.runtime.clock import VirtualClock


def gate(limit: int = 2, queue: int = 4, queue_timeout_s: float = 3600.0) -> Gate:
    return Gate(VirtualClock(), limit=limit, queue=queue, queue_timeout_s=queue_timeout_s)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Guest:
    """Holds ``count`` places until it is told to leave."""

    def __init__(self, at: Gate, count: int = 1, order: list[Any] | None = None, name: Any = None) -> None:
        self.leave = asyncio.Event()
        self.inside = False
        self.task = asyncio.create_task(self._stay(at, count, order, name))

    async def _stay(self, at: Gate, count: int, order: list[Any] | None, name: Any) -> None:
        async with at.slots(count):
            self.inside = True
            if order is not None:
                order.append(name)
            await self.leave.wait()
        self.inside = False


async def test_first_come_first_served_also_for_whoever_needs_more() -> None:
    at, order = gate(), list[Any]()
    guests = [Guest(at, count, order, place) for place, count in enumerate((1, 1, 2, 1, 1))]
    await settle()
    assert order == [0, 1]
    assert (at.running, at.waiting) == (2, 3)
    guests[0].leave.set()
    await settle()
    assert order == [0, 1], "the next needs two, and nobody overtakes it"
    guests[1].leave.set()
    await settle()
    assert order == [0, 1, 2]
    guests[2].leave.set()
    await settle()
    assert order == [0, 1, 2, 3, 4]
    for guest in guests:
        guest.leave.set()
    await asyncio.gather(*(guest.task for guest in guests))
    assert (at.running, at.waiting) == (0, 0)


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_whoever_comes_goes_or_gives_up_no_place_is_lost(seed: int, limit: int) -> None:
    async def play() -> None:
        dice, at = random.Random(seed), gate(limit=limit, queue=1000)
        guests: list[Guest] = []
        for _ in range(30):
            match dice.randrange(3):
                case 0:
                    guests.append(Guest(at, dice.randint(1, limit)))
                case 1 if guests:
                    dice.choice(guests).leave.set()
                case 2 if guests:
                    dice.choice(guests).task.cancel()
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            assert 0 <= at.running <= limit
        for guest in guests:
            guest.leave.set()
        await asyncio.gather(*(guest.task for guest in guests), return_exceptions=True)
        assert (at.running, at.waiting) == (0, 0)
        last = Guest(at, limit)
        await settle()
        assert last.inside
        last.leave.set()
        await last.task

    asyncio.run(play())


async def test_whoever_waits_too_long_is_told_when_to_come_back() -> None:
    at = gate(limit=1, queue_timeout_s=0.0)
    first = Guest(at)
    await settle()
    with pytest.raises(HttpError, match="busy") as caught:
        async with at.slots(1):
            pass
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) >= 1
    first.leave.set()
    await first.task


async def test_more_than_there_ever_is() -> None:
    with pytest.raises(HttpError, match="3 answers") as caught:
        async with gate(limit=2).slots(3):
            pass
    assert (caught.value.status, caught.value.param) == (400, "n")


async def test_requests_are_bounded_before_they_are_read() -> None:
    at = gate(limit=1, queue=1)
    with at.entered(), at.entered():
        with pytest.raises(HttpError) as caught, at.entered():
            pass
        assert caught.value.status == 429
    with at.entered():
        pass


async def test_closed_it_lets_those_inside_end_and_nobody_else_in() -> None:
    at = gate(limit=1)
    with at.entered():
        first = Guest(at)
        await settle()
        waiting = Guest(at)
        await settle()
        emptied = asyncio.create_task(at.emptied())
        at.close()
        at.close()
        with pytest.raises(HttpError, match="shutting down") as caught:
            await waiting.task
        assert caught.value.status == 503
        with pytest.raises(HttpError), at.entered():
            pass
        with pytest.raises(HttpError):
            async with at.slots(1):
                pass
        assert first.inside
        first.leave.set()
        await first.task
        assert not emptied.done()
    await emptied


async def test_the_longer_answers_take_the_later_to_come_back() -> None:
    clock = VirtualClock()
    at = Gate(clock, limit=1, queue=0, queue_timeout_s=0.0)

    async def wait_s() -> float:
        async with at.slots(1):
            with pytest.raises(HttpError) as caught:
                async with at.slots(1):
                    pass
        return caught.value.retry_after_s or 0.0

    before_s = await wait_s()
    for _ in range(20):
        async with at.slots(1):
            await clock.advance(60.0)
    assert before_s < 10.0 < 50.0 < await wait_s() <= 120.0
