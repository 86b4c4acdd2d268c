"""What reading costs and remembers, and what happens when a lookup fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
from records_at_hand import announced

from swarm.core.announcement import Announcement
from swarm.core.errors import BadRecordError, NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import key_of, sign_record
from swarm.dht.judge import Judge
from swarm.dht.merge import Newest, supersedes
from swarm.dht.options import DirectoryOptions
from swarm.dht.reader import FETCHES, KEYS_PER_FETCH, Reader
from swarm.runtime.clock import VirtualClock

MODEL = ModelId.parse("demo@main#0123456789abcdef")
NOW_S = VirtualClock().wall_s()


def announcement(identity: Identity, **changes: object) -> Announcement:
    return announced(identity.peer_id, MODEL, NOW_S, **changes)


class Network:
    """Answers lookups from a dictionary; counts them, slows them down, or fails."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.held: dict[str, list[tuple[str, bytes]]] = {}
        self.asked: list[Sequence[str]] = []
        self.flying = self.most_flying = 0
        self.fail_after = 10**9

    def hold(self, count: int, depth: int) -> None:
        for n in range(count):
            identity = Identity(n.to_bytes(32, "big"))
            record = announcement(identity, shard_depth=depth)
            self.held.setdefault(key_of(record), []).append((identity.peer_id, sign_record(identity, record)))

    async def fetch(self, keys: Sequence[str]) -> dict[str, list[tuple[str, bytes]]]:
        self.asked.append(keys)
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        await self.clock.sleep(0.1)
        self.flying -= 1
        if len(self.asked) > self.fail_after:
            raise NetworkError("the network is down")
        return {key: self.held[key] for key in keys if key in self.held}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def network(clock: VirtualClock) -> Network:
    return Network(clock)


@pytest.fixture
def reader(clock: VirtualClock, network: Network) -> Reader:
    return Reader(network.fetch, Judge(2**20), clock, DirectoryOptions(), Random(3))


async def test_a_small_swarm_costs_one_round_and_then_two_keys(
    clock: VirtualClock, network: Network, reader: Reader
) -> None:
    network.hold(5, 0)
    began_s = clock.monotonic_s()
    assert len(await clock.run(reader.servers(MODEL))) == 5
    assert clock.monotonic_s() - began_s == pytest.approx(0.1)  # the survey runs beside it
    assert sum(map(len, network.asked)) == 6 + 12
    network.asked.clear()
    await clock.run(reader.servers(MODEL))
    assert [len(keys) for keys in network.asked] == [2]
    await clock.advance(4.0)
    network.asked.clear()
    await clock.run(reader.servers(MODEL))
    assert [len(keys) for keys in network.asked] == [6]
    await clock.advance(60.0)
    network.asked.clear()
    assert await clock.run(reader.servers(MODEL)) == []  # all expired: the fake holds them on
    assert sum(map(len, network.asked)) == 6 + 12


async def test_a_large_swarm_is_read_a_bounded_number_of_keys_at_a_time(
    clock: VirtualClock, network: Network, reader: Reader
) -> None:
    network.hold(600, 5)
    assert len(await clock.run(reader.servers(MODEL))) == 600
    assert reader.shard_depth(MODEL) == 5
    assert max(map(len, network.asked)) <= KEYS_PER_FETCH
    assert network.most_flying == FETCHES
    network.asked.clear()
    await clock.run(reader.server(MODEL, Identity(bytes(32)).peer_id))
    assert [len(keys) for keys in network.asked] == [6]


async def test_a_lookup_that_fails_is_an_error_not_a_hole_and_leaves_nothing_running(
    clock: VirtualClock, network: Network, reader: Reader
) -> None:
    network.hold(600, 5)
    network.fail_after = 8
    with pytest.raises(NetworkError, match="down"):
        await clock.run(reader.servers(MODEL))
    assert network.flying == 0
    assert len(asyncio.all_tasks()) == 1
    network.fail_after = 10**9
    assert len(await clock.run(reader.servers(MODEL))) == 600


async def test_strangers_at_a_usual_depth_do_not_hide_a_large_swarm(
    clock: VirtualClock, network: Network, reader: Reader
) -> None:
    network.hold(600, 5)
    for n in range(1000, 1020):
        identity = Identity(n.to_bytes(32, "big"))
        record = announcement(identity)
        network.held.setdefault(key_of(record), []).append((identity.peer_id, sign_record(identity, record)))
    assert len(await clock.run(reader.servers(MODEL))) == 620


