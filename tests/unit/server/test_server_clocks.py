"""A server whose clock jumps is found again as soon as it is right; the others' clocks were right all the time."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.announcement import Announcement
from swarm.core.errors import IdentityInUseError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.metrics_reporter import MetricsReporter
from swarm.server.reports.metrics_rhythm import Rhythm

MODEL = ModelId("m", "r", "0" * 16)
IDENTITY = Identity(bytes(32))
CONFIG = ServerConfig()


class OwnClock:
    """Ahead of all others by ``ahead_s``."""

    def __init__(self, true: VirtualClock) -> None:
        self.true = true
        self.ahead_s = 0.0
        self.monotonic_s = true.monotonic_s
        self.sleep = true.sleep

    def wall_s(self) -> float:
        return self.true.wall_s() + self.ahead_s


class Server:
    """An announcer and a reporter of figures that never change."""

    def __init__(self, store: MemoryDirectoryStore, clock: OwnClock) -> None:
        now_s = clock.wall_s()
        base = Announcement(
            model=str(MODEL), layer_count=4, peer=IDENTITY.peer_id, start=0, end=4, numerics=Numerics("float32"),
            instance=1, sequence=0, started_s=0.0, expires_s=now_s + 1,
        )  # fmt: skip
        directory = MemoryDirectory(store)
        self.announcer = Announcer(directory, IDENTITY, clock, base, CONFIG)
        self.reporter = MetricsReporter(self.announcer, clock, self, Rhythm(CONFIG))

    def metrics(self) -> Metrics:
        return Metrics(
            model=str(MODEL), peer=IDENTITY.peer_id, instance=1, sequence=0, expires_s=0.0, tau_s=0.01, fixed_s=0.0,
            kv_free_tokens=100,
        )  # fmt: skip

    async def refresh(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.gather(self.announcer.run(self._lost), self.reporter.run())

    async def _lost(self, error: IdentityInUseError) -> None:
        raise AssertionError(error)


@pytest.mark.parametrize("jump_s", [-86_400.0, -300.0, -50.0, 50.0, 80.0, 300.0, 3600.0, 86_400.0])
async def test_a_server_is_found_again_once_its_clock_is_right(jump_s: float) -> None:
    clock = VirtualClock()
    store = MemoryDirectoryStore(clock)
    own = OwnClock(clock)

    async def seen() -> Listing | None:
        found = await MemoryDirectory(store).server(MODEL, IDENTITY.peer_id)
        return found if found is not None and found.metrics is not None else None

    running = asyncio.create_task(Server(store, own).run())
    await clock.advance(CONFIG.announce_every_s + 5.0)
    assert await seen() is not None
    own.ahead_s = jump_s
    await clock.advance(100.0)
    own.ahead_s = 0.0
    await clock.advance(CONFIG.announce_every_s + 5.0)
    for _ in range(30):
        assert await seen() is not None, "and it stays in sight"
        await clock.advance(10.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
