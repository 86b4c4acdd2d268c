"""A sleep that a ring cuts short, and a ring that nobody slept through."""

from __future__ import annotations

import asyncio

from swarm.runtime.bell import Bell
from swarm.runtime.clock import VirtualClock


async def test_a_sleep_lasts_as_long_as_it_should_unless_it_rings() -> None:
    clock = VirtualClock()
    bell = Bell(clock)
    sleeping = asyncio.create_task(bell.sleep(10.0))
    await clock.advance(9.9)
    assert not sleeping.done()
    await clock.advance(0.1)
    assert sleeping.result() is False
    sleeping = asyncio.create_task(bell.sleep(10.0))
    await clock.advance(1.0)
    bell.ring()
    await clock.settle()
    assert sleeping.result() is True


async def test_a_ring_before_the_sleep_counts_once() -> None:
    clock = VirtualClock()
    bell = Bell(clock)
    bell.ring()
    bell.ring()
    assert await bell.sleep(10.0) is True
    sleeping = asyncio.create_task(bell.sleep(10.0))
    await clock.advance(5.0)
    assert not sleeping.done()
    await clock.advance(5.0)
    assert sleeping.result() is False
