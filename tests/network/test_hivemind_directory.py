"""The directory over real DHT nodes: several daemons in one process on loopback."""

from __future__ import annotations

import asyncio

import pytest
from directory_nodes import MODEL, OTHER, Create, identities, measured, peers_seen, signed

from swarm.core.announcement import Announcement, State
from swarm.core.errors import ConfigError, NetworkError, PeerUnreachableError
from swarm.core.ids import ModelId
from swarm.core.model_entry import ModelEntry
from swarm.core.records import shard_key, sign_record
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.dht.hivemind_gate import RecordGate
from swarm.dht.hivemind_import import DHTID, DHTLocalStorage, DHTRecord, MSGPackSerializer
from swarm.dht.judge import Judge
from swarm.dht.sharding import depth_for
from swarm.runtime.clock import SystemClock
from swarm.transport.libp2p import Libp2pTransport

PATIENCE_S = 20.0


async def test_everybody_reads_what_everybody_announced(create: Create) -> None:
    first = await create()
    nodes = [first, await create(first), await create(first)]
    client = await create(first, client_mode=True)
    servers = identities(3)
    records = [signed(identity) for identity in servers]
    assert await peers_seen(client[1]) == []
    for (_, directory), (record, announcement) in zip(nodes, records, strict=True):
        await directory.publish(record, announcement)
    for _, directory in (*nodes, client):
        found = await directory.servers(MODEL)
        assert [listing.record for listing in found] == [record for record, _ in records]
        assert [listing.announcement for listing in found] == [announcement for _, announcement in records]
        assert await directory.servers(OTHER) == []
        assert directory.dropped == 0


async def test_a_later_announcement_replaces_and_offline_removes(create: Create) -> None:
    first = await create()
    second = await create(first)
    (identity,) = identities(1)
    await first[1].publish(*signed(identity, state=State.JOINING))
    await first[1].publish(*signed(identity, lifetime_s=61, state=State.ONLINE))
    [listing] = await second[1].servers(MODEL)
    announcement = listing.announcement
    assert announcement.state is State.ONLINE
    with pytest.raises(NetworkError, match="no node"):
        await first[1].publish(*signed(identity, lifetime_s=30))
    await first[1].publish(*signed(identity, lifetime_s=62, state=State.OFFLINE))
    assert await second[1].servers(MODEL) == []


async def test_an_expired_announcement_is_gone(create: Create) -> None:
    first = await create()
    second = await create(first)
    (identity,) = identities(1)
    await first[1].publish(*signed(identity, lifetime_s=2))
    assert await peers_seen(second[1]) == [identity.peer_id]
    async with asyncio.timeout(PATIENCE_S):
        while await peers_seen(second[1]):  # noqa: ASYNC110  # hivemind reads the machine's clock
            await asyncio.sleep(0.05)
    with pytest.raises(NetworkError):
        await first[1].publish(*signed(identity, lifetime_s=-1))


async def test_no_node_stores_lies_and_a_node_that_does_is_not_believed(create: Create) -> None:
    first = await create()
    liar = await create(first)
    reader = await create(first, client_mode=True)
    victim, other = identities(2)
    record, announcement = signed(victim)
    await first[1].publish(record, announcement)
    node, key, far_s = liar[1]._node, shard_key(Announcement, str(MODEL), ""), announcement.expires_s + 100
    node.protocol.record_validator = None  # the liar's own node lets everything pass
    node.protocol.storage = DHTLocalStorage()
    forged = MSGPackSerializer.dumps(signed(other)[0])
    for value, subkey in (
        (b"wipe", None),
        (b"\x00garbage", victim.peer_id),
        (signed(other)[0], victim.peer_id),
        (record, victim.peer_id),  # the genuine record, but living longer than was signed
        (record, 7),
        ({"a": forged}, victim.peer_id),
    ):
        await node.store(key, value, far_s, subkey=subkey)
    assert await peers_seen(first[1]) == [victim.peer_id]
    assert await peers_seen(reader[1]) == [victim.peer_id]
    assert first[1].dropped >= 6
    assert reader[1].dropped >= 1
    await first[1].publish(*signed(victim, lifetime_s=90))  # and the victim can still announce
    assert await peers_seen(reader[1]) == [victim.peer_id]


