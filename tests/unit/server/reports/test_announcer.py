"""Two processes with one key: the later one yields, whatever their clocks say; what a dead one left is no twin."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.announcement import Announcement, State
from swarm.core.errors import IdentityInUseError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.records import key_of, read_announcement
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import LOOKS_PER_ANNOUNCEMENT, Announcer

CONFIG = ServerConfig()
LOOK_S = CONFIG.announce_every_s / LOOKS_PER_ANNOUNCEMENT
MODEL = ModelId("m", "r", "0" * 16)
IDENTITY = Identity(bytes(32))


class Twin:
    """One process: its announcer, and the error that ended it, if one did."""

    def __init__(self, store: MemoryDirectoryStore, instance: int, *, started_s: float) -> None:
        base = Announcement(
            model=str(MODEL), layer_count=4, peer=IDENTITY.peer_id, start=0, end=4, numerics=Numerics("float32"),
            instance=instance, sequence=0, started_s=started_s, expires_s=started_s + 1,
        )  # fmt: skip
        self.directory = MemoryDirectory(store)
        self.announcer = Announcer(self.directory, IDENTITY, store.clock, base, CONFIG)
        self.error: IdentityInUseError | None = None
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.announcer.check_twin()
        await self.run()

    async def run(self) -> None:
        await self.announcer.publish(state=State.ONLINE)
        self.task = asyncio.create_task(self.announcer.run(self._lost))

    async def _lost(self, error: IdentityInUseError) -> None:
        self.error = error

    async def die(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> MemoryDirectoryStore:
    return MemoryDirectoryStore(clock)


async def seen(twin: Twin) -> int:
    [listing] = await twin.directory.servers(MODEL)
    announced = listing.announcement
    return announced.instance


@pytest.mark.parametrize("skew_s", [-30.0, 0.0, 30.0])
@pytest.mark.parametrize("into_period", [0.1, 0.5, 0.9])
async def test_the_later_process_yields(
    clock: VirtualClock, store: MemoryDirectoryStore, skew_s: float, into_period: float
) -> None:
    first = Twin(store, 2, started_s=clock.wall_s())
    await first.start()
    await clock.advance(CONFIG.announce_every_s * (1 + into_period))
    second = Twin(store, 1, started_s=clock.wall_s() + skew_s)
    await second.start()
    await clock.advance(2 * LOOK_S + 0.1)
    assert second.error is not None
    assert "another machine" in str(second.error)
    await clock.advance(2 * CONFIG.announce_every_s)
    assert first.error is None
    assert await seen(first) == 2
    await first.die()


async def test_what_a_dead_process_left_is_no_twin(clock: VirtualClock, store: MemoryDirectoryStore) -> None:
    dead = Twin(store, 1, started_s=clock.wall_s())
    await dead.start()
    await clock.advance(1.5 * CONFIG.announce_every_s)
    await dead.die()
    again = Twin(store, 2, started_s=clock.wall_s())
    await again.start()
    await clock.advance(5 * CONFIG.announce_lifetime_s)
    assert again.error is None
    assert await seen(again) == 2
    await again.die()


async def test_of_two_that_start_together_one_stays(clock: VirtualClock, store: MemoryDirectoryStore) -> None:
    twins = [Twin(store, instance, started_s=clock.wall_s()) for instance in (7, 3)]
    for twin in twins:
        await twin.announcer.check_twin()
    await twins[0].run()
    await clock.advance(0.5)  # the directory keeps what expires last, so the same instant would refuse one
    await twins[1].run()
    await clock.advance(10 * LOOK_S)
    assert [twin.error is None for twin in twins] == [False, True], "same start: the lower instance stays"
    assert await seen(twins[1]) == 3
    await twins[1].die()


async def test_what_is_learnt_is_said_with_the_next_announcement(
    clock: VirtualClock, store: MemoryDirectoryStore
) -> None:
    server = Twin(store, 1, started_s=clock.wall_s())
    await server.start()
    server.announcer.amend(region="north")
    await clock.advance(0.5 * CONFIG.announce_every_s)
    [early] = await server.directory.servers(MODEL)
    await clock.advance(CONFIG.announce_every_s)
    [late] = await server.directory.servers(MODEL)
    assert (early.announcement.region, late.announcement.region) == ("", "north")
    await server.die()


async def test_in_a_hurry_it_announces_at_once_and_then_in_its_rhythm(
    clock: VirtualClock, store: MemoryDirectoryStore
) -> None:
    server = Twin(store, 1, started_s=clock.wall_s())
    await server.start()
    await clock.advance(1.0)
    sequence = server.announcer.current.sequence
    server.announcer.hurry()
    server.announcer.hurry()
    await clock.settle()
    assert server.announcer.current.sequence == sequence + 1
    await clock.advance(CONFIG.announce_every_s - 1.0)
    assert server.announcer.current.sequence == sequence + 1
    await clock.advance(1.0)
    assert server.announcer.current.sequence == sequence + 2
    await server.die()


async def test_an_outage_is_logged_once(
    clock: VirtualClock, store: MemoryDirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    server = Twin(store, 1, started_s=clock.wall_s())
    await server.start()
    for _ in range(2):
        caplog.clear()
        store.down = True
        await clock.advance(10 * CONFIG.announce_every_s)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        store.down = False
        await clock.advance(CONFIG.announce_every_s)
        assert await seen(server) == 1
    await server.die()


@pytest.mark.parametrize("servers", [1, 2000, 10_000, 20_000])
async def test_large_swarms_announce_less_often_and_stay_in_sight(
    clock: VirtualClock, store: MemoryDirectoryStore, servers: int
) -> None:
    server = Twin(store, 1, started_s=clock.wall_s())
    server.announcer.servers = servers
    await server.start()
    await clock.advance(100.0)
    began, began_s = server.announcer.current.sequence, clock.monotonic_s()
    for _ in range(100):
        await clock.advance(40.0)
        assert await seen(server) == 1
    written = server.announcer.current.sequence - began
    assert servers * written / (clock.monotonic_s() - began_s) <= 100.0 * 1.1
    assert written >= 4000.0 / max(CONFIG.announce_every_s, servers / 100.0) * 0.8 - 1
    await server.die()


class Crowded(MemoryDirectory):
    """One that knows of so many servers that records stand at depth 9."""

    async def shard_depth(self, model: ModelId) -> int:
        return 9


@pytest.mark.parametrize("in_good_order", [True, False])
async def test_whoever_comes_back_to_a_large_swarm_is_seen_at_once(
    clock: VirtualClock, store: MemoryDirectoryStore, in_good_order: bool
) -> None:
    before, again = (Twin(store, instance, started_s=clock.wall_s()) for instance in (1, 2))
    before.announcer.directory = again.announcer.directory = Crowded(store)
    await before.start()
    before.announcer.servers = 10_000
    await before.announcer.publish()
    if in_good_order:
        await before.announcer.publish(state=State.OFFLINE)
    await before.die()
    await clock.advance(1.0)
    await again.start()
    [(peer, stored)] = store.read(key_of(again.announcer.current))
    found = read_announcement(stored, now_s=clock.wall_s(), expected_peer=peer)
    assert (found.instance, found.state) == (2, State.ONLINE)
    await again.die()
