"""Steps on their way: their results, and what becomes of them when the chain breaks."""

from __future__ import annotations

import asyncio

import pytest

from swarm.client.chains.pending import PendingSteps
from swarm.core.errors import PeerLostError, ProtocolViolation
from swarm.wire.frames import Frame
from swarm.wire.messages import Result, Step


def step(seq: int, generation: int = 0) -> Step:
    return Step(generation, 0, seq, keep=seq, rows=1, want=1)


def result(seq: int, generation: int = 0, kv_length: int | None = None) -> Result:
    return Result(generation, 0, seq, seq + 1 if kv_length is None else kv_length, (7,))


async def test_each_result_goes_to_its_step_once() -> None:
    pending = PendingSteps()
    first, second = pending.expect(step(0)), pending.expect(step(1))
    frames = [Frame(result(0)), Frame(result(1))]
    pending.resolve(result(1), frames[1])
    pending.resolve(result(1), frames[0])
    pending.resolve(result(1, generation=1), frames[0])
    pending.resolve(result(5, kv_length=99), frames[0])
    assert not first.done()
    assert second.result() is frames[1]


async def test_a_result_that_counts_other_rows_is_a_lie() -> None:
    pending = PendingSteps()
    future = pending.expect(step(3))
    with pytest.raises(ProtocolViolation):
        pending.resolve(result(3, kv_length=3), Frame(result(3)))
    assert not future.done()


async def test_what_is_forgotten_is_awaited_by_nobody() -> None:
    pending = PendingSteps()
    future = pending.expect(step(0))
    pending.forget()
    pending.resolve(result(0, kv_length=9), Frame(result(0)))
    assert future.cancelled()


async def test_a_failure_reaches_whoever_waits_and_whoever_sends() -> None:
    pending = PendingSteps()
    given_up, waiting = pending.expect(step(0)), pending.expect(step(1))
    given_up.cancel()
    stuck = asyncio.Event()

    async def send() -> None:
        await stuck.wait()

    sending = asyncio.create_task(pending.send(send()))
    await asyncio.sleep(0)
    pending.fail(PeerLostError("it broke"))
    await sending
    with pytest.raises(PeerLostError, match="it broke"):
        await waiting
    pending.fail(PeerLostError("again"))
    await pending.send(asyncio.sleep(0))
