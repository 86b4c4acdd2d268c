"""Accusations in the directory: whom one asks about is all one reads, and a flood of them pushes nobody's out."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from proofs_at_hand import evidence_against, signed_accusation

from swarm.core.accusation import Accusation, ProofRef
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.records import SignedRecord, accusation_key, key_of
from swarm.dht.hivemind_gate import RecordGate
from swarm.dht.hivemind_import import DHTID, DHTRecord, MSGPackSerializer
from swarm.dht.judge import Judge
from swarm.dht.limits import MAX_SUBKEYS
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.dht.reader import MAX_ACCUSERS
from swarm.runtime.clock import VirtualClock

MODEL = ModelId.parse("demo@main#0123456789abcdef")
OTHER = ModelId.parse("other@main#0123456789abcdef")
HOLDER, SECOND, SUSPECT, MALLORY = (Identity(bytes([n]) * 32) for n in (1, 2, 3, 4))
CROWD = [Identity(n.to_bytes(32, "big")) for n in range(1, 301)]
PROOF = ProofRef(bytes(32), 1000)


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryDirectoryStore(self.clock)
        self.directory = MemoryDirectory(self.store)
        self.gate = RecordGate(Judge(2**20))

    def made(self, holder: Identity, subject: Identity, **changes: Any) -> tuple[bytes, Accusation]:
        return signed_accusation(holder, subject, MODEL, self.clock.wall_s(), **changes)

    async def publish(self, holder: Identity, subject: Identity, **changes: Any) -> Accusation:
        value, record = self.made(holder, subject, **changes)
        assert self.takes(value, record)
        await self.directory.publish(value, record)
        return record

    def takes(self, value: bytes, record: Accusation, *, key: str | None = None, subkey: str | None = None) -> bool:
        """Whether an honest node stores it."""
        parts = (key or key_of(record)), (subkey or record.peer)
        entry = DHTRecord(
            DHTID.generate(source=parts[0]).to_bytes(),
            MSGPackSerializer.dumps(parts[1]),
            MSGPackSerializer.dumps(value),
            record.expires_s,
        )
        return bool(self.gate.validate(entry))

    async def read(self, *subjects: Identity, model: ModelId = MODEL) -> list[Accusation]:
        found = await MemoryDirectory(self.store).accusations(model, [one.peer_id for one in subjects])
        return sorted(found, key=lambda record: (record.subject, record.peer))


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_one_reads_about_whom_one_asks(scene: Scene) -> None:
    about = [await scene.publish(holder, SUSPECT) for holder in (HOLDER, SECOND)]
    other = await scene.publish(HOLDER, MALLORY, proofs=(PROOF,), addresses=("/ip4/192.0.2.1/tcp/1",))
    assert await scene.read(SUSPECT) == sorted(about, key=lambda record: record.peer)
    assert await scene.read(MALLORY) == [other]
    assert len(await scene.read(SUSPECT, MALLORY, HOLDER)) == 3
    assert await scene.read(SUSPECT, model=OTHER) == []
    assert await scene.read() == []
    await scene.clock.advance(200)
    assert await scene.read(SUSPECT, MALLORY) == []


async def test_a_later_record_of_a_holder_replaces_its_earlier_one(scene: Scene) -> None:
    await scene.publish(HOLDER, SUSPECT, proofs=(PROOF,))
    now_s = scene.clock.wall_s()
    later = await scene.publish(HOLDER, SUSPECT, sequence=2, expires_s=now_s + 250)
    assert await scene.read(SUSPECT) == [later]


async def test_attack_false_evidence_is_stored_by_nobody(scene: Scene) -> None:
    about_another = evidence_against(MALLORY, MODEL)
    other_model = evidence_against(SUSPECT, OTHER)
    forged = bytearray(evidence_against(SUSPECT, MODEL))
    forged[-1] ^= 1
    for evidence in (
        about_another,
        other_model,
        bytes(forged),
        b"nonsense",
        msgspec.msgpack.encode(["equivocation/1"]),
    ):
        value, record = scene.made(HOLDER, SUSPECT, evidence=evidence)
        assert not scene.takes(value, record)
        scene.store.inject(key_of(record), HOLDER.peer_id, value, expires_s=record.expires_s)
    assert await scene.read(SUSPECT) == []


async def test_attack_accusations_in_another_place_or_by_another_name(scene: Scene) -> None:
    value, record = scene.made(HOLDER, SUSPECT)
    key = accusation_key(str(MODEL), MALLORY.peer_id)
    assert not scene.takes(value, record, key=key)
    assert not scene.takes(value, record, subkey=SECOND.peer_id)
    payload = msgspec.msgpack.encode(record)
    stolen = msgspec.msgpack.encode(SignedRecord(HOLDER.peer_id, MALLORY.sign(RECORD_DOMAIN, payload), payload))
    assert not scene.takes(stolen, record)
    for lie in (value, stolen):
        scene.store.inject(key, HOLDER.peer_id, lie, expires_s=record.expires_s)
    assert await scene.read(MALLORY) == []


async def test_attack_a_flood_about_others_and_invented_ones_pushes_no_accusation_out(scene: Scene) -> None:
    kept = await scene.publish(HOLDER, SUSPECT)
    for holder in CROWD[:MAX_SUBKEYS]:
        await scene.publish(holder, MALLORY, proofs=(PROOF,))
    for invented in CROWD:
        await scene.publish(MALLORY, invented, proofs=(PROOF,))
    assert await scene.read(SUSPECT) == [kept]


async def test_attack_who_fills_his_own_key_is_accused_all_the_more_and_readers_stay_bounded(scene: Scene) -> None:
    """He hides no accusation that was there, and every reader sees that he stands accused."""
    kept = await scene.publish(HOLDER, SUSPECT)
    taken = 0
    for holder in CROWD:
        value, record = scene.made(holder, SUSPECT, proofs=(PROOF,))
        try:
            await scene.directory.publish(value, record)
            taken += 1
        except NetworkError:
            continue
    assert taken == MAX_SUBKEYS - 1
    renewed = await scene.publish(HOLDER, SUSPECT, sequence=2, expires_s=scene.clock.wall_s() + 250)
    read = [await scene.read(SUSPECT)]
    assert len(read[0]) == MAX_ACCUSERS
    scene.directory._reader._chance = Random(1)
    for _ in range(60):
        read.append(await scene.directory.accusations(MODEL, [SUSPECT.peer_id]))
    assert any(renewed in found for found in read), "by lot, so that no order can hide it"
    assert not any(kept in found for found in read)
