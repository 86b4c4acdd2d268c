"""The virtual clock: order, exactness, cancellation, deadlock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import MisuseError
from swarm.runtime.clock import SystemClock, VirtualClock


async def test_nothing_moves_until_told() -> None:
    clock = VirtualClock(wall_s=1000.0, monotonic_s=5.0)
    task = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    assert not task.done()
    await clock.advance(0.999)
    assert not task.done()
    await clock.advance(0.001)
    assert task.done()
    assert clock.monotonic_s() == 6.0
    assert clock.wall_s() == pytest.approx(1001.0)


@given(st.lists(st.floats(0.0, 100.0), max_size=20))
def test_sleepers_wake_in_order_each_at_its_own_moment(delays: list[float]) -> None:
    woken: list[tuple[float, float]] = []

    async def main() -> None:
        clock = VirtualClock()

        async def sleeper(delay_s: float) -> None:
            await clock.sleep(delay_s)
            woken.append((delay_s, clock.monotonic_s()))

        tasks = [asyncio.create_task(sleeper(delay_s)) for delay_s in delays]
        await clock.advance(100.0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert [delay_s for delay_s, _ in woken] == sorted(delays)
    assert all(now_s == delay_s for delay_s, now_s in woken)


async def test_what_wakes_may_sleep_again_within_one_advance() -> None:
    clock, ticks = VirtualClock(), []

    async def tick() -> None:
        while True:
            await clock.sleep(1)
            ticks.append(clock.monotonic_s())

    task = asyncio.create_task(tick())
    await clock.advance(3.5)
    task.cancel()
    assert ticks == [1.0, 2.0, 3.0]


async def test_run_jumps_over_idle_time_and_skips_cancelled_sleepers() -> None:
    clock = VirtualClock()

    async def work() -> str:
        never = asyncio.create_task(clock.sleep(1e9))
        await clock.sleep(3600)
        never.cancel()
        await clock.sleep(1800)
        return "done"

    assert await clock.run(work()) == "done"
    assert clock.monotonic_s() == 5400


async def test_run_reports_a_deadlock_and_cancels_the_work() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(MisuseError, match="deadlock"):
        await VirtualClock().run(work())
    assert ended.is_set()


async def test_run_passes_an_exception_on() -> None:
    clock = VirtualClock()

    async def work() -> None:
        await clock.sleep(1)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await clock.run(work())


async def test_the_system_clock_moves_by_itself() -> None:
    clock = SystemClock()
    before_s = clock.monotonic_s()
    await clock.sleep(0.002)
    assert clock.monotonic_s() - before_s >= 0.0019
    assert clock.wall_s() > 1.6e9
