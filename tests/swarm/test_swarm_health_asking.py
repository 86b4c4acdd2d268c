"""Asking servers how they are, in virtual time: how often, how many, and what a lost line means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from virtual_time import LoopClock

from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.health.watching import asking
from swarm.health.watching.asking import (
    AGAIN_S,
    BACKOFF_S,
    DIAL_S,
    DIALS_AT_ONCE,
    GIVE_WAY_S,
    IDLE_S,
    JITTER,
    LOADED_S,
    MAX_ASKED,
    Asker,
    Target,
)
from swarm.transport.framing import FrameStream
from swarm.transport.memory import LinkShape, MemoryNetwork, MemoryTransport
from swarm.transport.protocol import Stream
from swarm.wire.session import Channel, Role
from swarm.wire.status import BUCKETS_S, Histogram, StatusReport, Totals

EMPTY = Histogram(counts=(0,) * (len(BUCKETS_S) + 1), sum_s=0.0)
REPORT = StatusReport(
    uptime_s=1.0,
    busy_share=0.0,
    totals=Totals(),
    forward_s=EMPTY,
    step_s=EMPTY,
    decode_rows=0,
    prefill_rows=0,
    answers=0,
)
ASKS_PER_S = 20.0
IDLE, LOADED = Target((), 1, False), Target((), 1, True)


class Scene:
    """An asker, and servers that note when they were asked."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.rings = 0
        self.asker = Asker(self.network.transport(Identity(bytes(32))), self.clock, self._ring, Random(1))
        self.asked: dict[PeerId, list[float]] = {}
        self.dialled: list[float] = []
        self._made = 0

    def _ring(self) -> None:
        self.rings += 1

    async def server(self) -> MemoryTransport:
        self._made += 1
        transport = self.network.transport(Identity(self._made.to_bytes(32, "big")))
        await self.open_door(transport)
        return transport

    async def open_door(self, transport: MemoryTransport) -> None:
        times = self.asked.setdefault(transport.peer_id, [])

        async def serve(stream: Stream) -> None:
            self.dialled.append(self.clock.monotonic_s())
            frames = FrameStream(stream, Channel.STATUS, Role.LISTENER)
            while True:
                await frames.receive()
                times.append(self.clock.monotonic_s())
                await frames.send(REPORT)

        await transport.listen(Channel.STATUS.protocol, serve)

    async def servers(self, count: int) -> list[PeerId]:
        return [(await self.server()).peer_id for _ in range(count)]


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.asker.close()
    await made.network.close()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not made.network._streams


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


async def test_those_with_sessions_are_asked_more_often_over_one_line_each(scene: Scene) -> None:
    busy, idle = await scene.servers(2)
    scene.asker.follow({busy: LOADED, idle: IDLE})
    await asyncio.sleep(60.0)
    for peer, every_s in ((busy, LOADED_S), (idle, IDLE_S)):
        assert all(every_s * (1 - JITTER) <= gap <= every_s * (1 + JITTER) + 0.01 for gap in gaps(scene.asked[peer]))
        assert scene.asker.heard()[peer].report == REPORT
    assert len(scene.dialled) == 2
    assert scene.rings == 2


async def test_one_that_gets_sessions_is_asked_at_once(scene: Scene) -> None:
    [peer] = await scene.servers(1)
    scene.asker.follow({peer: IDLE})
    await asyncio.sleep(1.0)
    before = len(scene.asked[peer])
    scene.asker.follow({peer: LOADED})
    await asyncio.sleep(0.01)
    assert len(scene.asked[peer]) == before + 1