def test_a_signature_is_checked_once_and_memory_is_bounded() -> None:
    judge = Judge(2000)
    identities = [Identity(n.to_bytes(32, "big")) for n in range(20)]
    values = [sign_record(identity, announcement(identity)) for identity in identities]
    first = [judge.read(identities[0].peer_id, values[0], now_s=NOW_S) for _ in range(2)]
    assert first[0][0] is first[1][0]
    for identity, value in zip(identities, values, strict=True):
        judge.read(identity.peer_id, value, now_s=NOW_S)
    assert sum(len(value) for _, value in judge._known) == judge._bytes <= 2000
    assert judge.read(identities[0].peer_id, values[0], now_s=NOW_S)[0] is not first[0][0]  # forgotten, and read anew
    with pytest.raises(BadRecordError, match="expires"):
        judge.read(identities[0].peer_id, values[0], now_s=NOW_S + 60)
    with pytest.raises(BadRecordError, match="expires"):
        judge.read(identities[0].peer_id, values[0], now_s=NOW_S - 1000)


def test_what_has_expired_is_forgotten() -> None:
    judge = Judge(2**20)
    key = key_of(announcement(Identity(bytes(32))))
    for n in range(20):
        identity = Identity(n.to_bytes(32, "big"))
        record = announcement(identity, expires_s=NOW_S + 10 + 10 * n)
        admitted = judge.admit(Announcement, key, identity.peer_id, sign_record(identity, record), now_s=NOW_S + 1)
        assert admitted == record
    assert judge.admit(Announcement, key, "nobody", b"garbage", now_s=NOW_S + 100) is None
    assert len(judge._known) == 10
    assert sum(len(value) for _, value in judge._known) == judge._bytes


def test_a_judge_says_how_long_each_kind_may_live() -> None:
    judge, identity = Judge(2**20), Identity(bytes(32))
    metrics = Metrics(
        model=str(MODEL),
        peer=identity.peer_id,
        instance=1,
        sequence=1,
        expires_s=NOW_S + 1e6,
        tau_s=0.1,
        fixed_s=0.1,
        kv_free_tokens=1,
    )
    for record in (announcement(identity, expires_s=NOW_S + 1e6), metrics):
        value = sign_record(identity, record)
        assert judge.longest_s(identity.peer_id, value, expires_s=record.expires_s) == record.LIFETIME_S
    assert judge.longest_s(identity.peer_id, b"garbage", expires_s=NOW_S) == 0.0


def test_the_newer_record_is_the_later_one_of_an_instance_or_the_instance_that_lasts() -> None:
    alice = Identity(bytes(32))
    one = announcement(alice)
    assert supersedes(announcement(alice, sequence=2, expires_s=NOW_S + 10), one)
    assert supersedes(announcement(alice, expires_s=NOW_S + 61), one)
    assert not supersedes(announcement(alice, sequence=0, expires_s=NOW_S + 99), one)
    assert supersedes(announcement(alice, sequence=0, instance=2, expires_s=NOW_S + 61), one)
    assert not supersedes(announcement(alice, sequence=9, instance=2, expires_s=NOW_S + 59), one)
    assert not supersedes(one, one)


def test_more_servers_than_are_remembered_are_shown_while_they_are_found() -> None:
    newest = Newest(limit=3)
    found = [(announcement(Identity(n.to_bytes(32, "big"))), b"%d" % n) for n in range(5)]
    name = str(MODEL)
    assert len(newest.take(Announcement, name, found[:3], NOW_S)) == 3
    assert len(newest.take(Announcement, name, found, NOW_S)) == 5
    kept = newest.take(Announcement, name, [], NOW_S)
    assert {signed for _, signed in kept} == {b"0", b"1", b"2"}
    assert newest.take(Announcement, name, [], NOW_S + 60) == []
    assert newest.take(Metrics, name, [], NOW_S) == []


def test_a_clock_that_is_ahead_keeps_no_dead_server_alive() -> None:
    """Its last metrics say they live for a minute more; ten seconds after they were first seen they do not count."""

    def metrics(sequence: int, expires_s: float) -> Metrics:
        told = {"instance": 1, "tau_s": 0.1, "fixed_s": 0.0, "kv_free_tokens": 9}
        return Metrics(model=name, peer=peer, sequence=sequence, expires_s=expires_s, **told)  # type: ignore[arg-type]

    newest, name, peer = Newest(), str(MODEL), Identity(bytes(32)).peer_id
    ahead = metrics(1, NOW_S + 60)
    assert newest.take(Metrics, name, [(ahead, b"last")], NOW_S) == [(ahead, b"last")]
    assert newest.take(Metrics, name, [(ahead, b"last")], NOW_S + METRICS_LIFETIME_S - 0.1) == [(ahead, b"last")]
    assert newest.take(Metrics, name, [(ahead, b"last")], NOW_S + METRICS_LIFETIME_S) == []
    later = metrics(2, NOW_S + 75)
    assert newest.take(Metrics, name, [(later, b"again")], NOW_S + 15) == [(later, b"again")]
