"""When metrics are published, in virtual time: under load, idle, on open and close, in large swarms, in an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import msgspec
import pytest
import pytest_asyncio

from swarm.core.announcement import Announcement
from swarm.core.errors import IdentityInUseError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.numerics import Numerics
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.engine.speed import SpanSpeed
from swarm.runtime.clock import VirtualClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.meter import IDLE_AFTER_S, Meter
from swarm.server.reports.metrics_reporter import MetricsReporter
from swarm.server.reports.metrics_rhythm import RETRY_S, Rhythm

CONFIG = ServerConfig()
MODEL = ModelId("m", "r", "0" * 16)
IDENTITY = Identity(bytes(32))
SPEED = SpanSpeed(tau_s=0.01, fixed_s=0.02)
LAYERS = 4
STEP_S = SPEED.fixed_s + LAYERS * SPEED.tau_s


class NotedDirectory(MemoryDirectory):
    """Notes what was published, and when."""

    def __init__(self, store: MemoryDirectoryStore) -> None:
        super().__init__(store)
        self.clock = store.clock
        self.written: list[tuple[float, Metrics]] = []

    async def publish(self, signed: bytes, record: object) -> None:
        await super().publish(signed, record)  # type: ignore[arg-type]
        if isinstance(record, Metrics):
            self.written.append((self.clock.monotonic_s(), record))


class Server:
    """A meter and a table of sessions that only counts, behind a real reporter."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryDirectoryStore(self.clock)
        self.directory = NotedDirectory(self.store)
        self.announcer = Announcer(self.directory, IDENTITY, self.clock, self.announcement(), CONFIG)
        self.meter = Meter(SPEED)
        self.sessions = 0
        self.queued_steps = 0
        self.refreshed = 0
        self.reporter = MetricsReporter(self.announcer, self.clock, self, Rhythm(CONFIG))
        self.tasks: list[asyncio.Task[None]] = []

    def announcement(self) -> Announcement:
        now_s = self.clock.wall_s()
        return Announcement(
            model=str(MODEL), layer_count=LAYERS, peer=IDENTITY.peer_id, start=0, end=LAYERS, instance=7,
            numerics=Numerics("float32"), sequence=0, started_s=now_s, expires_s=now_s + 1,
        )  # fmt: skip

    def metrics(self) -> Metrics:
        load = self.meter.present(self.clock.monotonic_s(), sessions=self.sessions, queued_steps=self.queued_steps)
        return Metrics(
            model=str(MODEL), peer=IDENTITY.peer_id, instance=7, sequence=0, expires_s=0.0, tau_s=load.tau_s,
            fixed_s=load.fixed_s, kv_free_tokens=100_000 - 100 * self.sessions, sessions=self.sessions,
            queued_steps=self.queued_steps,
        )  # fmt: skip

    async def refresh(self) -> None:
        self.refreshed += 1

    async def start(self) -> None:
        await self.announcer.publish()
        await self.reporter.publish()
        self.tasks = [asyncio.create_task(self.reporter.run()), asyncio.create_task(self.announcer.run(self._lost))]

    async def _lost(self, error: IdentityInUseError) -> None:
        raise AssertionError(error)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def open(self, sessions: int = 1) -> None:
        self.sessions += sessions
        self.reporter.changed()

    def close(self, sessions: int = 1) -> None:
        self.sessions -= sessions
        if not self.sessions:
            self.meter.rest()
        self.reporter.changed()

    async def work(self, seconds: float, *, slower: float = 1.0, wait_s: float = 0.0) -> None:
        """Steps of one session, one after the other."""
        until_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < until_s:
            await self.clock.advance(slower * STEP_S)
            self.meter.computed([LAYERS], [wait_s], slower * STEP_S, self.clock.monotonic_s())

    def times(self) -> list[float]:
        return [at_s for at_s, _ in self.directory.written]

    def gaps(self, since_s: float = 0.0) -> list[float]:
        return [b - a for a, b in pairwise(self.times()) if a >= since_s]

    async def seen(self) -> Metrics | None:
        """What a reader is told now."""
        listing = await MemoryDirectory(self.store).server(MODEL, IDENTITY.peer_id)
        return None if listing is None else listing.metrics


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    built = Server()
    await built.start()
    yield built
    await built.stop()


async def test_idle_every_four_seconds_and_never_out_of_sight(server: Server) -> None:
    for _ in range(60):
        await server.clock.advance(1.0)
        assert await server.seen() is not None
    assert set(server.gaps()) == {4.0}
    assert server.refreshed == len(server.times())


async def test_under_load_every_two_seconds_every_second_while_figures_change(server: Server) -> None:
    server.open()
    await server.work(20.0)
    assert server.gaps(since_s=1.0) == pytest.approx([2.0] * len(server.gaps(since_s=1.0)), abs=0.1)
    changing_s = server.clock.monotonic_s()
    for number in range(1, 9):
        await server.work(1.0, slower=1.2**number)
    gaps = server.gaps(since_s=changing_s)
    assert len(gaps) >= 7
    assert gaps == pytest.approx([1.0] * len(gaps), abs=0.1)


