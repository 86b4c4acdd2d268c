"""Servers that freeze, die or are cut off: the client names the right one and keeps what is valid."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from fakes import FakeServer, blamed, rows_of
from harness import Swarm, turns

from swarm.core.errors import (
    GenerationInterruptedError,
    NoRouteError,
    PeerUnreachableError,
    SwarmError,
)
from swarm.core.numerics import Numerics
from swarm.transport.framing import FrameStream
from swarm.wire.frames import Frame
from swarm.wire.messages import (
    Open,
    Step,
)

OPTIONS = {"max_new_tokens": 8, "ignore_eos": True}


async def test_accepted_then_frozen(swarm: Swarm) -> None:
    """A server whose machine stops dead: no stream ends, the pulse tells."""
    first, _ = await swarm.serve("0:3", "3:5")
    model = swarm.client(heal_timeout_s=0.0)
    stream = await model.stream("x", max_new_tokens=300, ignore_eos=True)
    await stream.next_piece()
    swarm.network.freeze(first.peer)
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(GenerationInterruptedError) as caught:
        async for _ in stream:
            pass
    assert blamed(caught.value, first.peer)
    assert swarm.clock.monotonic_s() - began_s < 4.0
    wanted = swarm.reference.greedy("x", len(caught.value.token_ids), eos_token_id=None)
    assert list(caught.value.token_ids) == wanted
    swarm.network.thaw(first.peer)
    await asyncio.sleep(5.0)
    await swarm.check_free()
    await swarm.answers()


async def test_a_frozen_server_that_wakes_is_asked_again_by_a_session_that_opens(swarm: Swarm) -> None:
    """Nobody else holds its layers, and its announcement lives on: a moment later it may be back."""
    first, _ = await swarm.serve("0:3", "3:5")
    model = swarm.client()
    await model.generate("x", **OPTIONS)
    swarm.network.freeze(first.peer)
    asked = asyncio.create_task(model.generate("x", **OPTIONS))
    await asyncio.sleep(1.9)  # the client has just heard that it is silent
    swarm.network.thaw(first.peer)
    result = await asked
    assert list(result.token_ids) == swarm.reference.greedy("x", len(result.token_ids), eos_token_id=None)


# -- going away -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["local", "remote"])
@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_server_that_dies_mid_answer_is_named(swarm: Swarm, victim: int, head: str) -> None:
    """Its neighbours report a lost link at the same moment; the client must not believe that they are the lost ones."""
    nodes = await swarm.serve(name="a volunteer")
    stream = await swarm.client(head, heal_timeout_s=0.0).stream(
        "The swarm answers", max_new_tokens=300, ignore_eos=True
    )
    for _ in range(4):
        await stream.next_piece()
    await swarm.crash(nodes[victim])
    with pytest.raises(GenerationInterruptedError) as caught:
        async for _ in stream:
            pass
    error = caught.value
    assert blamed(error, nodes[victim].peer), error
    span = nodes[victim].engine.info.span
    assert f"layers {span}" in str(error)
    assert len(error.token_ids) >= 4
    wanted = swarm.reference.greedy("The swarm answers", len(error.token_ids), eos_token_id=None)
    assert list(error.token_ids) == wanted
    assert error.text == swarm.reference.tokenizer.decode(wanted)
    await swarm.check_free(besides=[nodes[victim]])


async def test_a_cut_between_two_servers_is_told(swarm: Swarm) -> None:
    """Both are alive and say so; the link between them is what broke."""
    first, second, _ = await swarm.serve()
    stream = await swarm.client(heal_timeout_s=0.0).stream("x", max_new_tokens=300, ignore_eos=True)
    await stream.next_piece()
    swarm.network.cut(first.peer, second.peer)
    with pytest.raises(GenerationInterruptedError) as caught:
        async for _ in stream:
            pass
    assert first.short in str(caught.value) or second.short in str(caught.value)
    swarm.network.mend(first.peer, second.peer)
    await swarm.check_free()
    await swarm.answers()


async def test_a_server_that_dies_while_the_chain_opens(swarm: Swarm) -> None:
    """At any moment of the opening: another chain is found, or the error names layers or peer; never a hang."""
    for count in range(0, 24, 3):
        nodes = await swarm.serve("0:5")
        task = asyncio.create_task(swarm.client(heal_timeout_s=0.0).generate("x", max_new_tokens=2, ignore_eos=True))
        await turns(count)
        await swarm.crash(nodes[0])
        [outcome] = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, SwarmError)
            assert "layers" in str(outcome) or nodes[0].short in str(outcome)
        await asyncio.sleep(70.0)


async def test_every_server_of_some_layers_is_gone(swarm: Swarm) -> None:
    _, middle, _ = await swarm.serve()
    await swarm.crash(middle)
    with pytest.raises(PeerUnreachableError, match=middle.short):
        await swarm.client(heal_timeout_s=0.0).generate("x", **OPTIONS)
    await asyncio.sleep(70.0)
    with pytest.raises(NoRouteError, match="layers 1 to 2"):
        await swarm.client(heal_timeout_s=0.0).generate("x", **OPTIONS)
    await swarm.serve("1:3")
    await swarm.answers()


async def test_a_server_of_another_dtype_in_its_record_than_in_truth(swarm: Swarm) -> None:
    """Its announcement says bfloat16, its rows are float32: sizes differ, the one who receives them says so."""
    await swarm.serve("3:5", dtype="bfloat16")

    @dataclass
    class Liar(FakeServer):
        async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
            message = frame.message
            assert isinstance(message, Step)
            ids = bytes(frame.payload)[: 4 * message.rows]
            await self.push(opened, message, ids, rows_of(1.0, message.rows))

    liar = await Liar(swarm, "0:3", numerics=Numerics("bfloat16")).start()
    with pytest.raises(SwarmError, match=liar.peer[-8:]):
        await swarm.client(heal_timeout_s=0.0).generate("x", **OPTIONS)
    await swarm.check_free()
