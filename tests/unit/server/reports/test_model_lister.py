"""The model index: a few servers of each model tell it, and others take over when those have gone."""

from __future__ import annotations

import asyncio

from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.dht.model_index import ENTRIES_PER_MODEL
from swarm.runtime.clock import VirtualClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.model_lister import IDLE_INTERVALS, LIFETIME_INTERVALS, ModelLister

EVERY_S = 20.0


class Swarm:
    """Servers that do nothing but list their models."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryDirectoryStore(self.clock)
        self.tasks: list[asyncio.Task[None]] = []

    def join(self, number: int, model: str = "m") -> ModelLister:
        who = Identity(bytes([1 + number]) * 32)
        now_s = self.clock.wall_s()
        base = Announcement(
            model=str(ModelId(model, "r", "0" * 16)), layer_count=4, peer=who.peer_id, start=0, end=4, sequence=0,
            numerics=Numerics("float32"), instance=number, started_s=now_s, expires_s=now_s + 1,
        )  # fmt: skip
        announcer = Announcer(MemoryDirectory(self.store), who, self.clock, base, ServerConfig())
        return ModelLister(announcer, self.clock, every_s=EVERY_S, hidden_size=576)

    def run(self, lister: ModelLister) -> None:
        self.tasks.append(asyncio.create_task(lister.run()))

    async def stop(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def listed(self) -> list[str]:
        """The models of the index, one for each entry."""
        return sorted(entry.model[0] for entry in await MemoryDirectory(self.store).entries())


async def test_an_entry_says_what_others_need_to_predict_its_speed() -> None:
    swarm = Swarm()
    assert await swarm.join(0).renew()
    [entry] = await MemoryDirectory(swarm.store).entries()
    assert (entry.model[0], entry.layer_count, entry.hidden_size) == ("m", 4, 576)


async def test_few_list_a_model_however_many_serve_it_and_it_stays_listed() -> None:
    swarm = Swarm()
    for number in range(12):
        swarm.run(swarm.join(number))
        await swarm.clock.advance(1.0)
    for _ in range(30):
        assert await swarm.listed() == ["m"] * ENTRIES_PER_MODEL
        await swarm.clock.advance(EVERY_S / 2)
    await swarm.stop(swarm.tasks)


async def test_who_joins_in_the_same_moment_as_many_others_lets_his_entry_expire() -> None:
    swarm = Swarm()
    swarm.store.staleness_s = 1.0  # nobody sees the others' entries
    for number in range(12):
        swarm.run(swarm.join(number))
    await swarm.clock.advance(2.0)
    assert len(await swarm.listed()) == 12
    await swarm.clock.advance((LIFETIME_INTERVALS + 1) * EVERY_S)
    assert len(await swarm.listed()) == ENTRIES_PER_MODEL
    await swarm.stop(swarm.tasks)


async def test_others_take_over_and_a_model_that_nobody_serves_is_forgotten() -> None:
    swarm = Swarm()
    for number in range(8):
        swarm.run(swarm.join(number))
        await swarm.clock.advance(1.0)
    swarm.run(swarm.join(20, "n"))
    await swarm.clock.advance(1.0)
    assert await swarm.listed() == ["m"] * ENTRIES_PER_MODEL + ["n"]
    await swarm.stop(swarm.tasks[:ENTRIES_PER_MODEL])  # those that came first
    for _ in range(20):
        await swarm.clock.advance((LIFETIME_INTERVALS + IDLE_INTERVALS) * EVERY_S / 20)
        assert "n" in await swarm.listed()
    assert await swarm.listed() == ["m"] * ENTRIES_PER_MODEL + ["n"]
    await swarm.stop(swarm.tasks)
    await swarm.clock.advance(LIFETIME_INTERVALS * EVERY_S)
    assert await swarm.listed() == []


async def test_an_outage_is_survived() -> None:
    swarm = Swarm()
    swarm.store.down = True
    swarm.run(swarm.join(1))
    await swarm.clock.advance(EVERY_S)
    swarm.store.down = False
    await swarm.clock.advance(IDLE_INTERVALS * EVERY_S)
    assert await swarm.listed() == ["m"]
    await swarm.stop(swarm.tasks)
