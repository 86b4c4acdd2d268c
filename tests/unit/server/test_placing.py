"""Servers that choose and change their layers over a directory that is slow and shows each reader something old.

Everybody runs the real protocol in virtual time; only loading is a wait, and a killed server just stops.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from swarm.core.announcement import Announcement, Intent, State
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.numerics import Numerics
from swarm.core.records import sign_record
from swarm.core.spans import Span, missing_layers
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.allocation.throughput import swarm_tokens_per_s, with_spans
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.intents import Choice
from swarm.server.config import ServerConfig
from swarm.server.placing import MOST_HELD_UP, Placement
from swarm.server.placing_config import PlacingConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.seat import Seat

MODEL = ModelId("m", "r", "0" * 16)
STALENESS_S = 2.0
DELAY_S = 0.8
CONFIG = PlacingConfig()
LOAD_S = 8.0
METRICS_EVERY_S = 7.0


class StaleStore(MemoryDirectoryStore):
    """Every read shows what was stored up to ``STALENESS_S`` ago, each another moment."""

    def __init__(self, clock: VirtualClock, dice: random.Random) -> None:
        super().__init__(clock, staleness_s=STALENESS_S)
        self.dice = dice

    def read(self, key: str) -> list[tuple[str, bytes]]:
        self.staleness_s = self.dice.uniform(0, STALENESS_S)
        try:
            return super().read(key)
        finally:
            self.staleness_s = STALENESS_S


class SlowDirectory(MemoryDirectory):
    """Every call takes up to ``DELAY_S``."""

    def __init__(self, store: StaleStore) -> None:
        super().__init__(store)
        self.store = store

    async def _reach(self) -> None:
        await self.store.clock.sleep(self.store.dice.uniform(0.01, DELAY_S))
        await super()._reach()


@dataclass
class Member:
    """One server: what it held, in order, and what it said of each."""

    swarm: Swarm
    number: int
    capacity: int
    power: float
    held: list[Choice] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        clock = self.swarm.clock
        self.identity = Identity(hashlib.sha256(f"{self.swarm.seed} {self.number}".encode()).digest())
        self.directory = SlowDirectory(self.swarm.store)
        seat = Seat(
            model=MODEL,
            layer_count=self.swarm.layers,
            span=Span(0, 1),
            peer=self.identity.peer_id,
            numerics=Numerics("float32"),
            capacity_layers=self.capacity,
            power_layers_per_s=self.power,
            instance=self.number + 1,
        )
        base = seat.announcement(clock.wall_s())
        self.announcer = Announcer(self.directory, self.identity, clock, base, ServerConfig())
        self.placement = Placement(self.announcer, clock, CONFIG, self.swarm.dice.random)

    @property
    def span(self) -> Span:
        return self.held[-1].span

    @property
    def announced(self) -> Announcement:
        return self.announcer.current

    async def join(self, after_s: float = 0.0, remembered: Span | None = None) -> None:
        await self.swarm.clock.sleep(after_s)
        self.held.append(await self.placement.join(remembered))
        assert self.announced.state is State.JOINING
        assert (self.announced.span, self.announced.intent) == (self.span, None)

    async def live(self) -> None:
        """Load, show itself, and look for better layers until it is killed."""
        clock = self.swarm.clock
        metrics: asyncio.Task[None] | None = None
        try:
            await clock.sleep(LOAD_S)
            metrics = asyncio.create_task(self._report())
            await self.announcer.publish(state=State.ONLINE)
            keeping = asyncio.create_task(self.announcer.run(self._lost))
            try:
                while True:
                    await self.placement.pause(CONFIG.rebalance_every_s)
                    choice = await self.placement.look()
                    if choice is not None:
                        await self._move(choice)
            finally:
                keeping.cancel()
        finally:
            if metrics is not None:
                metrics.cancel()

    async def _move(self, choice: Choice) -> None:
        assert (self.announced.state, self.announced.span) == (State.DRAINING, self.span)
        self.swarm.moving.add(self.number)
        self.swarm.most_moving = max(self.swarm.most_moving, len(self.swarm.moving))
        await self.swarm.clock.sleep(LOAD_S)
        self.held.append(choice)
        await self.announcer.publish(state=State.ONLINE, start=choice.span.start, end=choice.span.end, intent=None)
        self.swarm.moving.discard(self.number)

    async def _report(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            record = Metrics(
                model=str(MODEL),
                peer=self.identity.peer_id,
                instance=self.announced.instance,
                sequence=sequence,
                expires_s=self.swarm.clock.wall_s() + METRICS_LIFETIME_S,
                tau_s=1 / self.power,
                fixed_s=0.0,
                kv_free_tokens=4096,
            )
            await self.directory.publish(sign_record(self.identity, record), record)
            await self.swarm.clock.sleep(METRICS_EVERY_S)

    async def _lost(self, error: Exception) -> None:
        raise AssertionError(error)

    def start(self) -> None:
        self.task = asyncio.create_task(self.live())

    async def kill(self) -> None:
        """As kill -9 does: nothing is withdrawn."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Swarm:
    """Servers of one seed."""

    def __init__(self, seed: int, layers: int, capacities: Sequence[int], powers: Sequence[float] = ()) -> None:
        self.seed, self.layers = seed, layers
        self.dice = random.Random(seed)
        self.clock = VirtualClock()
        self.store = StaleStore(self.clock, self.dice)
        self.moving: set[int] = set()
        self.most_moving = 0
        speeds = powers or [100.0] * len(capacities)
        self.members = [Member(self, n, c, p) for n, (c, p) in enumerate(zip(capacities, speeds, strict=True))]

    def nodes(self) -> list[Node]:
        return [
            Node(id=str(m.number), span=m.span, capacity_layers=m.capacity, power=m.power)
            for m in self.members
            if m.held
        ]

    def tokens_per_s(self) -> float:
        return swarm_tokens_per_s(self.nodes(), self.layers)

    def planned_tokens_per_s(self) -> float:
        """What phase 1 would give the same servers with nobody placed yet."""
        cluster = Cluster(layers=self.layers, nodes=tuple(self.nodes()))
        return swarm_tokens_per_s(with_spans(cluster, allocate(cluster)), self.layers)

    async def all_join(self, within_s: float) -> None:
        """Everybody comes at a random moment of ``within_s``."""
        await self.clock.run(_all(*(member.join(self.dice.uniform(0, within_s)) for member in self.members)))

    async def end(self) -> None:
        for member in self.members:
            if member.task is not None:
                await member.kill()


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(*works)


