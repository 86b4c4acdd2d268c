"""Slow is not dead, and alive is not enough: who is handed over for slowness, and what a step's deadline ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import FakeServer
from harness import SPANS, Node, Swarm
from trouble import NEW_TOKENS, PROMPT, Moment, ask, greedy

from swarm.core.errors import GenerationInterruptedError, PeerLostError
from swarm.core.ids import PeerId
from swarm.engine.speed import SpanSpeed
from swarm.server.config import ServerConfig
from swarm.transport.framing import FrameStream
from swarm.wire.frames import Frame
from swarm.wire.messages import Open, Pace
from swarm.wire.session import Channel

QUICK = SpanSpeed(tau_s=0.01)


def takes(node: Node, seconds: float) -> None:
    """From now on every forward of ``node`` takes so long."""
    engine: Any = node.engine
    engine.takes_s = seconds


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_server_that_becomes_slow_is_handed_over(swarm: Swarm, place: int) -> None:
    """It lives, and its no-ops flow; after three seconds of slow steps another goes on, and it is free again."""
    await swarm.serve(*SPANS * 2, speed=QUICK)
    slow: list[Node] = []
    moment = Moment()

    async def slow_down(chain: list[Node]) -> None:
        slow.append(chain[place])
        takes(chain[place], 1.0)
        began_s = swarm.clock.monotonic_s()
        await moment.healing()
        assert 3.0 < swarm.clock.monotonic_s() - began_s < 7.0
        takes(chain[place], 0.0)

    result = await ask(swarm, swarm.client(), slow_down, moment=moment, max_new_tokens=40)
    assert list(result.token_ids) == greedy(swarm, new_tokens=40)
    [heal] = result.heals
    assert [stage.peer for stage in heal.lost] == [slow[0].peer]
    assert "ms a step" in heal.reason
    await swarm.check_free()


async def test_a_slow_server_that_nobody_can_replace_stays(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, speed=QUICK)

    async def slow_down(chain: list[Node]) -> None:
        takes(chain[1], 1.0)

    result = await ask(swarm, swarm.client(), slow_down)
    assert list(result.token_ids) == greedy(swarm)
    assert result.heals == ()


async def test_where_everybody_is_slow_nobody_is_handed_over(swarm: Swarm) -> None:
    """The alternative would take as long, by its own figures."""
    await swarm.serve(*SPANS * 2, speed=SpanSpeed(tau_s=0.5))

    async def nothing(_: list[Node]) -> None:
        await asyncio.sleep(0.0)

    result = await ask(swarm, swarm.client(), nothing)
    assert list(result.token_ids) == greedy(swarm)
    assert result.heals == ()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_stall_of_a_second_heals_nothing(swarm: Swarm, place: int) -> None:
    await swarm.serve(*SPANS * 2, speed=QUICK)

    async def stall(chain: list[Node]) -> None:
        takes(chain[place], 1.0)
        rows = len(chain[place].rows)
        while len(chain[place].rows) == rows:  # noqa: ASYNC110 - the engine has no bell
            await asyncio.sleep(0.01)
        takes(chain[place], 0.01)

    result = await ask(swarm, swarm.client(), stall, max_new_tokens=120)
    assert list(result.token_ids) == greedy(swarm, new_tokens=120)
    assert result.heals == ()


async def test_a_long_prompt_is_no_slow_step(swarm: Swarm) -> None:
    """Chunks take seconds each; nobody is replaced for that."""
    for node in await swarm.serve(*SPANS * 2, speed=QUICK):
        takes(node, 2.0)
    ids = [5 + index % 200 for index in range(600)]
    result = await swarm.client().generate(input_ids=ids, max_new_tokens=1, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(ids, 1, eos_token_id=None)
    assert result.heals == ()


async def test_at_most_one_handover_a_minute(swarm: Swarm) -> None:
    """Two become slow; the second is bearable for a while."""
    await swarm.serve(*SPANS * 2, speed=QUICK)

    async def slow_down(chain: list[Node]) -> None:
        takes(chain[0], 1.0)
        takes(chain[2], 1.0)

    result = await ask(swarm, swarm.client(), slow_down, max_new_tokens=40)
    assert list(result.token_ids) == greedy(swarm, new_tokens=40)
    assert len(result.heals) == 1


# -- a deadline for the rest ----------------------------------------------------------------------------------


@dataclass
class Holder(FakeServer):
    """Takes steps and says, truly, that it has them; it never answers."""

    async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
        held_s = 0.0
        while len(self.steps) < 2:
            await asyncio.sleep(1.0)
            held_s += 1.0
            await control.send(Pace(None, held_s))


async def test_who_holds_a_step_past_its_deadline_is_replaced(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS, speed=SpanSpeed(tau_s=0.3))
    holder = await Holder(swarm, "3:5", speed=SpanSpeed(tau_s=0.001)).start()
    moment = Moment()
    began_s = swarm.clock.monotonic_s()
    result = await swarm.client(step_timeout_s=20.0).generate(
        PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True, progress=moment
    )
    assert list(result.token_ids) == greedy(swarm)
    assert [stage.peer for stage in result.heals[0].lost] == [holder.peer]
    assert "no answer to a step within 20 s" in result.heals[0].reason
    assert holder.peer[-8:] in result.heals[0].reason
    assert swarm.clock.monotonic_s() - began_s > 20.0
    assert [stage.peer for stage in result.chain] == [node.peer for node in nodes]


class Swallow:
    """The link from one peer to another carries steps no more, and nothing breaks."""

    def __init__(self, swarm: Swarm, source: PeerId, target: PeerId) -> None:
        self._pair = source, target
        self.remove = swarm.network.tap(self)

    def __call__(self, source: PeerId, target: PeerId, protocol: str, data: bytes) -> bytes:
        return b"" if protocol == Channel.LINK.protocol and (source, target) == self._pair else data


async def test_a_step_that_nobody_admits_to_costs_the_whole_chain_once(swarm: Swarm) -> None:
    await swarm.serve(*SPANS * 2)
    before: list[Node] = []

    async def swallow(chain: list[Node]) -> None:
        before.extend(chain)
        Swallow(swarm, chain[0].peer, chain[1].peer)

    result = await ask(swarm, swarm.client(step_timeout_s=10.0), swallow)
    assert list(result.token_ids) == greedy(swarm)
    assert not {stage.peer for stage in result.chain} & {node.peer for node in before}
    [heal] = result.heals
    assert len(heal.lost) == 3


async def test_and_then_it_is_an_error(swarm: Swarm) -> None:
    """Not for ever: what is swallowed in the second chain too ends the answer, with what is valid of it."""
    await swarm.serve(*SPANS * 3)

    async def swallow(_: list[Node]) -> None:
        for first in swarm.nodes[::3]:
            for second in swarm.nodes[1::3]:
                Swallow(swarm, first.peer, second.peer)

    began_s = swarm.clock.monotonic_s()
    with pytest.raises(GenerationInterruptedError, match=r"no answer to a step within 10 s|nobody took over") as caught:
        await ask(swarm, swarm.client(step_timeout_s=10.0), swallow)
    assert isinstance(caught.value.__cause__, PeerLostError)
    assert list(caught.value.token_ids) == greedy(swarm)[: len(caught.value.token_ids)]
    assert swarm.clock.monotonic_s() - began_s < 300.0  # replays are swallowed as well, at 30 s each


# -- leaving --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_draining_server_hands_over_without_a_timeout(swarm: Swarm, place: int) -> None:
    await swarm.serve(*SPANS * 2, config=ServerConfig(drain_timeout_s=0.5))
    leaving: list[asyncio.Task[None]] = []

    async def leave(chain: list[Node]) -> None:
        leaving.append(asyncio.create_task(chain[place].server.leave()))

    began_s = swarm.clock.monotonic_s()
    result = await ask(swarm, swarm.client(), leave, max_new_tokens=60)
    assert list(result.token_ids) == greedy(swarm, new_tokens=60)
    [heal] = result.heals
    assert "draining" in heal.reason
    assert heal.pause_s < 0.5
    assert swarm.clock.monotonic_s() - began_s > 0.5
    await asyncio.gather(*leaving)
