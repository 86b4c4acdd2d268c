"""The in-memory directory behaves as the DHT does, and can lie."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.announcement import Announcement, State
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.core.records import shard_key, sign_record
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.dht.protocol import Directory
from swarm.runtime.clock import VirtualClock

MODEL = ModelId.parse("demo@main#0123456789abcdef")
OTHER = ModelId.parse("other@main#0123456789abcdef")
ALICE, BOB = sorted((Identity(bytes([n]) * 32) for n in (1, 2)), key=lambda identity: identity.peer_id)


def signed(
    identity: Identity, clock: VirtualClock, *, lifetime_s: float = 60.0, state: State = State.ONLINE
) -> tuple[bytes, Announcement]:
    announcement = Announcement(
        model=str(MODEL),
        layer_count=30,
        peer=identity.peer_id,
        start=0,
        end=10,
        state=state,
        numerics=Numerics("float32"),
        instance=1,
        sequence=1,
        started_s=clock.wall_s() - 1000,
        expires_s=clock.wall_s() + lifetime_s,
    )
    return sign_record(identity, announcement), announcement


async def seen(directory: Directory, model: ModelId = MODEL) -> list[str]:
    return [listing.peer for listing in await directory.servers(model)]


async def test_nodes_share_what_they_announce_until_it_expires() -> None:
    clock = VirtualClock()
    store = MemoryDirectoryStore(clock)
    one, two = MemoryDirectory(store), MemoryDirectory(store)
    await one.publish(*signed(BOB, clock))
    record, announcement = signed(ALICE, clock, lifetime_s=30)
    await two.publish(record, announcement)
    assert await seen(one) == await seen(two) == [ALICE.peer_id, BOB.peer_id]
    assert (await one.servers(MODEL))[0] == Listing(announcement, record)
    assert await seen(one, OTHER) == []
    await clock.advance(30)
    assert await seen(one) == [BOB.peer_id]
    await clock.advance(30)
    assert await seen(one) == []


async def test_a_write_must_outlive_what_it_replaces() -> None:
    clock = VirtualClock()
    directory = MemoryDirectory(MemoryDirectoryStore(clock))
    await directory.publish(*signed(ALICE, clock))
    for lifetime_s in (60.0, 30.0):
        with pytest.raises(NetworkError):
            await directory.publish(*signed(ALICE, clock, lifetime_s=lifetime_s))
    await directory.publish(*signed(ALICE, clock, lifetime_s=61, state=State.OFFLINE))
    assert await seen(directory) == []
    with pytest.raises(NetworkError):
        await directory.publish(*signed(BOB, clock, lifetime_s=0))


async def test_lies_are_dropped_and_counted() -> None:
    clock = VirtualClock()
    store = MemoryDirectoryStore(clock)
    directory = MemoryDirectory(store)
    await directory.publish(*signed(BOB, clock))
    assert await seen(directory) == [BOB.peer_id]
    far_s = clock.wall_s() + 600
    key, elsewhere = (shard_key(Announcement, str(model), "") for model in (MODEL, OTHER))
    store.inject(key, ALICE.peer_id, b"garbage", expires_s=far_s)
    assert await seen(directory) == [BOB.peer_id]
    assert directory.dropped == {"BadRecordError": 1}
    store.inject(key, ALICE.peer_id, signed(BOB, clock)[0], expires_s=far_s)
    assert await seen(directory) == [BOB.peer_id]
    assert directory.dropped == {"BadRecordError": 2, "BadSignatureError": 1}
    store.inject(elsewhere, ALICE.peer_id, signed(ALICE, clock)[0], expires_s=far_s)
    assert await seen(directory, OTHER) == []
    assert directory.dropped["BadRecordError"] > 1
    await clock.advance(61)  # the store keeps it longer than its signature says
    store.inject(key, ALICE.peer_id, signed(ALICE, clock, lifetime_s=-1)[0], expires_s=far_s)
    assert await seen(directory) == []


async def test_stale_reads_show_the_past() -> None:
    clock = VirtualClock()
    directory = MemoryDirectory(MemoryDirectoryStore(clock, staleness_s=5))
    await directory.publish(*signed(ALICE, clock))
    assert await seen(directory) == []
    await clock.advance(5)
    assert await seen(directory) == [ALICE.peer_id]
    await directory.publish(*signed(ALICE, clock, lifetime_s=90, state=State.OFFLINE))
    await clock.advance(4)
    assert await seen(directory) == [ALICE.peer_id]
    await clock.advance(1)
    assert await seen(directory) == []


async def test_calls_take_their_delay_and_fail_while_down_or_closed() -> None:
    clock = VirtualClock()
    store = MemoryDirectoryStore(clock, delay_s=2)
    directory, other = MemoryDirectory(store), MemoryDirectory(store)
    reading = asyncio.create_task(directory.servers(MODEL))
    await clock.advance(1.9)
    assert not reading.done()
    await clock.advance(0.1)
    assert reading.done()
    store.delay_s, store.down = 0.0, True
    with pytest.raises(NetworkError, match="does not answer"):
        await directory.servers(MODEL)
    store.down = False
    await directory.close()
    await directory.close()
    with pytest.raises(NetworkError, match="closed"):
        await directory.publish(*signed(ALICE, clock))
    assert await seen(other) == []