async def test_opening_and_closing_are_told_at_once(server: Server) -> None:
    await server.clock.advance(1.5)
    server.open()
    await server.clock.settle()
    assert (server.times()[-1], server.directory.written[-1][1].sessions) == (1.5, 1)
    await server.clock.advance(0.5)
    server.close()
    await server.clock.settle()
    assert (server.times()[-1], server.directory.written[-1][1].sessions) == (2.0, 0)


async def test_a_storm_of_sessions_is_told_ten_times_a_second_and_its_end_is_not_lost(server: Server) -> None:
    await server.clock.advance(1.0)
    for _ in range(200):
        server.open()
        await server.clock.advance(0.01)
    server.close(200)
    await server.clock.advance(2 * CONFIG.metrics_gap_s)
    storm = [at_s for at_s in server.times() if 1.0 <= at_s <= 3.0]
    assert 15 <= len(storm) <= 2.0 / CONFIG.metrics_gap_s + 1
    assert min(server.gaps(since_s=1.0)) >= CONFIG.metrics_gap_s - 1e-9
    assert server.directory.written[-1][1].sessions == 0
    seen = await server.seen()
    assert seen is not None
    assert seen.sessions == 0


async def test_a_change_while_a_record_is_on_its_way_is_told_in_the_next_one(server: Server) -> None:
    server.store.delay_s = 0.3
    server.open()
    await server.clock.advance(0.1)
    server.close()
    await server.clock.advance(0.7)
    assert [record.sessions for _, record in server.directory.written[-2:]] == [1, 0]


async def test_the_idle_value_comes_back_when_the_queue_is_empty(server: Server) -> None:
    idle = await server.seen()
    server.open()
    await server.work(10.0, slower=5.0, wait_s=0.4)
    busy = await server.seen()
    assert idle is not None
    assert busy is not None
    assert busy.fixed_s + LAYERS * busy.tau_s > 0.9 * (5 * STEP_S + 0.4)
    await server.clock.advance(IDLE_AFTER_S + CONFIG.metrics_steady_s)
    silent = await server.seen()
    assert silent is not None
    assert (silent.tau_s, silent.fixed_s, silent.sessions) == (idle.tau_s, idle.fixed_s, 1), "open, and nothing queued"
    await server.work(10.0, slower=5.0, wait_s=0.4)
    server.close()
    await server.clock.settle()
    free = await server.seen()
    assert free is not None
    assert (free.tau_s, free.fixed_s, free.sessions) == (idle.tau_s, idle.fixed_s, 0), "at once when it closes"


async def test_a_killed_server_is_out_of_sight_within_ten_seconds_busy_or_idle(server: Server) -> None:
    for sessions in (0, 3):
        server.open(sessions)
        await server.clock.advance(7.3)
        assert await server.seen() is not None
        await server.stop()  # as kill -9 does: not a word
        await server.clock.advance(METRICS_LIFETIME_S)
        assert await server.seen() is None
        await server.start()


@pytest.mark.parametrize(
    ("servers", "idle_s", "lifetime_s"), [(400, 4.0, 10.0), (4000, 10.0, 24.0), (10_000, 25.0, 60.0)]
)
async def test_large_swarms_write_less_often_and_are_seen_all_the_same(
    server: Server, servers: int, idle_s: float, lifetime_s: float
) -> None:
    server.announcer.servers = servers
    await server.clock.advance(4.0)
    began_s = server.clock.monotonic_s()
    for number in range(1500):  # sessions come and go all the time
        server.open() if number % 2 else server.close(server.sessions)
        await server.clock.advance(0.2)
    writes_per_s = servers * len(server.gaps(since_s=began_s)) / (1500 * 0.2)
    assert writes_per_s <= 500
    server.close(server.sessions)
    await server.clock.advance(100.0)
    assert server.gaps()[-1] == pytest.approx(idle_s)
    at_s, last = server.directory.written[-1]
    assert last.expires_s - (server.clock.wall_s() - server.clock.monotonic_s()) - at_s == pytest.approx(lifetime_s)
    for _ in range(100):
        await server.clock.advance(1.0)
        assert await server.seen() is not None


async def test_an_outage_is_retried_and_ends(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    await server.clock.advance(5.0)
    server.store.down = True
    server.open()
    await server.clock.advance(30.0)
    assert sum("could not publish metrics" in text for text in caplog.messages) == 1, "told once"
    server.store.down = False
    await server.clock.advance(RETRY_S)
    seen = await server.seen()
    assert seen is not None
    assert seen.sessions == 1


async def test_each_record_is_newer_than_the_last_whatever_the_clock_does(server: Server) -> None:
    for jump_s in (0.0, -30.0, 5.0, -50.0):
        server.clock._wall_offset_s += jump_s
        server.open()
        await server.clock.advance(4.0)
    records = [record for _, record in server.directory.written]
    assert len(records) > 4
    for earlier, later in pairwise(records):
        assert later.sequence == earlier.sequence + 1
        assert later.expires_s > earlier.expires_s
    assert msgspec.structs.replace(records[0], sequence=0, expires_s=0.0) != records[0]