async def test_a_record_of_another_model_cannot_stand_under_this_one(create: Create) -> None:
    gate = RecordGate(judge := Judge(2**20))
    (identity,) = identities(1)
    record, announcement = signed(identity, model=OTHER)

    def entry(model: ModelId, expires_s: float = announcement.expires_s) -> DHTRecord:
        return DHTRecord(
            DHTID.generate(source=shard_key(Announcement, str(model), "")).to_bytes(),
            MSGPackSerializer.dumps(identity.peer_id),
            MSGPackSerializer.dumps(record),
            expires_s,
        )

    assert gate.validate(entry(OTHER))
    assert not gate.validate(entry(MODEL))
    assert not gate.validate(entry(OTHER, announcement.expires_s + 1))
    assert not gate.validate(DHTRecord(b"", b"\xc1", b"\xc1", float("nan")))
    assert sum(judge.dropped.values()) == 3


async def test_a_dead_directory_is_an_error_for_a_client_and_comes_back(create: Create) -> None:
    first = await create()
    client = await create(first, client_mode=True)
    await first[1].close()
    await first[0].close()
    with pytest.raises(PeerUnreachableError, match=r"127\.0\.0\.1"):
        await client[1].servers(MODEL)
    with pytest.raises(NetworkError):
        await client[1].publish(*signed(identities(1)[0]))


async def test_a_server_that_lost_everybody_still_knows_itself(create: Create) -> None:
    first = await create()
    server = await create(first)
    (identity,) = identities(1)
    await server[1].publish(*signed(identity))
    await first[1].close()
    await first[0].close()
    assert await peers_seen(server[1]) == [identity.peer_id]
    await server[1].publish(*signed(identity, lifetime_s=70))


async def test_no_initial_peer_in_the_directory_is_an_error_that_names_them(create: Create) -> None:
    transport = await Libp2pTransport.create(None)
    try:
        dead = f"/ip4/127.0.0.1/tcp/1/p2p/{identities(1)[0].peer_id}"
        with pytest.raises(PeerUnreachableError, match="tcp/1/") as caught:
            await HivemindDirectory.create(transport.p2p, [dead], SystemClock())
        assert caught.value.hint
        with pytest.raises(ConfigError, match="nonsense"):
            await HivemindDirectory.create(transport.p2p, ["nonsense"], SystemClock())
    finally:
        await transport.close()


async def test_after_close_every_call_says_so_and_the_transport_lives_on(create: Create) -> None:
    transport, directory = await create()
    await directory.close()
    await directory.close()
    with pytest.raises(NetworkError, match="closed"):
        await directory.servers(MODEL)
    again = await HivemindDirectory.create(transport.p2p, [], SystemClock())
    assert await again.servers(MODEL) == []
    await again.close()


async def test_a_stranger_hides_nobody_by_what_it_stores(create: Create) -> None:
    """A cached record that outlives the stored ones, a full key, and a record that lives as long as one may."""
    first = await create()
    stranger = await create(first, client_mode=True)
    reader = await create(first, client_mode=True)
    server, *crowd = identities(1200)
    await first[1].publish(*signed(server))
    protocol, peer = stranger[1]._node.protocol, first[1]._node.protocol.p2p.peer_id
    key = DHTID.generate(source=shard_key(Announcement, str(MODEL), ""))
    made = [signed(identity, lifetime_s=600, addresses=("/dns4/" + "a" * 190,) * 12) for identity in crowd]
    for records, in_cache in ((made[:1], True), (made[:500], False), (made[500:], False)):
        stored = await protocol.call_store(
            peer,
            [key] * len(records),
            [MSGPackSerializer.dumps(record) for record, _ in records],
            [announcement.expires_s for _, announcement in records],
            subkeys=[announcement.peer for _, announcement in records],
            in_cache=in_cache,
        )
        assert stored is not None
        assert not (in_cache and any(stored))
    assert server.peer_id in await peers_seen(reader[1])
    await first[1].publish(*signed(server, lifetime_s=90))
    assert server.peer_id in await peers_seen(reader[1])


