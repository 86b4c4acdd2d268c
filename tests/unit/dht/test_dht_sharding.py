"""Records spread over keys: nobody is lost, no key overflows, nobody writes too often."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_at_hand import announced

from swarm.core.announcement import Announcement, State
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import key_of, shard_of, sign_record
from swarm.dht.limits import MAX_KEY_BYTES, MAX_SUBKEYS
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.dht.sharding import (
    MAX_DEPTH,
    PATHS,
    Spread,
    announce_interval_s,
    depth_for,
    depth_range,
    estimate,
    inhabited_depth,
    metrics_interval_s,
    metrics_lifetime_s,
    most_servers,
    sample_shards,
    scouting_shards,
    shards_at,
)
from swarm.runtime.clock import VirtualClock

MODEL = ModelId.parse("demo@main#0123456789abcdef")
MANY = 10_000


def announcement(peer: str, now_s: float, depth: int, **changes: object) -> Announcement:
    """As large as they are."""
    fields: dict[str, object] = {
        "addresses": ("/ip4/203.0.113.7/tcp/31337", "/ip4/203.0.113.7/udp/31337/quic-v1"),
        "capacity_layers": 12,
        "power_layers_per_s": 100.0,
        "region": "region",
        "software": "swarm",
        "shard_depth": depth,
    }
    return announced(peer, MODEL, now_s, **{**fields, **changes})


def metrics(peer: str, now_s: float, depth: int, peers: Sequence[str]) -> Metrics:
    return Metrics(
        model=str(MODEL),
        peer=peer,
        instance=1,
        sequence=1,
        expires_s=now_s + 60,
        shard_depth=depth,
        tau_s=0.001,
        fixed_s=0.002,
        step_s=(0.01, 0.012, 0.015, 0.02),
        kv_free_tokens=100_000,
        uplink_mbps=100.0,
        rtt_s=dict.fromkeys(peers, 0.05),
    )


@given(st.integers(1, 2**15))
def test_the_depth_is_that_of_the_formula(servers: int) -> None:
    assert depth_for(servers) == max(0, math.ceil(math.log2(servers / 32)))


def test_the_depth_has_bounds() -> None:
    assert depth_for(0) == 0
    assert depth_for(10**9) == MAX_DEPTH
    assert list(depth_range(0)) == [0, 1]
    assert list(depth_range(9)) == [8, 9, 10]
    assert list(depth_range(MAX_DEPTH)) == [MAX_DEPTH - 1, MAX_DEPTH]


def test_the_most_servers_of_a_depth_are_the_last_of_it() -> None:
    for depth in range(MAX_DEPTH):
        assert depth_for(most_servers(depth)) == depth
        assert depth_for(most_servers(depth) + 1) == depth + 1


@given(st.integers(0, 8), st.text(alphabet="abcdef0123456789", min_size=1, max_size=20))
def test_every_peer_has_one_shard_of_each_depth_inside_that_of_the_depth_before(depth: int, peer: str) -> None:
    assert shard_of(peer, depth) in shards_at(depth)
    assert shard_of(peer, depth + 1)[:-1] == shard_of(peer, depth)
    assert len(shards_at(depth)) == len(set(shards_at(depth))) == 2**depth


@given(st.lists(st.integers(0, 6), min_size=1, max_size=200), st.integers(0, 6))
def test_an_estimate_over_all_shards_counts_every_peer_once(depths: list[int], depth: int) -> None:
    stored = {f"peer {n}": {own, own + 1} for n, own in enumerate(depths)}  # in two depths each
    paths = shards_at(depth_range(depth)[-1])
    shards = set(sample_shards(depth, paths))
    found = [peer for peer, at in stored.items() for own in at if shard_of(peer, own) in shards]
    assert estimate(found, depth, paths) == sum(not at.isdisjoint(depth_range(depth)) for at in stored.values())


def test_a_few_shards_tell_where_the_servers_are_and_how_many() -> None:
    chance, errors = Random(1), []
    peers = [f"peer {n}" for n in range(MANY)]
    stored: dict[str, list[str]] = {}
    for peer in peers:
        stored.setdefault(shard_of(peer, chance.choice((8, 9, 9, 10))), []).append(peer)
    for _ in range(200):
        paths = [f"{chance.getrandbits(MAX_DEPTH):0{MAX_DEPTH}b}" for _ in range(PATHS)]
        depth = inhabited_depth({shard: len(stored.get(shard, ())) for shard in scouting_shards(paths[0])})
        assert depth in (8, 9, 10)
        shards = sample_shards(9, paths)
        assert len({*shards, *scouting_shards(paths[0])}) <= 60
        errors.append(estimate([peer for shard in shards for peer in stored.get(shard, ())], 9, paths) / MANY - 1)
    assert max(map(abs, errors)) < 0.4  # a depth off by two takes a factor of two and more
    assert abs(sum(errors)) / len(errors) < 0.03


@pytest.mark.parametrize("servers", [1, 32, 400, 401, 1600, 2000, 2001, 5000, MANY])
@pytest.mark.parametrize("base_s", [1.0, 2.0, 4.0])
def test_all_writes_of_a_model_stay_under_500_a_second(servers: int, base_s: float) -> None:
    every_s = metrics_interval_s(servers, base_s)
    assert servers / every_s + servers / announce_interval_s(servers, 20.0) <= 500
    assert every_s >= base_s
    assert 2 * every_s < metrics_lifetime_s(every_s) <= Metrics.LIFETIME_S


def test_a_swarm_of_up_to_1600_loses_nothing_of_its_pace() -> None:
    assert metrics_interval_s(1600, 4.0) == 4.0
    assert metrics_interval_s(400, 1.0) == 1.0
    assert metrics_lifetime_s(4.0) == METRICS_LIFETIME_S
    assert metrics_interval_s(MANY, 1.0) == 25.0
    assert announce_interval_s(2000, 20.0) == 20.0


def spread() -> Spread:
    return Spread(survey_every_s=60.0, neighbours_every_s=4.0)


def test_a_count_that_swings_around_a_threshold_moves_nobody_to_and_fro() -> None:
    one = spread()
    for servers in [60, 64, 65, 64, 63, 66, 60, 50, 65]:
        one.counted(servers)
    assert one.depth == 2
    one.counted(48)
    assert one.depth == 1


def test_a_poor_read_moves_by_one_and_a_survey_to_where_the_records_are() -> None:
    one = spread()
    one.surveyed(9, 0.0)
    assert one.depth == 9
    one.counted(3)
    assert one.depth == 8
    one.surveyed(9, 60.0)  # which is read as it is
    assert one.depth == 8
    one.surveyed(2, 120.0)
    assert one.depth == 2
    one.counted(MANY)
    assert one.depth == 9


def test_depths_beside_the_usual_are_read_every_few_seconds_or_while_servers_write_there() -> None:
    one = spread()
    assert one.survey_due(0.0)
    one.surveyed(0, 0.0)
    assert not one.survey_due(59.9)
    assert one.survey_due(60.0)
    both = ["", "0", "1"]
    assert one.to_read(0.0) == both
    one.was_read(0, both, 0.0)
    assert one.to_read(3.9) == [""]
    one.was_read(0, [""], 3.9)
    assert one.to_read(4.0) == both
    one.was_read(0, both, 4.0)
    one.counted(22, {0: 21, 1: 1})
    assert one.to_read(4.1) == both
    one.counted(22, {0: 22})
    assert one.to_read(5.0) == [""]
    one.counted(40, {0: 40})
    assert one.to_read(5.0) == [*both, *shards_at(2)]
    one.was_read(1, one.to_read(5.0), 5.0)
    one.counted(100, {0: 60, 1: 40})
    one.was_read(2, one.to_read(6.0), 6.0)
    assert one.to_read(7.0) == [*both, *shards_at(2)]  # those at 0 have not heard of it
    one.counted(100, {0: 4, 1: 1, 2: 95})
    assert one.to_read(7.0) == ["0", "1", *shards_at(2)]


async def test_10000_servers_are_all_found_though_writers_disagree_about_the_depth() -> None:
    clock = VirtualClock()
    store, now_s, chance = MemoryDirectoryStore(clock), clock.wall_s(), Random(7)
    identities = [Identity(n.to_bytes(32, "big")) for n in range(MANY)]
    known = [identity.peer_id for identity in identities[:16]]
    size, subkeys = Counter[str](), Counter[str]()
    writer = MemoryDirectory(store)
    for identity in identities:
        depth = chance.choice((8, 9, 9, 10))
        for record in (
            announcement(identity.peer_id, now_s, depth),
            metrics(identity.peer_id, now_s, depth, known),
        ):
            signed = sign_record(identity, record)
            await writer.publish(signed, record)
            size[key_of(record)] += len(signed) + 96
            subkeys[key_of(record)] += 1
    assert max(subkeys.values()) <= MAX_SUBKEYS / 2
    assert max(size.values()) <= MAX_KEY_BYTES / 2

    reader = MemoryDirectory(store)
    found = await reader.servers(MODEL)
    assert [listing.peer for listing in found] == sorted(identity.peer_id for identity in identities)
    assert all(listing.metrics is not None for listing in found)
    assert await reader.shard_depth(MODEL) == 9
    assert reader.dropped == {}

    # One that needs only itself asks few keys, and still learns how deep to write.
    asked: list[str] = []
    fetch = writer._reader._fetch

    async def counted(keys: Sequence[str]) -> dict[str, list[tuple[str, bytes]]]:
        asked.extend(keys)
        return dict(await fetch(keys))  # type: ignore[arg-type]

    writer._reader._fetch = counted
    own = await writer.server(MODEL, identities[5].peer_id)
    assert own is not None
    assert own.metrics is not None
    assert await writer.shard_depth(MODEL) in (8, 9, 10)
    assert len(asked) <= 70


class Crowd:
    """Servers that join, announce at the depth that their view of the swarm says, and leave at the depth they have.

    Four views, read at different moments, stand for those of all servers.
    """

    def __init__(self, clock: VirtualClock, store: MemoryDirectoryStore) -> None:
        self.clock = clock
        self.views = [MemoryDirectory(store) for _ in range(4)]
        self.live: dict[Identity, Announcement] = {}

    async def announce(self, identity: Identity, **changes: object) -> None:
        known, view = self.live.get(identity), self.view_of(identity)
        sequence = known.sequence + 1 if known is not None else 0
        depth = known.shard_depth if known is not None and changes else await view.shard_depth(MODEL)
        expires_s = self.clock.wall_s() + 60.0 + 0.001 * sequence
        record = announcement(
            identity.peer_id, self.clock.wall_s(), depth, sequence=sequence, expires_s=expires_s, **changes
        )
        await view.publish(sign_record(identity, record), record)
        self.live[identity] = record

    async def leave(self, identity: Identity) -> None:
        await self.announce(identity, state=State.OFFLINE)
        del self.live[identity]

    async def round(self) -> None:
        """All announce, those of one view after the other; each view is read in between."""
        for view in self.views:
            for identity in list(self.live):
                if self.view_of(identity) is view:
                    await self.announce(identity)
            await self.clock.advance(5.0)
            await view.servers(MODEL)

    def view_of(self, identity: Identity) -> MemoryDirectory:
        return self.views[identity.public_key[0] % len(self.views)]


async def test_a_swarm_that_grows_and_shrinks_is_seen_whole_at_every_moment() -> None:
    clock = VirtualClock()
    store = MemoryDirectoryStore(clock)
    crowd, reader = Crowd(clock, store), MemoryDirectory(store)
    joining = iter([Identity(n.to_bytes(32, "big")) for n in range(1, 213)])
    most = 0

    async def check(by: MemoryDirectory) -> None:
        assert {listing.peer for listing in await by.servers(MODEL)} == {one.peer_id for one in crowd.live}

    for newcomers in (1, 31, 60, 120):
        for identity in (next(joining) for _ in range(newcomers)):
            await crowd.announce(identity)
        await check(reader)
        await crowd.round()
        await check(reader)
        await check(MemoryDirectory(store))
        most = max(most, *(len(store.read(key)) for key in store._entries))
    assert await reader.shard_depth(MODEL) == 3
    assert most < MAX_SUBKEYS
    while len(crowd.live) > 5:
        for identity in list(crowd.live)[: len(crowd.live) // 2]:
            await crowd.leave(identity)
        await check(reader)  # a clean exit is gone at once
        await crowd.round()
        await check(reader)
        await check(MemoryDirectory(store))
    assert await reader.shard_depth(MODEL) == 0
