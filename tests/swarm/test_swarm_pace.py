"""A server tells its sessions' clients every second how long their steps take, also while one is stuck."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from by_hand import HandChain
from fakes import IDS, FakeClient, step
from harness import Node, Swarm, until

from swarm.engine.speed import SpanSpeed
from swarm.server.sessions.pacing import PACE_EVERY_S
from swarm.transport.framing import FrameStream
from swarm.wire.messages import Pace, Result
from swarm.wire.payload import pack_ids


async def paces(control: FrameStream, within_s: float) -> list[Pace]:
    """What is told in so much time, results left out."""
    told: list[Pace] = []

    async def listen() -> None:
        while True:
            message = (await control.receive()).message
            assert isinstance(message, Pace | Result)
            if isinstance(message, Pace):
                told.append(message)

    listening = asyncio.create_task(listen())
    await asyncio.sleep(within_s)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return told


async def test_the_pace_is_a_steps_time_here(swarm: Swarm, client: FakeClient) -> None:
    """From its coming to its leaving, whatever the others of the chain take; a prefill does not count."""
    speeds = (SpanSpeed(tau_s=0.01, fixed_s=0.04), SpanSpeed(tau_s=0.03, fixed_s=0.0))
    nodes = [(await swarm.serve(span, speed=speed))[0] for span, speed in zip(("0:1", "1:5"), speeds, strict=True)]
    mended = await HandChain(client, nodes).open()
    result = await mended.prompt(list(range(40, 60)))
    for place in mended.places:
        assert place.control is not None
        told = await paces(place.control, 1.5 * PACE_EVERY_S)
        assert all(pace.step_s is None for pace in told[-1:])
    await mended.go_on(result, 3)
    for place, step_s in zip(mended.places, (0.05, 0.12), strict=True):
        assert place.control is not None
        [told_last] = [pace for pace in await paces(place.control, 1.5 * PACE_EVERY_S) if pace.step_s is not None]
        assert told_last.step_s == pytest.approx(step_s, rel=0.02)
        assert told_last.held_s == 0.0


async def test_a_step_that_is_stuck_in_the_engine_is_told_of(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """The event loop is free, so the silence of the engine is not the server's: that is what its no-ops say too."""
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await paces(control, PACE_EVERY_S)
    entered, released = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert released.wait(30.0)

    engine: Any = node.engine
    engine.before = hold
    await link.send(step(1, 3), pack_ids([7]))
    await until(entered.is_set)
    loop: Any = asyncio.get_running_loop()
    held: list[float] = []
    for _ in range(3):
        loop.now_s += PACE_EVERY_S  # the thread stands still, so virtual time does
        message = (await control.receive()).message
        assert isinstance(message, Pace)
        held.append(message.held_s)
    assert held == pytest.approx([PACE_EVERY_S, 2 * PACE_EVERY_S, 3 * PACE_EVERY_S], abs=PACE_EVERY_S)
    assert held[0] < held[1] < held[2]
    engine.before = None
    released.set()
    [pace] = [pace for pace in await paces(control, 1.5 * PACE_EVERY_S) if pace.step_s is not None]
    assert pace.step_s == pytest.approx(3 * PACE_EVERY_S, abs=PACE_EVERY_S)


async def test_an_idle_session_is_told_nothing(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    assert await paces(control, 5.0) == []
    await client.ask(control, link, IDS)
    assert len(await paces(control, 10.0)) == 1