async def test_a_killed_server_loses_its_metrics_and_then_itself_and_a_clean_exit_is_seen_at_once(
    create: Create,
) -> None:
    first = await create()
    reader = await create(first, client_mode=True)
    killed, leaving = identities(2)
    for identity in (killed, leaving):
        await first[1].publish(*signed(identity, lifetime_s=60))
        await first[1].publish(*measured(identity, lifetime_s=2))
    found = await reader[1].servers(MODEL)
    assert [listing.metrics is not None for listing in found] == [True, True]
    await first[1].publish(*signed(leaving, lifetime_s=61, sequence=2, state=State.OFFLINE))
    assert await peers_seen(reader[1]) == [killed.peer_id]
    async with asyncio.timeout(PATIENCE_S):
        while (await reader[1].servers(MODEL))[0].metrics is not None:  # noqa: ASYNC110  # hivemind reads the machine's clock
            await asyncio.sleep(0.05)


async def test_a_hundred_servers_stand_under_several_keys_and_are_all_read(create: Create) -> None:
    first = await create()
    second = await create(first)
    servers = identities(100)
    depth = depth_for(len(servers))
    for number, identity in enumerate(servers):
        at = depth - number % 2  # some have not heard yet of how many they are
        await first[1].publish(*signed(identity, shard_depth=at))
        await first[1].publish(*measured(identity, shard_depth=at, lifetime_s=60))
    found = await second[1].servers(MODEL)
    assert [listing.peer for listing in found] == [identity.peer_id for identity in servers]
    assert all(listing.metrics is not None for listing in found)
    assert await second[1].shard_depth(MODEL) == depth == 2
    one = await second[1].server(MODEL, servers[7].peer_id)
    assert one == found[7]
    assert await second[1].server(MODEL, first[0].peer_id) is None
    assert second[1].dropped == 0
    assert not second[1]._node.pending_get_requests  # hivemind would keep every key that was ever asked for


async def test_the_model_index_tells_every_model_once(create: Create) -> None:
    first = await create()
    second = await create(first, client_mode=True)
    assert await second[1].models() == []
    told = []
    for identity, model in zip(identities(3), (MODEL, OTHER, MODEL), strict=True):
        entry = ModelEntry(
            model=str(model),
            peer=identity.peer_id,
            instance=1,
            sequence=1,
            expires_s=SystemClock().wall_s() + 60,
            layer_count=30,
        )
        await first[1].publish(sign_record(identity, entry), entry)
        told.append(entry)
    assert await second[1].entries() == told
    assert [(entry.model, entry.layer_count) for entry in await second[1].models()] == [
        (str(MODEL), 30),
        (str(OTHER), 30),
    ]


async def test_a_writer_goes_on_when_the_nodes_it_knew_are_gone(create: Create) -> None:
    first = await create()
    other = await create(first)
    writer = await create(first, other, client_mode=True)
    (identity,) = identities(1)
    await writer[1].publish(*signed(identity))
    await first[1].close()
    await first[0].close()
    await writer[1].publish(*signed(identity, lifetime_s=70, sequence=2))
    assert await peers_seen(other[1]) == [identity.peer_id]


async def test_reads_that_nobody_waits_for_any_more_leave_no_task_behind(create: Create) -> None:
    """hivemind, cancelled in the middle of a search, forgets tasks that wait for ever."""
    first = await create()
    reader = await create(first, client_mode=True)
    before = asyncio.all_tasks()
    for turns in range(1, 60):
        reading = asyncio.create_task(reader[1].servers(MODEL))
        for _ in range(turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await reader[1].close()
    assert asyncio.all_tasks() <= before
