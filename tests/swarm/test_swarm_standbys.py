"""Standbys are chosen ahead, kept current while an answer runs, and their connections are warm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import SPANS, Node, Swarm
from trouble import Moment, ask, chain_of, greedy

from swarm.client.model import AsyncSwarmModel
from swarm.client.recovery.standbys import REFRESH_S, Reserve
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.core.metrics import METRICS_LIFETIME_S
from swarm.engine.speed import SpanSpeed
from swarm.server.config import ServerConfig

SLOW = SpanSpeed(tau_s=0.02)


def reserve_of(model: AsyncSwarmModel) -> Reserve:
    conversation = next(iter(model.sessions))._conversation
    assert conversation is not None
    return conversation.healer._reserve


def standbys(model: AsyncSwarmModel) -> list[set[PeerId]]:
    reserve = reserve_of(model)
    spares = [reserve.at(place) for place in range(len(reserve.chain))]
    return [set() if spare is None else set(spare.peers) for spare in spares]


def beats(model: AsyncSwarmModel) -> set[PeerId]:
    """To whom the client keeps a beat that somebody holds."""
    return {peer for peer, pair in model._opener.ground.pulse._pairs.items() if pair.holds}


class Reads:
    """Counts how often a client reads the directory, which may be made to fail."""

    def __init__(self, model: AsyncSwarmModel) -> None:
        directory: Any = model.parts.directory
        self._read = directory.servers
        self.count = 0
        self.down = False
        directory.servers = self

    async def __call__(self, model_id: Any) -> Any:
        self.count += 1
        if self.down:
            raise NetworkError("the directory does not answer")
        return await self._read(model_id)


async def test_chosen_at_open_from_servers_outside_the_chain(swarm: Swarm) -> None:
    await swarm.serve(*SPANS * 2)
    model = swarm.client()

    async def look(chain: list[Node]) -> None:
        chosen = standbys(model)
        assert [len(peers) for peers in chosen] == [1, 1, 1]
        others = {node.peer for node in swarm.nodes} - {node.peer for node in chain}
        assert set.union(*chosen) == others
        assert beats(model) == {node.peer for node in swarm.nodes}

    result = await ask(swarm, model, look)
    assert list(result.token_ids) == greedy(swarm)
    await asyncio.sleep(0.5)
    assert beats(model) == set(), "an answer that has ended holds nobody"


async def test_a_resting_session_keeps_no_beat_to_its_standbys(swarm: Swarm) -> None:
    await swarm.serve(*SPANS * 2)
    model = swarm.client()
    session = model.session()
    await session.generate("x", max_new_tokens=4, ignore_eos=True)
    await asyncio.sleep(0.5)
    assert beats(model) == {node.peer for node in chain_of(swarm, session)}
    await session.close()


async def test_chosen_anew_when_the_view_changes(swarm: Swarm) -> None:
    """Somebody who could take over appears, and goes again: within a few seconds the session knows."""
    await swarm.serve(*SPANS, speed=SLOW)
    model = swarm.client()

    async def look(_: list[Node]) -> None:
        assert standbys(model) == [set(), set(), set()]
        [newcomer] = await swarm.serve("0:3")
        await asyncio.sleep(REFRESH_S + 2.0)
        assert standbys(model) == [{newcomer.peer}, {newcomer.peer}, set()]
        assert newcomer.peer in beats(model)
        await swarm.crash(newcomer)
        await asyncio.sleep(METRICS_LIFETIME_S + REFRESH_S + 2.0)
        assert standbys(model) == [set(), set(), set()]

    result = await ask(swarm, model, look, max_new_tokens=240)
    assert list(result.token_ids) == greedy(swarm, new_tokens=240)


async def test_a_frozen_standby_is_not_tried(swarm: Swarm) -> None:
    """Its beat stopped before it was needed: another one takes over at once."""
    await swarm.serve(*SPANS * 3, speed=SLOW)
    model = swarm.client()

    async def freeze_and_kill(chain: list[Node]) -> None:
        [frozen] = standbys(model)[1]
        swarm.network.freeze(frozen)
        await asyncio.sleep(4.0)
        assert standbys(model)[1] not in ({frozen}, set())
        await swarm.crash(chain[1])
        await moment.healed()
        swarm.network.thaw(frozen)

    moment = Moment()
    result = await ask(swarm, model, freeze_and_kill, moment=moment, max_new_tokens=80)
    assert list(result.token_ids) == greedy(swarm, new_tokens=80)
    [heal] = result.heals
    assert heal.pause_s < 1.5, "no wait for somebody who does not answer"


async def test_healed_without_a_word_from_the_directory(swarm: Swarm) -> None:
    await swarm.serve(*SPANS * 2)
    model = swarm.client()
    reads = Reads(model)

    async def kill(chain: list[Node]) -> None:
        reads.down = True
        await swarm.crash(chain[1])

    result = await ask(swarm, model, kill)
    assert list(result.token_ids) == greedy(swarm)
    assert result.heals[0].pause_s < 0.2


async def test_a_directory_that_is_away_while_nobody_stands_by(swarm: Swarm) -> None:
    """The client waits for it as it waits for a server."""
    await swarm.serve(*SPANS)
    model = swarm.client()
    reads = Reads(model)

    async def kill(chain: list[Node]) -> None:
        reads.down = True
        await swarm.crash(chain[1])
        await swarm.serve(SPANS[1])
        await asyncio.sleep(25.0)
        reads.down = False

    moment = Moment()
    result = await ask(swarm, model, kill, moment=moment)
    assert list(result.token_ids) == greedy(swarm)
    assert 24.0 < result.heals[0].pause_s < 30.0


@pytest.mark.parametrize("sessions", [1, 6])
async def test_the_directory_is_read_as_often_for_many_as_for_one(swarm: Swarm, sessions: int) -> None:
    # While somebody computes no message travels here, so signing what is left would seem to take long.
    await swarm.serve(*SPANS * 2, speed=SpanSpeed(tau_s=0.2), config=ServerConfig(receipts=False))
    model = swarm.client()
    swarm.delay(0.005)
    reads = Reads(model)
    began_s = swarm.clock.monotonic_s()
    prompts = [f"prompt {number}" for number in range(sessions)]
    await model.generate_many(prompts, max_new_tokens=16, ignore_eos=True)
    took_s = swarm.clock.monotonic_s() - began_s
    assert took_s > 10.0
    assert 2 <= reads.count <= 3 + took_s / REFRESH_S
    await asyncio.sleep(10.0)  # a forward under way keeps its session until it ends, and time leaps with it