EQUAL = (30, (10,) * 10, ())
MIXED = (64, (9, 22, 22, 13, 8, 30, 12, 20, 16, 10), (50, 100, 300, 80, 60, 200, 100, 30, 90, 120))


@pytest.mark.parametrize("seed", range(5))
async def test_ten_that_join_at_once_end_on_a_good_plan(seed: int) -> None:
    layers, capacities, powers = MIXED if seed % 3 == 0 else EQUAL
    swarm = Swarm(seed, layers, capacities, powers)
    await swarm.all_join(within_s=3.0)
    for member in swarm.members:
        assert len(member.span) <= member.capacity
    assert missing_layers([member.span for member in swarm.members], layers) == []
    assert swarm.tokens_per_s() >= 0.9 * swarm.planned_tokens_per_s()
    # Nobody is torn away again: each has loaded once, and of ten at most one finds a better place afterwards.
    for member in swarm.members:
        member.start()
    await swarm.clock.advance(4 * CONFIG.rebalance_every_s)
    assert sum(len(member.held) - 1 for member in swarm.members) <= 1
    assert swarm.most_moving <= 1
    await swarm.end()


@pytest.mark.parametrize("seed", range(2))
async def test_a_spare_takes_the_place_of_the_last_holder(seed: int) -> None:
    """Of four servers one is a spare; the only holder of the others' layers is killed without a word."""
    swarm = Swarm(seed, 30, (10,) * 4)
    await swarm.all_join(within_s=20.0)
    for member in swarm.members:
        member.start()
    await swarm.clock.advance(60.0)
    spans = [member.span for member in swarm.members]
    assert missing_layers(spans, 30) == []
    only = next(member for member in swarm.members if spans.count(member.span) == 1)
    await only.kill()
    swarm.members.remove(only)
    await swarm.clock.advance(METRICS_LIFETIME_S + 2 * CONFIG.rebalance_every_s + LOAD_S + 20.0)
    assert missing_layers([member.span for member in swarm.members], 30) == []
    assert sum(len(member.held) - 1 for member in swarm.members) == 1, "one moved, and only one"
    assert swarm.most_moving == 1
    await swarm.end()


async def test_one_who_says_for_ever_that_it_moves_keeps_no_hole_open() -> None:
    """Two servers hold the same half of the model; a stranger means to move to that half, and says so anew again and
    again."""
    swarm = Swarm(3, 20, (10,) * 3)
    liar, *others = swarm.members
    for member in others:
        member.held.append(Choice(Span(0, 10), "", 0.0, 0.0))
        member.announcer.amend(start=0, end=10)
        member.start()

    async def lie() -> None:
        while True:
            intent = Intent(0, 10, swarm.clock.wall_s())
            await liar.announcer.publish(state=State.DRAINING, start=0, end=10, intent=intent)
            await swarm.clock.sleep(10.0)

    lying = asyncio.create_task(lie())
    await swarm.clock.advance(MOST_HELD_UP / 2 * CONFIG.rebalance_every_s)
    assert {member.span for member in others} == {Span(0, 10)}, "one at a time"
    await swarm.clock.advance((MOST_HELD_UP + 4) * CONFIG.rebalance_every_s * (1 + CONFIG.jitter))
    assert sorted(member.span.start for member in others) == [0, 10]
    lying.cancel()
    await asyncio.gather(lying, return_exceptions=True)
    await swarm.end()


