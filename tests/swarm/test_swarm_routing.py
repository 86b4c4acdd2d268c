"""Which chain a session gets, over servers' live metrics and what they say of themselves when it opens."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest
from fakes import FakeServer
from harness import Node, Swarm

from swarm.client.results import GenerationResult, Progress
from swarm.core.errors import NoRouteError, PeerUnreachableError
from swarm.engine.speed import SpanSpeed
from swarm.transport.framing import FrameStream
from swarm.transport.memory import LinkShape
from swarm.wire.frames import Frame
from swarm.wire.messages import Accept, Busy, Failed, LinkLost, Open

OPTIONS = {"max_new_tokens": 3, "ignore_eos": True}
FAST, SLOW = SpanSpeed(tau_s=0.001), SpanSpeed(tau_s=0.1)


def peers(result: GenerationResult) -> list[str]:
    return [stage.peer for stage in result.chain]


@dataclass
class Modest(FakeServer):
    """Says in the directory that it is fast, and at OPEN how long a layer takes in truth."""

    tau_s: float = 10.0

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        await control.send(Accept(1, 0, 4000, tau_s=self.tau_s, fixed_s=0.0))


# -- the fastest --------------------------------------------------------------------------------------------------


async def test_the_faster_chain_is_taken_however_many_servers_it_has(swarm: Swarm) -> None:
    await swarm.serve("0:5", speed=SLOW)
    fast = await swarm.serve("0:2", "2:5", speed=FAST)
    model = swarm.client()
    swarm.delay(0.02)
    await swarm.answers()
    await asyncio.sleep(20.0)  # until the servers have measured each other
    assert peers(await model.generate("x", **OPTIONS)) == [node.peer for node in fast]


async def test_the_nearer_of_two_is_taken(swarm: Swarm) -> None:
    far, near = await swarm.serve("0:5", "0:5")
    model = swarm.client()
    swarm.delay(0.001)
    swarm.network.shape(model.parts.transport.peer_id, far.peer, LinkShape(delay_s=0.2))
    for _ in range(4):
        assert peers(await model.generate("x", **OPTIONS)) == [near.peer]


# -- many sessions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart_s", [0.0, 0.5])
async def test_one_clients_sessions_split_between_equals(swarm: Swarm, apart_s: float) -> None:
    """At once, when no server has answered yet, and one after the other, while earlier ones are still open."""
    await swarm.serve("0:5", "0:5", speed=FAST)
    model = swarm.client()
    sessions = [model.session(max_tokens=40) for _ in range(20)]

    async def ask(number: int) -> str:
        await asyncio.sleep(apart_s * number)
        return peers(await sessions[number].generate("x", **OPTIONS))[0]

    counts = Counter(await asyncio.gather(*map(ask, range(20))))
    assert len(counts) == 2
    assert max(counts.values()) <= 12, counts
    for session in sessions:
        await session.close()


async def test_many_clients_sessions_split_between_equals(swarm: Swarm) -> None:
    await swarm.serve("0:5", "0:5", speed=FAST)
    counts: Counter[str] = Counter()
    sessions = []
    for _ in range(20):
        sessions.append(swarm.client().session(max_tokens=40))
        counts.update(peers(await sessions[-1].generate("x", **OPTIONS)))
        await asyncio.sleep(0.5)
    assert max(counts.values()) <= 12, counts
    for session in sessions:
        await session.close()


async def test_a_full_server_is_passed_by(swarm: Swarm) -> None:
    """Its metrics say that it has no room: nobody asks it in vain."""
    [small] = await swarm.serve("0:5", kv_tokens=50, speed=FAST)
    [large] = await swarm.serve("0:5", speed=SLOW)
    model = swarm.client()
    holding = model.session(max_tokens=40)
    assert peers(await holding.generate("x", **OPTIONS)) == [small.peer]
    await asyncio.sleep(5.0)
    seen: list[Progress] = []
    result = await model.session(max_tokens=40).generate("x", progress=seen.append, **OPTIONS)
    assert peers(result) == [large.peer]
    assert [item.phase for item in seen].count("opening") == 1
    await holding.close()


# -- the truth at OPEN --------------------------------------------------------------------------------------------


async def test_a_client_whose_view_was_wrong_moves_before_the_first_token(swarm: Swarm) -> None:
    [honest] = await swarm.serve("0:5", speed=SLOW)
    modest = await Modest(swarm, "0:5", speed=FAST).start()
    model = swarm.client()
    assert peers(await model.generate("x", **OPTIONS)) == [honest.peer]
    assert len(modest.opens) == 1
    assert not modest.steps
    assert peers(await model.generate("x", **OPTIONS)) == [honest.peer]
    assert len(modest.opens) == 1, "what it told is remembered"
    await swarm.check_free()


async def test_it_moves_twice_at_most(swarm: Swarm) -> None:
    await swarm.serve("0:5", speed=SpanSpeed(tau_s=0.4))
    crowd = [await Modest(swarm, "0:5", speed=SpanSpeed(tau_s=tau_s)).start() for tau_s in (0.1, 0.2, 0.3)]
    task = asyncio.create_task(swarm.client().generate("x", **OPTIONS))
    await asyncio.sleep(5.0)
    assert [len(modest.opens) for modest in crowd] == [1, 1, 1]
    assert [bool(modest.steps) for modest in crowd] == [False, False, True], "the third is used as it is"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await swarm.check_free()


async def test_a_small_gain_is_not_worth_it(swarm: Swarm) -> None:
    await swarm.serve("0:5", speed=SLOW)
    modest = await Modest(swarm, "0:5", speed=FAST, tau_s=0.11).start()
    task = asyncio.create_task(swarm.client().generate("x", **OPTIONS))
    await asyncio.sleep(5.0)
    assert modest.steps
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_better_chain_that_does_not_open_costs_nothing(swarm: Swarm) -> None:
    """The first one is still there."""

    @dataclass
    class Full(FakeServer):
        async def on_open(self, control: FrameStream, opened: Open) -> None:
            await control.send(Busy(1.0, "full"))

    await swarm.serve("0:1", speed=SpanSpeed(tau_s=100.0))
    modest = await Modest(swarm, "0:5", speed=FAST).start()
    full = await Full(swarm, "0:5", speed=SLOW).start()
    task = asyncio.create_task(swarm.client().generate("x", **OPTIONS))
    await asyncio.sleep(5.0)
    assert len(full.opens) == len(modest.opens) == 1
    assert modest.steps
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- those that fail ----------------------------------------------------------------------------------------------


async def test_servers_that_never_answer_open_are_tried_ever_more_rarely(swarm: Swarm) -> None:
    """Each costs a try of 15 s; a few of them would cost every session a minute for ever."""

    @dataclass
    class Mute(FakeServer):
        async def on_open(self, control: FrameStream, opened: Open) -> None:
            pass

    [honest] = await swarm.serve("0:5", speed=SLOW)
    mutes = [await Mute(swarm, "0:5", speed=FAST).start() for _ in range(4)]
    model, began_s = swarm.client(), swarm.clock.monotonic_s()
    while swarm.clock.monotonic_s() < began_s + 430.0:
        assert peers(await model.generate("x", **OPTIONS)) == [honest.peer]
        await asyncio.sleep(10.0)
    assert {len(mute.opens) for mute in mutes} <= {2, 3}, "after about 0, 1.5 and 4 minutes"


@pytest.mark.parametrize("silent", [True, False])
async def test_a_server_that_fails_its_session_does_not_get_the_next_one(swarm: Swarm, silent: bool) -> None:
    """One that takes steps and never answers, and one that ends every session."""

    @dataclass
    class Breaker(FakeServer):
        async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
            if not silent:
                await control.send(Failed("internal", "no reason"))

    [honest] = await swarm.serve("0:5", speed=SLOW)
    breaker = await Breaker(swarm, "0:5", speed=FAST).start()
    model = swarm.client()
    first = await model.generate("x", **OPTIONS)
    assert [stage.peer for heal in first.heals for stage in heal.lost] == [breaker.peer]
    for _ in range(3):
        assert peers(await model.generate("x", **OPTIONS)) == [honest.peer]
    assert len(breaker.opens) == 1


async def test_a_server_that_slanders_the_next_one_is_found_out(swarm: Swarm) -> None:
    """It says of honest ones that it lost them, and reaches nobody in their place either: it goes, they stay."""

    @dataclass
    class Slanderer(FakeServer):
        async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
            await control.send(LinkLost(honest[1].peer, "it is not there"))

    honest = await swarm.serve("0:2", "2:5", speed=FAST)
    await swarm.serve("0:5", speed=SLOW)
    slanderer = await Slanderer(swarm, "0:2", speed=SpanSpeed(tau_s=0.0001)).start()
    model = swarm.client()
    await asyncio.sleep(20.0)
    first = await model.generate("x", **OPTIONS)
    assert list(first.token_ids) == swarm.reference.greedy("x", 3, eos_token_id=None)
    assert slanderer.steps
    for result in (first, await model.generate("x", **OPTIONS)):
        assert peers(result) == [node.peer for node in honest]


# -- going away ---------------------------------------------------------------------------------------------------


async def crashed(swarm: Swarm, *, busy: bool) -> tuple[Node, Node]:
    """A fast server that has just died and a slow one that lives."""
    [fast] = await swarm.serve("0:5", speed=FAST)
    [slow] = await swarm.serve("0:5", speed=SLOW)
    await swarm.answers()
    if busy:
        session = swarm.client().session()
        assert peers(await session.generate("x", **OPTIONS)) == [fast.peer]
    await swarm.crash(fast)
    return fast, slow


@pytest.mark.parametrize("busy", [False, True])
async def test_a_killed_server_is_out_of_routing_in_ten_seconds(swarm: Swarm, busy: bool) -> None:
    fast, slow = await crashed(swarm, busy=busy)
    await asyncio.sleep(10.0)
    seen: list[Progress] = []
    result = await swarm.client().generate("x", progress=seen.append, **OPTIONS)
    assert peers(result) == [slow.peer]
    assert not any(fast.short in item.detail for item in seen), "nobody even tries"


async def test_before_that_it_costs_a_try(swarm: Swarm) -> None:
    _, slow = await crashed(swarm, busy=False)
    seen: list[Progress] = []
    result = await swarm.client().generate("x", progress=seen.append, **OPTIONS)
    assert peers(result) == [slow.peer]


async def test_the_only_one_killed_is_said_to_be_silent(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    model = swarm.client()
    await model.generate("x", **OPTIONS)
    await swarm.crash(node)
    with pytest.raises(PeerUnreachableError, match=node.short):
        await model.generate("x", **OPTIONS)
    await asyncio.sleep(11.0)
    with pytest.raises(NoRouteError, match="not been heard of lately"):
        await model.generate("x", **OPTIONS)


async def test_a_server_that_left_in_good_order_is_out_at_once(swarm: Swarm) -> None:
    [fast] = await swarm.serve("0:5", speed=FAST)
    [slow] = await swarm.serve("0:5", speed=SLOW)
    await fast.server.leave()
    seen: list[Progress] = []
    result = await swarm.client().generate("x", progress=seen.append, **OPTIONS)
    assert peers(result) == [slow.peer]
    assert not any(fast.short in item.detail for item in seen)
