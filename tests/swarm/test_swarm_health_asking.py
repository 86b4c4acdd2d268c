"""Asking servers how they are, in virtual time: how often, how many, and what a lost line means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace
from virtual_time import LoopClock

from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.health.watching import asking, visiting
from swarm.health.watching.asking import GIVE_WAY_S, UNTRIED_S, Asker
from swarm.health.watching.visiting import (
    AGAIN_S,
    ANSWER_S,
    BACKOFF_S,
    DIAL_S,
    EVERY_S,
    JITTER,
    NEW_DIALS_AT_ONCE,
    Target,
)
from swarm.transport.framing import FrameStream
from swarm.transport.memory import LinkShape, MemoryNetwork, MemoryTransport
from swarm.transport.protocol import Stream
from swarm.wire.session import Channel, Role
from swarm.wire.status import BUCKETS_S, Histogram, LinkFigures, StatusReport, Totals

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
THERE = Target((), 1)


class Scene:
    """An asker, and servers that note when they were asked."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.rings = 0
        self.report = REPORT
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
                await frames.send(self.report)

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


async def test_everybody_is_asked_every_two_seconds_over_one_line_each(scene: Scene) -> None:
    peers = await scene.servers(2)
    scene.asker.follow(dict.fromkeys(peers, THERE))
    await asyncio.sleep(60.0)
    for peer in peers:
        assert all(EVERY_S * (1 - JITTER) <= gap <= EVERY_S * (1 + JITTER) + 0.01 for gap in gaps(scene.asked[peer]))
        assert scene.asker.heard()[peer].report == REPORT
    assert len(scene.dialled) == 2
    assert scene.rings == 2


async def test_a_crowd_shares_the_budget(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visiting, "ASKS_PER_S", ASKS_PER_S)
    peers = await scene.servers(60)
    scene.network._shape = LinkShape(delay_s=0.05)
    scene.asker.follow(dict.fromkeys(peers, THERE))
    await asyncio.sleep(10.0)
    assert all(one.reached for one in scene.asker.heard().values())
    began_s = scene.clock.monotonic_s()
    await asyncio.sleep(20.0)
    asked = sum(time > began_s for times in scene.asked.values() for time in times)
    assert 0.7 * ASKS_PER_S <= asked / 20.0 <= 1.2 * ASKS_PER_S
    assert all(any(time > began_s for time in times) for times in scene.asked.values()), "each has its turn"


@pytest.mark.parametrize("others", [0, 2])
async def test_one_that_freezes_is_out_of_reach_within_seconds(scene: Scene, others: int) -> None:
    """Where others answer meanwhile, at once; where nobody else is there to tell, after a second try."""
    frozen, *rest = [(await scene.server()).peer_id for _ in range(1 + others)]
    scene.asker.follow(dict.fromkeys([frozen, *rest], THERE))
    await asyncio.sleep(31.0)
    scene.network.freeze(frozen)
    began_at = scene.clock.wall_s()
    most_s = EVERY_S * (1 + JITTER) + ANSWER_S + (0.0 if others else AGAIN_S * (1 + JITTER) + DIAL_S)
    await asyncio.sleep(most_s + 0.1)
    heard = scene.asker.heard()[frozen]
    assert heard.reached is False
    assert heard.since_at - began_at >= ANSWER_S
    assert all(scene.asker.heard()[peer].reached for peer in rest)


async def test_a_page_that_is_cut_off_itself_accuses_nobody_at_once(scene: Scene) -> None:
    """Five seconds without a network: where nobody at all answers, one try more is due to each."""
    peers = await scene.servers(20)
    scene.asker.follow(dict.fromkeys(peers, THERE))
    await asyncio.sleep(31.0)
    scene.network.freeze(Identity(bytes(32)).peer_id)
    await asyncio.sleep(EVERY_S + ANSWER_S)
    scene.network.thaw(Identity(bytes(32)).peer_id)
    await asyncio.sleep(AGAIN_S + 1.0)
    assert all(one.reached for one in scene.asker.heard().values())
    assert scene.rings == 20


