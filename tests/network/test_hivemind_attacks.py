"""The attacks of tests/unit/dht/test_dht_attacks.py at real DHT nodes: an honest one, a liar's, and a reader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from directory_nodes import MODEL, Create, identities, measured, raw, signed

from swarm.core.announcement import Announcement
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.listing import Listing
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import AnyRecord, SignedRecord, key_of, shard_key, sign_record
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.dht.hivemind_import import DHTID, DHTLocalStorage, MSGPackSerializer
from swarm.dht.limits import MAX_SUBKEYS
from swarm.runtime.clock import SystemClock

ANNOUNCED, MEASURED = (shard_key(kind, str(MODEL), "") for kind in (Announcement, Metrics))
WIPE = MSGPackSerializer.dumps(b"wipe")


class Lie(NamedTuple):
    """What a liar stores: a packed value under a key, and a subkey or none."""

    key: str
    subkey: str | None
    packed: bytes
    expires_s: float


def lie(record: AnyRecord, value: bytes, *, subkey: str | None = None, expires_s: float | None = None) -> Lie:
    expires_s = record.expires_s if expires_s is None else expires_s
    return Lie(key_of(record), subkey or record.peer, MSGPackSerializer.dumps(value), expires_s)


class Scene:
    """A victim whose records an honest node holds, a liar that holds anything, and a reader that asks both."""

    def __init__(self, honest: HivemindDirectory, liar: HivemindDirectory, reader: HivemindDirectory) -> None:
        self.honest, self.liar, self.reader = honest, liar, reader
        self.victim, self.mallory, *self.crowd = identities(302)
        self.announced = signed(self.victim, sequence=5)
        self.measured = measured(self.victim, sequence=5, lifetime_s=50)

    async def start(self) -> None:
        protocol = self.liar._node.protocol
        protocol.record_validator, protocol.storage = None, DHTLocalStorage()
        await self.honest.publish(*self.announced)
        await self.honest.publish(*self.measured)
        assert await self.reader.servers(MODEL) == [self.before]

    @property
    def before(self) -> Listing:
        return Listing(self.announced[1], self.announced[0], self.measured[1])

    async def tell(self, lies: Sequence[Lie]) -> list[bool]:
        """The liar keeps the lies, to answer with, and asks the honest node to; what that says to each."""
        protocol = self.liar._node.protocol
        for key, subkey, packed, expires_s in lies:
            protocol.storage.store(DHTID.generate(source=key), packed, expires_s, subkey=subkey)
        stored = await protocol.call_store(
            self.honest._node.p2p.peer_id,
            [DHTID.generate(source=each.key) for each in lies],
            [each.packed for each in lies],
            [each.expires_s for each in lies],
            subkeys=[each.subkey for each in lies],
        )
        assert stored is not None
        return list(stored)

    async def unmoved(self) -> list[Listing]:
        """Honest node and reader see the victim as before, and it can go on announcing; what else the reader sees."""
        for directory in (self.honest, self.reader):
            seen = await directory.servers(MODEL)
            assert [listing for listing in seen if listing.peer == self.victim.peer_id] == [self.before]
        sequence, left_s = self.announced[1].sequence + 1, self.announced[1].expires_s - SystemClock().wall_s()
        self.announced = signed(self.victim, sequence=sequence, lifetime_s=left_s + 1)
        await self.honest.publish(*self.announced)
        found = await self.reader.servers(MODEL)
        assert self.before in found
        return [listing for listing in found if listing != self.before]


@pytest.fixture
async def scene(create: Create) -> Scene:
    honest = await create()
    liar = await create(honest)
    reader = await create(honest, liar, client_mode=True)
    made = Scene(honest[1], liar[1], reader[1])
    await made.start()
    return made


async def test_the_known_clobber_fails(scene: Scene) -> None:
    far_s = SystemClock().wall_s() + 1e6
    assert await scene.tell([Lie(ANNOUNCED, None, WIPE, far_s), Lie(MEASURED, None, WIPE, far_s)]) == [False, False]
    assert await scene.unmoved() == []
    honest = scene.honest._node.protocol
    cached = await scene.liar._node.protocol.call_store(
        honest.p2p.peer_id, [DHTID.generate(source=ANNOUNCED)], [WIPE], [far_s], in_cache=True
    )
    assert cached == [False]
    assert await scene.unmoved() == []


async def test_a_replay_of_an_older_sequence_number_fails(scene: Scene) -> None:
    """Even where it lives longer, and where the node that knew better has lost what it held."""
    for lifetime_s in (40.0, 500.0):
        older = signed(scene.victim, sequence=4, start=3, lifetime_s=lifetime_s)
        slower = measured(scene.victim, sequence=4, tau_s=9.0, lifetime_s=lifetime_s / 10)
        lies = [lie(older[1], older[0]), lie(slower[1], slower[0])]
        if lifetime_s < 60:
            assert await scene.tell(lies) == [False, False]
        else:
            scene.honest._node.protocol.storage.clear()
            assert await scene.tell(lies) == [True, True]
        seen = await scene.reader.servers(MODEL)
        assert seen == [scene.before]


async def test_a_forged_peer_id_fails(scene: Scene) -> None:
    wanted = signed(scene.victim, sequence=99, start=3, lifetime_s=500)[1]
    payload = msgspec.msgpack.encode(wanted)
    signature = scene.mallory.sign(RECORD_DOMAIN, payload)
    lies = [
        lie(wanted, msgspec.msgpack.encode(SignedRecord(peer, signature, payload)), subkey=subkey)
        for peer in (scene.victim.peer_id, scene.mallory.peer_id)
        for subkey in (scene.victim.peer_id, scene.mallory.peer_id)
    ]
    mine = signed(scene.mallory, lifetime_s=500)
    lies.append(lie(mine[1], mine[0], subkey=scene.victim.peer_id))
    lies.append(lie(scene.announced[1], scene.announced[0], expires_s=wanted.expires_s))
    assert not any(await scene.tell(lies))
    assert await scene.unmoved() == []


async def test_100_far_future_records_fail(scene: Scene) -> None:
    lies = []
    for identity in scene.crowd[:100]:
        for data, record in (signed(identity, lifetime_s=1e6), measured(identity, lifetime_s=300)):
            lies.append(lie(record, data))
    assert not any(await scene.tell(lies))
    assert await scene.unmoved() == []


async def test_300_subkeys_under_one_key_push_nobody_out(scene: Scene) -> None:
    made = [signed(identity, start=3) for identity in scene.crowd]
    assert len(made) == 300
    assert sum(await scene.tell([lie(record, data) for data, record in made])) == MAX_SUBKEYS - 1
    others = await scene.unmoved()
    assert {listing.announcement.start for listing in others} == {3}  # servers like any other: their peer ids are free
    assert len(scene.honest._node.protocol.storage.get(DHTID.generate(source=ANNOUNCED)).value) == MAX_SUBKEYS


async def test_nan_and_negative_metrics_fail(scene: Scene) -> None:
    absurd: list[dict[str, Any]] = [
        {"tau_s": math.nan},
        {"tau_s": -0.01},
        {"fixed_s": -0.01},
        {"uplink_mbps": math.inf},
        {"rtt_s": {scene.victim.peer_id: math.nan}},
        {"step_s": [-1.0, 0.1, 0.1, 0.1]},
    ]
    lies = []
    for identity, changes in zip(scene.crowd, absurd, strict=False):
        there, record = signed(identity), measured(identity)[1]
        await scene.honest.publish(*there)
        lies.append(lie(record, raw(identity, record, **changes)))
    assert not any(await scene.tell(lies))
    others = await scene.unmoved()
    assert [listing.metrics for listing in others] == [None] * len(absurd)


async def test_a_span_outside_the_model_fails(scene: Scene) -> None:
    lies = []
    for identity, changes in zip(
        scene.crowd, ({"end": 31}, {"start": 40, "end": 50}, {"start": 7, "end": 7}, {"start": -1}), strict=False
    ):
        record = signed(identity)[1]
        lies.append(lie(record, raw(identity, record, **changes)))
    assert not any(await scene.tell(lies))
    assert await scene.unmoved() == []


async def test_foreign_subkeys_keys_kinds_and_sizes_fail(scene: Scene) -> None:
    def of(identity: Identity, **fields: Any) -> tuple[bytes, Announcement]:
        return signed(identity, lifetime_s=500, **fields)

    data, record = of(scene.mallory)
    deep = of(scene.mallory, shard_depth=1)[1]
    wide = raw(scene.mallory, record, unknown="u" * 4096)
    far_s = record.expires_s
    packed = MSGPackSerializer.dumps(data)
    lies = [
        lie(record, data, subkey=scene.victim.peer_id),
        lie(record, wide),
        Lie(MEASURED, record.peer, packed, far_s),
        Lie(f"{ANNOUNCED}/0", record.peer, packed, far_s),
        Lie(ANNOUNCED, record.peer, MSGPackSerializer.dumps(sign_record(scene.mallory, deep)), deep.expires_s),
        Lie(ANNOUNCED, record.peer, b"\xc1", far_s),
        Lie(ANNOUNCED, record.peer, MSGPackSerializer.dumps({"a": data}), far_s),
        Lie(ANNOUNCED, record.peer, packed, math.nan),
        Lie(ANNOUNCED, record.peer, packed, far_s + METRICS_LIFETIME_S),
    ]
    assert not any(await scene.tell(lies))
    assert await scene.unmoved() == []
