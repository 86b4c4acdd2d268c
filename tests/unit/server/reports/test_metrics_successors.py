"""Whom a server measures and when, what it tells of it, and where it finds itself."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

import msgspec
import pytest

from swarm.core.announcement import Announcement, Coordinate, Reach, State
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import MAX_RTT_PEERS
from swarm.core.numerics import Numerics
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.scheduling.cluster import distance_s
from swarm.scheduling.coordinates import START
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.metrics_successors import FORGET_INTERVALS, Successors, rank

MODEL = ModelId("m", "r", "0" * 16)
EVERY_S = 30.0
OWN = Identity(bytes(32))


def peer(number: int) -> Identity:
    return Identity(bytes([number % 256, 1 + number // 256]) * 16)


def announced(who: Identity, start: int, end: int, now_s: float, **changes: object) -> Announcement:
    base = Announcement(
        model=str(MODEL), layer_count=20, peer=who.peer_id, start=start, end=end, instance=1, sequence=1,
        numerics=Numerics("float32"), started_s=now_s, expires_s=now_s + 60, coordinate=START,
    )  # fmt: skip
    return msgspec.structs.replace(base, **changes)


class Setting:
    """A server of layers 5 to 10 among others; pings answer after what ``rtts_s`` says, and are noted."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.directory = MemoryDirectory(MemoryDirectoryStore(self.clock))
        own = announced(OWN, 5, 10, self.clock.wall_s())
        self.announcer = Announcer(self.directory, OWN, self.clock, own, ServerConfig())
        self.rtts_s: dict[PeerId, float | None] = {}
        self.felt_s: dict[PeerId, float] = {}
        self.pings: list[tuple[float, PeerId]] = []
        self.at_once = self.most_at_once = 0
        self.successors = Successors(self.announcer, self.ping, self.felt_s.get, self.clock, every_s=EVERY_S)
        self.others: list[Announcer] = []
        self.news_s: list[float] = []

    async def ping(self, who: PeerId, addresses: Sequence[str]) -> float | None:
        self.pings.append((self.clock.monotonic_s(), who))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.clock.sleep(self.rtts_s[who] or 5.0)
        self.at_once -= 1
        return self.rtts_s[who]

    async def join(self, number: int, start: int, end: int, rtt_s: float | None = 0.01, **changes: object) -> PeerId:
        who = peer(number)
        first = announced(who, start, end, self.clock.wall_s(), **changes)
        announcer = Announcer(self.directory, who, self.clock, first, ServerConfig(announce_lifetime_s=600.0))
        await announcer.publish()
        self.others.append(announcer)
        self.rtts_s[who.peer_id] = rtt_s
        return who.peer_id

    async def run(self, seconds: float) -> None:
        task = asyncio.create_task(self.successors.run(lambda: self.news_s.append(self.clock.monotonic_s())))
        await self.clock.advance(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def pinged(self, since_s: float = 0.0) -> list[PeerId]:
        return [who for at_s, who in self.pings if at_s >= since_s]


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_only_those_that_could_follow_are_told(setting: Setting) -> None:
    follows = [await setting.join(1, 10, 20), await setting.join(2, 6, 11), await setting.join(3, 5, 20)]
    await setting.join(4, 11, 20)  # a gap
    await setting.join(5, 0, 10)  # nothing new
    await setting.join(6, 10, 20, reach=Reach.UNREACHABLE)
    await setting.join(7, 10, 20, state=State.DRAINING)
    await setting.join(8, 10, 40, layer_count=40)
    await setting.run(20.0)
    assert setting.successors.rtt_s() == dict.fromkeys(follows, 0.01)
    assert PeerId(OWN.peer_id) not in setting.pinged()


async def test_those_it_could_follow_are_told_as_well(setting: Setting) -> None:
    """A newcomer in the middle or at the end is the one who measures: those before him have not heard of him yet."""
    before, after = await setting.join(1, 0, 5, 0.02), await setting.join(2, 10, 20, 0.03)
    await setting.run(1.0)
    assert setting.successors.rtt_s() == {before: 0.02, after: 0.03}


async def test_but_followers_come_first(setting: Setting) -> None:
    near = [await setting.join(number, 0, 5, 0.001 * (1 + number)) for number in range(4)]
    far = [await setting.join(number, 10, 20, 0.1) for number in range(10, 8 + MAX_RTT_PEERS)]
    await setting.run(40.0)
    assert set(setting.successors.rtt_s()) == {*near[:2], *far}
    far += [await setting.join(number, 10, 20, 0.1) for number in range(40, 42)]
    await setting.run(40.0)
    assert set(setting.successors.rtt_s()) == set(far)


async def test_what_is_measured_for_the_first_time_is_news_once(setting: Setting) -> None:
    await setting.join(1, 10, 20)
    await setting.run(3 * EVERY_S)
    assert len(setting.news_s) == 1
    assert setting.news_s[0] < 0.1
    await setting.join(2, 11, 20)  # cannot stand beside it
    await setting.run(3 * EVERY_S)
    assert len(setting.news_s) == 2, "it tells all anew after a pause, and nothing more"


async def test_who_comes_at_the_same_time_is_seen_soon(setting: Setting) -> None:
    task = asyncio.create_task(setting.successors.run(lambda: None))
    await setting.clock.advance(1.0)
    other = await setting.join(1, 10, 20)
    await setting.clock.advance(7.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert setting.successors.rtt_s() == {other: 0.01}


async def test_the_nearest_sixteen_are_told_and_kept_fresh(setting: Setting) -> None:
    peers = [await setting.join(number, 10, 20, 0.001 * (1 + (7 * number) % 40)) for number in range(40)]
    await setting.run(200.0)
    nearest = sorted(peers, key=lambda who: setting.rtts_s[who] or 0.0)[:MAX_RTT_PEERS]
    assert set(setting.successors.rtt_s()) == set(nearest)
    since_s = setting.clock.monotonic_s()
    await setting.run(10 * EVERY_S)
    counts = [setting.pinged(since_s).count(who) for who in nearest]
    assert min(counts) >= 6, "each every 30 s or so"
    assert max(counts) <= 11
    gaps_s = EVERY_S / MAX_RTT_PEERS
    late = [at_s for at_s, _ in setting.pings if at_s >= since_s + 1]
    assert len(late) <= 10 * EVERY_S / gaps_s + 1, "and spread over that time"


async def test_at_the_start_all_are_measured_soon_and_few_at_once(setting: Setting) -> None:
    for number in range(MAX_RTT_PEERS):
        await setting.join(number, 10, 20, 0.05)
    await setting.run(8.0)
    assert len(setting.successors.rtt_s()) == MAX_RTT_PEERS
    assert setting.most_at_once <= 4


async def test_pairs_of_a_session_are_not_pinged_but_told(setting: Setting) -> None:
    busy, idle = await setting.join(1, 10, 20), await setting.join(2, 10, 20)
    setting.felt_s[busy] = 0.033
    await setting.run(100.0)
    assert setting.successors.rtt_s() == {busy: 0.033, idle: 0.01}
    assert set(setting.pinged()) == {idle}
    del setting.felt_s[busy]
    assert setting.successors.rtt_s()[busy] == 0.033, "the session's last word, until it is measured again"


async def test_who_does_not_answer_is_not_told_and_asked_again_later(setting: Setting) -> None:
    mute = await setting.join(1, 10, 20, None)
    await setting.run(20.0)
    assert setting.successors.rtt_s() == {}
    asked = len(setting.pings)
    assert asked <= 2
    setting.rtts_s[mute] = 0.02
    await setting.run(2 * EVERY_S)
    assert setting.successors.rtt_s() == {mute: 0.02}


async def test_old_measurements_and_those_of_the_gone_are_forgotten(setting: Setting) -> None:
    await setting.join(1, 10, 20)
    await setting.run(5.0)
    assert len(setting.successors.rtt_s()) == 1
    await setting.clock.advance(FORGET_INTERVALS * EVERY_S + 1)  # nobody measures
    assert setting.successors.rtt_s() == {}
    setting.successors.learn([])
    assert setting.successors._measured == {}


async def test_a_directory_that_does_not_answer_costs_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = await setting.join(1, 10, 20)
    await setting.run(5.0)

    async def fail(model: ModelId) -> list[Listing]:
        raise NetworkError("down")

    monkeypatch.setattr(setting.directory, "servers", fail)
    await setting.run(3 * EVERY_S)
    assert setting.successors.rtt_s() == {follower: 0.01}, "measured as before"


async def test_the_announcement_learns_how_many_servers_there_are(setting: Setting) -> None:
    for number in range(5):
        await setting.join(number, 0, 5)
    await setting.run(1.0)
    assert setting.announcer.servers == 5


async def test_the_last_of_a_chain_finds_its_place_too(setting: Setting) -> None:
    """Nobody can follow it, so it measures a few others, the same ones each time, and tells no round trips."""
    setting.announcer.amend(start=15, end=20)
    for number in range(12):
        await setting.join(number, 0, 5, 0.04)
    await setting.run(400.0)
    assert setting.successors.rtt_s() == {}
    assert len(set(setting.pinged())) == 4
    assert setting.announcer.current.coordinate != START


async def test_coordinates_of_a_ring_of_servers_come_to_predict_round_trips() -> None:
    """Servers that only know each other's announcements; true places are on a line."""
    where_s = {peer(number).peer_id: 0.01 * number for number in range(8)}
    places = dict.fromkeys(where_s, START)
    settings = {}
    for who in where_s:
        one = Setting()
        one.announcer.amend(peer=who, coordinate=START)
        settings[who] = one
    for _ in range(60):
        for who, one in settings.items():
            for other in where_s:
                if other != who:
                    heard = Listing(announced(OWN, 10, 20, 0.0, peer=other, coordinate=places[other]), b"")
                    one.successors.took(heard, abs(where_s[who] - where_s[other]))
            found = one.announcer.current.coordinate
            assert found is not None
            places[who] = found
    assert _distance(places, 0, 7) == pytest.approx(0.07, rel=0.1)
    assert _distance(places, 2, 4) == pytest.approx(0.02, rel=0.2)
    assert all(place.error < 0.2 for place in places.values())


def _distance(places: dict[PeerId, Coordinate], a: int, b: int) -> float:
    return distance_s(places[peer(a).peer_id], places[peer(b).peer_id])


async def test_servers_rank_strangers_differently() -> None:
    """Else all of a large swarm would measure the same few."""
    strangers = [hashlib.sha256(bytes([n])).hexdigest() for n in range(100)]
    firsts = {min(strangers, key=lambda stranger: rank(f"peer {own}", stranger)) for own in range(50)}
    assert len(firsts) > 30