async def test_no_more_lines_than_there_is_room_for_and_they_stay(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_ASKED", 10)
    monkeypatch.setattr(asking, "GUESTS", 2)
    peers = await scene.servers(5)
    crowd = {PeerId(f"absent{number}"): THERE for number in range(40)}
    scene.asker.follow(dict.fromkeys(peers, THERE))
    await asyncio.sleep(1.0)
    for _ in range(20):
        scene.asker.follow(crowd | dict.fromkeys(peers, THERE))
        assert len(scene.asker._visits) == 10
        assert set(peers) <= set(scene.asker._visits)
        await asyncio.sleep(2.0)
    assert len(scene.dialled) == 5, "known ones keep their lines"
    scene.asker.follow({})
    await asyncio.sleep(0.1)
    assert scene.asker.heard() == {}
    assert not scene.network._streams


async def test_a_line_that_breaks_is_opened_again_and_only_a_second_failure_counts(scene: Scene) -> None:
    server = await scene.server()
    scene.asker.follow({server.peer_id: THERE})
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
    scene.asker.follow({peer: THERE})
    await asyncio.sleep(200.0)
    await scene.open_door(scene.network.transport(peer))
    scene.asker.follow({peer: Target((), 2)})
    await asyncio.sleep(0.1)
    assert scene.asker.heard()[peer].reached


async def test_the_shortest_exchange_is_the_round_trip(scene: Scene) -> None:
    server = await scene.server()
    scene.network._shape = LinkShape(delay_s=0.03, jitter_s=0.02)
    scene.asker.follow({server.peer_id: THERE})
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
    there = {server.peer_id: THERE}
    scene.asker.follow(there)
    await asyncio.sleep(30.0)
    scene.asker.follow(there | {PeerId(f"absent{number}"): THERE for number in range(5 * NEW_DIALS_AT_ONCE)})
    await asyncio.sleep(5.0)
    await scene.network.kill(server.peer_id)
    await asyncio.sleep(AGAIN_S + 0.2)
    assert scene.asker.heard()[server.peer_id].reached is False
    await asyncio.sleep(100.0)
    assert all(one.reached is False for one in scene.asker.heard().values())
    assert NEW_DIALS_AT_ONCE <= most <= NEW_DIALS_AT_ONCE + 1


async def test_its_own_node_is_not_asked(scene: Scene) -> None:
    scene.asker.follow({Identity(bytes(32)).peer_id: THERE})
    await asyncio.sleep(5.0)
    assert scene.asker.heard() == {}


async def turns(scene: Scene, targets: Mapping[PeerId, Target], seconds: float) -> None:
    """The directory is read every two seconds meanwhile."""
    for _ in range(int(seconds / 2)):
        scene.asker.follow(targets)
        await asyncio.sleep(2.0)


async def test_records_without_servers_keep_nobody_from_being_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its turn, and what was found of it stays known; who answers is not given up for them."""
    monkeypatch.setattr(asking, "MAX_ASKED", 4)
    monkeypatch.setattr(asking, "GUESTS", 1)
    real = (await scene.server()).peer_id
    made_up = [Identity(bytes([number]) * 32).peer_id for number in range(100, 111)]
    targets = dict.fromkeys([*made_up[:3], real, *made_up[3:]], THERE)
    await turns(scene, targets, 5 * GIVE_WAY_S)
    assert len(scene.asker._visits) == 4
    heard = scene.asker.heard()
    assert {peer: one.reached for peer, one in heard.items()} == dict.fromkeys(made_up, False) | {real: True}
    assert len(scene.asked[real]) > GIVE_WAY_S
    scene.asker.follow(dict.fromkeys([real, made_up[0]], THERE))
    assert set(scene.asker.heard()) == {real, made_up[0]}


async def crowd_of(scene: Scene, count: int, place: str, says: str = "") -> dict[PeerId, Target]:
    """Servers that answer, whose streams come from ``place``; they say so, or to be at ``says``."""
    targets = {}
    for number, peer in enumerate(await scene.servers(count)):
        scene.network.places[peer] = place.format(number)
        targets[peer] = Target(((says or place).format(number), f"/memory/{peer}"), 1)
    return targets


async def test_a_crowd_of_made_up_servers_at_one_address_leaves_room_for_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were there first, all answer, and each has been asked for long: who comes from elsewhere is heard all the
    same, and stays."""
    monkeypatch.setattr(asking, "MAX_ASKED", 20)
    monkeypatch.setattr(asking, "GUESTS", 4)
    crowd = await crowd_of(scene, 50, "/ip4/203.0.113.7/tcp/{}", says="/ip4/203.{}.113.7/tcp/31337")
    await turns(scene, crowd, 40.0)
    honest = await crowd_of(scene, 8, "/ip4/198.51.{}.1/tcp/31337")
    await turns(scene, crowd | honest, 60.0)
    heard = scene.asker.heard()
    assert all(heard[peer].reached for peer in honest)
    assert set(honest) <= set(scene.asker._visits)
    before = {peer: len(scene.asked[peer]) for peer in honest}
    await turns(scene, crowd | honest, 30.0)
    assert all(len(scene.asked[peer]) - before[peer] >= 0.9 * 30.0 / EVERY_S for peer in honest)
    assert all(one.reached for one in scene.asker.heard().values()), "and of the crowd each had its turn"


async def test_whoever_has_answered_for_long_is_not_pushed_out_from_many_networks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_ASKED", 20)
    monkeypatch.setattr(asking, "GUESTS", 4)
    honest = await crowd_of(scene, 16, "/ip4/198.51.{}.1/tcp/31337")
    await turns(scene, honest, 20.0)
    crowd = await crowd_of(scene, 50, "/ip4/203.{}.113.7/tcp/31337")
    await turns(scene, honest | crowd, 100.0)
    assert set(honest) <= set(scene.asker._visits)
    assert all(one.reached for one in scene.asker.heard().values())
    assert all(len(scene.asked[peer]) >= 0.9 * 120.0 / EVERY_S for peer in honest)


async def test_one_that_a_known_server_sends_rows_to_is_tried_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_ASKED", 4)
    monkeypatch.setattr(asking, "GUESTS", 1)
    known, wanted = await scene.server(), (await scene.server()).peer_id
    scene.report = replace(REPORT, links=(LinkFigures(wanted, 0.02, 0.1, None),))
    made_up = {PeerId(f"absent{number:03}"): THERE for number in range(300)}
    scene.asker.follow({known.peer_id: THERE})
    await asyncio.sleep(5.0)
    scene.asker.follow(made_up | {known.peer_id: THERE, wanted: THERE})
    await asyncio.sleep(1.0)
    assert scene.asker.heard()[wanted].reached


async def test_one_that_was_never_tried_counts_no_longer_than_a_first_try_takes(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_ASKED", 4)
    monkeypatch.setattr(asking, "GUESTS", 1)
    there = await crowd_of(scene, 1, "/ip4/198.51.100.1/tcp/31337")
    crowd = dict.fromkeys([PeerId(f"absent{number}") for number in range(200)], THERE)
    await turns(scene, crowd | there, 4.0)
    assert not any(one.waiting for one in scene.asker.heard().values())
    await turns(scene, crowd | there, UNTRIED_S)
    heard = scene.asker.heard()
    assert sum(one.waiting for one in heard.values()) > 150
    assert not any(one.waiting for one in heard.values() if one.reached is not None)