async def test_a_restart_takes_the_same_layers_even_if_everybody_restarts() -> None:
    swarm = Swarm(1, 30, (10,) * 6)
    remembered = [Span(20, 30), Span(0, 10), Span(10, 20), Span(10, 20), Span(20, 30), Span(0, 10)]
    joins = [member.join(swarm.dice.random(), span) for member, span in zip(swarm.members, remembered, strict=True)]
    await swarm.clock.run(_all(*joins))
    assert [member.span for member in swarm.members] == remembered
    assert {member.held[0].why for member in swarm.members} == {"it held them before"}


@pytest.mark.parametrize("after_s", [0.0, 9.0, 18.0, 27.0, 36.0, 50.0, 90.0])
async def test_a_killed_server_that_is_started_again_takes_its_place_at_once(after_s: float) -> None:
    """Its spare may be about to take it: whenever it comes back, all layers are held, and nobody moves twice."""
    swarm = Swarm(int(after_s), 30, (10,) * 4)
    await swarm.all_join(within_s=20.0)
    for member in swarm.members:
        member.start()
    await swarm.clock.advance(60.0)
    spans = [member.span for member in swarm.members]
    only = next(member for member in swarm.members if spans.count(member.span) == 1)
    await only.kill()
    swarm.members.remove(only)
    await swarm.clock.advance(after_s)
    again = Member(swarm, only.number, only.capacity, only.power)
    again.announcer.amend(instance=100)
    began_s = swarm.clock.monotonic_s()
    await swarm.clock.run(again.join(remembered=only.span))
    if after_s < METRICS_LIFETIME_S:
        assert again.span == only.span
        assert swarm.clock.monotonic_s() - began_s <= 5 * DELAY_S, "it waits for nobody"
    swarm.members.append(again)
    again.start()
    await swarm.clock.advance(8 * CONFIG.rebalance_every_s)
    assert missing_layers([member.span for member in swarm.members], 30) == []
    assert sum(len(member.held) - 1 for member in swarm.members) <= 2
    assert swarm.most_moving <= 1
    await swarm.end()


async def test_alone_it_asks_nobody() -> None:
    swarm = Swarm(1, 30, (12,))
    [only] = swarm.members
    began_s = swarm.clock.monotonic_s()
    await swarm.clock.run(only.placement.join(alone=True))
    assert only.announced.span == Span(0, 12)
    assert swarm.clock.monotonic_s() - began_s <= 4 * DELAY_S


async def test_what_is_cancelled_is_not_meant_any_more() -> None:
    """A server that is told to stop in the middle of a claim to move goes as any other does."""
    swarm = Swarm(3, 20, (10, 10))
    spare, other = swarm.members
    for member in swarm.members:
        await swarm.clock.run(member.join())
    await swarm.clock.run(other.announcer.publish(state=State.ONLINE, start=10, end=20))
    spare.announcer.amend(state=State.ONLINE, start=10, end=20)
    looking = asyncio.create_task(spare.placement.look())
    for _ in range(100):
        await swarm.clock.advance(0.1)
        if spare.announced.intent is not None:
            break
    assert spare.announced.intent is not None
    assert spare.announced.intent.span == Span(0, 10)
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert (spare.announced.state, spare.announced.intent) == (State.ONLINE, None)


async def test_an_outage_while_it_claims_costs_time_and_no_more() -> None:
    swarm = Swarm(2, 30, (10,))
    [only] = swarm.members
    joining = asyncio.create_task(only.placement.join())
    await swarm.clock.advance(3.0)
    swarm.store.down = True
    await swarm.clock.advance(20.0)
    assert not joining.done()
    swarm.store.down = False
    await swarm.clock.advance(20.0)
    assert joining.done()
    assert only.announced.span == joining.result().span == Span(0, 10)
    swarm.store.down = True
    with pytest.raises(NetworkError):
        await swarm.clock.run(only.placement.look())


async def test_servers_of_other_numerics_do_not_count() -> None:
    """No chain mixes them, so their layers are as good as unheld."""
    swarm = Swarm(4, 20, (10, 10))
    first, second = swarm.members
    first.announcer.amend(numerics=Numerics("bfloat16"))
    await swarm.clock.run(first.join())
    await swarm.clock.run(second.join())
    assert first.span == second.span == Span(0, 10)
    assert msgspec.structs.asdict(first.announced)["capacity_layers"] == 10