async def test_a_crowd_with_sessions_shares_the_budget(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ASKS_PER_S", ASKS_PER_S)
    peers = await scene.servers(60)
    scene.network._shape = LinkShape(delay_s=0.05)
    scene.asker.follow(dict.fromkeys(peers, LOADED))
    await asyncio.sleep(20.0)
    assert all(one.reached for one in scene.asker.heard().values())
    began_s = scene.clock.monotonic_s()
    await asyncio.sleep(20.0)
    asked = sum(time > began_s for times in scene.asked.values() for time in times)
    assert 0.7 * ASKS_PER_S <= asked / 20.0 <= 1.2 * ASKS_PER_S
    assert all(any(time > began_s for time in times) for times in scene.asked.values()), "each has its turn"


async def test_no_more_lines_than_there_is_room_for_and_they_stay(scene: Scene) -> None:
    peers = await scene.servers(5)
    crowd = {PeerId(f"absent{number}"): IDLE for number in range(MAX_ASKED)}
    scene.asker.follow(dict.fromkeys(peers, IDLE))
    await asyncio.sleep(1.0)
    scene.asker.follow(crowd | dict.fromkeys(peers, IDLE))
    assert len(scene.asker.heard()) == MAX_ASKED
    assert set(peers) <= set(scene.asker.heard())
    scene.asker.follow({})
    await asyncio.sleep(0.1)
    assert scene.asker.heard() == {}
    assert not scene.network._streams


async def test_a_line_that_breaks_is_opened_again_and_only_a_second_failure_counts(scene: Scene) -> None:
    server = await scene.server()
    scene.asker.follow({server.peer_id: IDLE})
    await asyncio.sleep(35.0)
    await scene.network.kill(server.peer_id)
    broke_s = scene.clock.monotonic_s()
    await asyncio.sleep(0.5)
    assert scene.asker.heard()[server.peer_id].reached
    await asyncio.sleep(1.0)
    heard = scene.asker.heard()[server.peer_id]
    assert (heard.reached, heard.report, heard.note, heard.rtt_s) == (False, None, "unreachable", None)
    assert AGAIN_S * (1 - JITTER) <= heard.since_at - scene.clock.wall_s() + scene.clock.monotonic_s() - broke_s <= 1.2
    await asyncio.sleep(300.0)
    again = scene.network.transport(server.peer_id)
    await scene.open_door(again)
    await asyncio.sleep(1.2 * BACKOFF_S[-1])
    assert scene.asker.heard()[server.peer_id].reached
    assert scene.asker.heard()[server.peer_id].since_at > heard.since_at


async def test_a_new_process_of_one_out_of_reach_is_tried_at_once(scene: Scene) -> None:
    server = await scene.server()
    peer = server.peer_id
    await scene.network.kill(peer)
    scene.asker.follow({peer: IDLE})
    await asyncio.sleep(200.0)
    await scene.open_door(scene.network.transport(peer))
    scene.asker.follow({peer: Target((), 2, False)})
    await asyncio.sleep(0.1)
    assert scene.asker.heard()[peer].reached


async def test_the_shortest_exchange_is_the_round_trip(scene: Scene) -> None:
    server = await scene.server()
    scene.network._shape = LinkShape(delay_s=0.03, jitter_s=0.02)
    scene.asker.follow({server.peer_id: LOADED})
    await asyncio.sleep(20.0)
    rtt_s = scene.asker.heard()[server.peer_id].rtt_s
    assert rtt_s is not None
    assert 0.06 <= rtt_s <= 0.08


async def test_who_is_not_there_keeps_nobody_waiting_who_was(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dials into the void take their time, and those that were not reached before take turns for them."""
    server, dial = await scene.server(), MemoryTransport.dial
    at_once = most = 0

    async def slow(self: MemoryTransport, peer: PeerId, protocol: str, **options: Any) -> Stream:
        nonlocal at_once, most
        at_once, most = at_once + 1, max(most, at_once + 1)
        try:
            if peer != server.peer_id:
                await asyncio.sleep(DIAL_S)
            return await dial(self, peer, protocol, **options)
        finally:
            at_once -= 1

    monkeypatch.setattr(MemoryTransport, "dial", slow)
    there = {server.peer_id: IDLE}
    scene.asker.follow(there)
    await asyncio.sleep(30.0)
    scene.asker.follow(there | {PeerId(f"absent{number}"): IDLE for number in range(10 * DIALS_AT_ONCE)})
    await asyncio.sleep(5.0)
    await scene.network.kill(server.peer_id)
    await asyncio.sleep(AGAIN_S + 0.2)
    assert scene.asker.heard()[server.peer_id].reached is False
    await asyncio.sleep(100.0)
    assert all(one.reached is False for one in scene.asker.heard().values())
    assert DIALS_AT_ONCE <= most <= DIALS_AT_ONCE + 1


async def test_its_own_node_is_not_asked(scene: Scene) -> None:
    scene.asker.follow({Identity(bytes(32)).peer_id: IDLE})
    await asyncio.sleep(5.0)
    assert scene.asker.heard() == {}


async def test_records_without_servers_keep_nobody_from_being_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its turn, and what was found of it stays known; who answers is not given up for them."""
    monkeypatch.setattr(asking, "MAX_ASKED", 4)
    real = (await scene.server()).peer_id
    made_up = [Identity(bytes([number]) * 32).peer_id for number in range(100, 111)]
    targets = dict.fromkeys([*made_up[:3], real, *made_up[3:]], LOADED)
    for _ in range(int(5 * GIVE_WAY_S / 2)):
        scene.asker.follow(targets)
        await asyncio.sleep(2.0)
        assert len(scene.asker._visits) == 4
    heard = scene.asker.heard()
    assert {peer: one.reached for peer, one in heard.items()} == dict.fromkeys(made_up, False) | {real: True}
    assert len(scene.asked[real]) > GIVE_WAY_S
    scene.asker.follow(dict.fromkeys([real, made_up[0]], LOADED))
    assert set(scene.asker.heard()) == {real, made_up[0]}
