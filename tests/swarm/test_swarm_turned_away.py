"""What a client does when servers say no, or nothing: it asks others, does not insist, and does not wait for long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from fakes import FakeServer
from harness import Swarm

from swarm.client.finding.hedge import HEDGE_S, MAX_TRIES, first_open
from swarm.core.errors import BusyError, ConfigError
from swarm.engine.speed import SpanSpeed
from swarm.transport.framing import FrameStream
from swarm.wire.messages import Busy, Open, Refused

OPTIONS: Any = {"max_new_tokens": 2, "ignore_eos": True}
FAST, SLOW = SpanSpeed(tau_s=0.001), SpanSpeed(tau_s=0.01)


@dataclass
class Mute(FakeServer):
    """Never answers OPEN."""

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        pass


@dataclass
class Full(FakeServer):
    """Answers BUSY, every time with that wait."""

    wait_s: float = 10.0
    asked_s: list[float] = field(default_factory=list)

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        self.asked_s.append(self.swarm.clock.monotonic_s())
        await control.send(Busy(self.wait_s, "full"))


@dataclass
class Strict(FakeServer):
    """Refuses everything."""

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        await control.send(Refused("not you"))


# -- servers that say no ------------------------------------------------------------------------------------------


async def test_a_busy_server_is_not_asked_by_the_next_session_either(swarm: Swarm) -> None:
    [free] = await swarm.serve("0:5", speed=SLOW)
    full = await Full(swarm, "0:5", speed=FAST).start()
    model = swarm.client()
    for _ in range(4):
        result = await model.generate("x", **OPTIONS)
        assert [stage.peer for stage in result.chain] == [free.peer]
    assert len(full.asked_s) == 1
    await asyncio.sleep(15.5)
    await model.generate("x", **OPTIONS)
    assert len(full.asked_s) == 2, "its time has come"


async def test_where_nobody_else_is_left_its_time_is_waited_for(swarm: Swarm) -> None:
    """Also by a session that never heard of it itself; and not all come back at one moment."""
    await swarm.serve("0:3")
    full = await Full(swarm, "3:5").start()
    model = swarm.client(busy_timeout_s=40.0)
    for _ in range(5):
        tasks = [asyncio.create_task(model.generate("x", **OPTIONS)) for _ in range(3)]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    first = len(full.asked_s)
    assert first <= 3, "those that set out before the first answer came"
    with pytest.raises(BusyError, match="stayed busy for 40 s"):
        await model.generate("x", **OPTIONS)
    asked_s = full.asked_s[first - 1 :]
    gaps_s = [b - a for a, b in pairwise(asked_s)]
    assert gaps_s
    assert all(0.5 * full.wait_s <= gap_s <= 1.5 * full.wait_s + 1.0 for gap_s in gaps_s)


async def test_what_would_come_too_late_is_not_waited_for(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    await Full(swarm, "3:5", wait_s=300.0).start()
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(BusyError, match="stayed busy") as caught:
        await swarm.client(busy_timeout_s=60.0).generate("x", **OPTIONS)
    assert caught.value.retry_after_s >= 100.0
    assert swarm.clock.monotonic_s() - began_s < 5.0


async def test_a_server_that_refuses_is_left_alone_for_a_while(swarm: Swarm) -> None:
    await swarm.serve("0:5", speed=SLOW)
    strict = await Strict(swarm, "0:5", speed=FAST).start()
    model = swarm.client()
    for _ in range(4):
        await model.generate("x", **OPTIONS)
    assert len(strict.opens) == 1


# -- servers that say nothing -------------------------------------------------------------------------------------


async def test_mute_servers_do_not_cost_their_timeouts_one_after_the_other(swarm: Swarm) -> None:
    """Four of them, each the best choice left: 8 s each would be 32 s, two seconds each are 8 s."""
    [honest] = await swarm.serve("0:5", speed=SLOW)
    mutes = [await Mute(swarm, "0:5", speed=FAST).start() for _ in range(4)]
    model, began_s = swarm.client(), swarm.clock.monotonic_s()
    result = await model.generate("x", **OPTIONS)
    assert [stage.peer for stage in result.chain] == [honest.peer]
    assert swarm.clock.monotonic_s() - began_s <= 4 * HEDGE_S + 1.0
    began_s = swarm.clock.monotonic_s()
    await model.generate("x", **OPTIONS)
    assert swarm.clock.monotonic_s() - began_s < 1.0, "they are avoided now"
    assert {len(mute.opens) for mute in mutes} == {1}


async def test_the_servers_of_the_chain_that_lost_are_free_again(swarm: Swarm) -> None:
    """The honest one of that chain had accepted."""
    first, second = await swarm.serve("0:3", "3:5")
    mute = await Mute(swarm, "3:5", speed=FAST).start()
    result = await swarm.client().generate("x", **OPTIONS)
    assert [stage.peer for stage in result.chain] == [first.peer, second.peer]
    assert len(mute.opens) == 1
    await asyncio.sleep(3.0)
    await swarm.check_free()


async def test_who_gives_up_meanwhile_leaves_nothing_behind(swarm: Swarm) -> None:
    first, _ = await swarm.serve("0:3", "0:3")
    for _ in range(3):
        await Mute(swarm, "3:5").start()
    task = asyncio.create_task(swarm.client().generate("x", **OPTIONS))
    await asyncio.sleep(2.5 * HEDGE_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(3.0)
    await swarm.check_free()
    assert first.idle


# -- how urgent it is ---------------------------------------------------------------------------------------------


async def test_priority_is_told_to_every_server(swarm: Swarm) -> None:
    nodes = await swarm.serve("0:3", "3:5")
    model = swarm.client()

    def told() -> set[str]:
        return {session.opened.priority for node in nodes for session in node.server.table.sessions}

    async def during(**options: Any) -> set[str]:
        stream = await model.stream("x", max_new_tokens=40, ignore_eos=True, **options)
        await stream.next_piece()
        seen = told()
        await stream.aclose()
        await swarm.quiet()
        return seen

    assert await during() == {"interactive"}
    assert await during(priority="batch") == {"batch"}
    session = model.session(priority="batch")
    await session.generate("x", **OPTIONS)
    assert told() == {"batch"}
    await session.close()
    with pytest.raises(ConfigError, match="priority is 'urgent'"):
        await model.generate("x", priority="urgent", **OPTIONS)
    with pytest.raises(ConfigError, match="choose interactive or batch"):
        model.session(priority="urgent")  # type: ignore[arg-type]


# -- tries beside each other --------------------------------------------------------------------------------------


class Thing:
    """What a try opens, after a time; or the error it ends with."""

    def __init__(self, takes_s: float, error: Exception | None = None) -> None:
        self.takes_s = takes_s
        self.error = error
        self.begun_s = -1.0
        self.closed = self.cancelled = False

    async def open(self) -> Thing:
        self.begun_s = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return self

    async def close(self) -> None:
        self.closed = True


async def hedged(*things: Thing) -> Thing:
    """The one that won, once the others have ended."""
    rest = iter(things[1:])
    losers: set[asyncio.Task[None]] = set()

    def another() -> Coroutine[Any, Any, Thing] | None:
        return next((thing.open() for thing in rest), None)

    try:
        return await first_open(things[0].open(), another, lambda: None, losers)
    finally:
        await asyncio.gather(*losers)
        assert not losers


async def test_one_that_answers_in_time_stays_alone() -> None:
    quick, other = Thing(0.9 * HEDGE_S), Thing(0.0)
    assert await hedged(quick, other) is quick
    assert other.begun_s < 0


async def test_the_first_to_open_wins_and_the_others_end() -> None:
    slow, quick = Thing(100.0), Thing(1.0)
    assert await hedged(slow, quick) is quick
    assert quick.begun_s == HEDGE_S
    assert slow.cancelled


async def test_a_late_one_may_still_win() -> None:
    late, slow = Thing(HEDGE_S + 1.0), Thing(100.0)
    assert await hedged(late, slow) is late
    assert slow.cancelled


async def test_one_that_opens_at_the_same_moment_is_closed() -> None:
    things = Thing(HEDGE_S + 1.0), Thing(1.0)
    winner = await hedged(*things)
    [loser] = [thing for thing in things if thing is not winner]
    assert loser.closed
    assert not winner.closed


async def test_an_error_counts_only_when_nobody_is_left() -> None:
    failing, slow = Thing(HEDGE_S + 1.0, ValueError("the first")), Thing(50.0)
    assert await hedged(failing, slow) is slow
    with pytest.raises(ValueError, match="the last"):
        await hedged(Thing(HEDGE_S + 1.0, ValueError("the first")), Thing(5.0, ValueError("the last")))


async def test_tries_are_few_at_once() -> None:
    things = [Thing(100.0) for _ in range(MAX_TRIES + 3)]
    assert await hedged(*things) is things[0]
    assert sum(thing.begun_s >= 0 for thing in things) == MAX_TRIES


async def test_who_gives_up_ends_all_tries() -> None:
    things = Thing(100.0), Thing(100.0)
    task = asyncio.create_task(hedged(*things))
    await asyncio.sleep(2.5 * HEDGE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(thing.cancelled for thing in things)
