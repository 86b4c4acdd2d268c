"""Accusations at real DHT nodes: read about whom one asks, false evidence stored by none, a flood pushes none out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from directory_nodes import MODEL, Create, identities, raw
from proofs_at_hand import evidence_against, fraud_against, signed_accusation

from swarm.client.judging.accuser import Accuser
from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.core.accusation import Accusation, ProofRef
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.records import key_of
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.dht.hivemind_import import DHTID, DHTLocalStorage, MSGPackSerializer
from swarm.dht.reader import MAX_ACCUSERS
from swarm.runtime.clock import SystemClock
from swarm.runtime.identity import load_or_create
from swarm.runtime.reputation import IN_MEMORY, ReputationStore

PROOF = ProofRef(b"p" * 32, 1000)


def made(holder: Identity, subject: Identity, **changes: object) -> tuple[bytes, Accusation]:
    return signed_accusation(holder, subject, MODEL, SystemClock().wall_s(), **changes)


async def test_accusations_travel_and_lies_do_not(create: Create) -> None:
    honest = await create()
    liar = await create(honest)
    _, reader = await create(honest, liar, client_mode=True)
    holder, suspect, victim, mallory, *crowd = identities(304)
    value, proven = made(holder, suspect)
    await honest[1].publish(value, proven)
    pointing, pointed = made(holder, victim, proofs=(PROOF,), addresses=("/ip4/192.0.2.1/tcp/1",))
    await reader.publish(pointing, pointed)  # a client stores as well
    assert await reader.accusations(MODEL, [suspect.peer_id]) == [proven]
    found = await liar[1].accusations(MODEL, [victim.peer_id, suspect.peer_id, mallory.peer_id])
    assert sorted(found, key=lambda record: record.subject) == sorted((proven, pointed), key=lambda one: one.subject)

    protocol = liar[1]._node.protocol
    protocol.record_validator, protocol.storage = None, DHTLocalStorage()
    record = made(mallory, victim)[1]
    lies = [
        (raw(mallory, record, evidence=evidence), record)
        for evidence in (evidence_against(suspect, MODEL), evidence_against(victim, "other@main#0123456789abcdef"))
    ]
    lies.append((raw(holder, proven, subject=victim.peer_id, evidence=proven.evidence), record))
    assert not any(await stored(liar[1], honest[1], lies))
    flood = [made(one, victim, proofs=(PROOF,)) for one in crowd]
    assert sum(await stored(liar[1], honest[1], flood)) < len(flood)
    assert await reader.accusations(MODEL, [suspect.peer_id]) == [proven]
    about_victim = await reader.accusations(MODEL, [victim.peer_id])
    assert len(about_victim) == MAX_ACCUSERS
    later, renewed = made(holder, victim, proofs=(PROOF,), sequence=2, expires_s=pointed.expires_s + 50)
    await reader.publish(later, renewed)


async def test_a_proof_is_found_fetched_and_told_again_over_real_streams(create: Create, tmp_path: Path) -> None:
    """Libp2p, the DHT and two stores; only what the weights would say is made up."""
    suspect = identities(1)[0]
    proof = fraud_against(suspect, MODEL, hidden=4096)  # some 500 kB: many parts
    first = await create()
    clock, juries, stores = SystemClock(), [], []

    async def listed() -> list[PeerId]:
        return [suspect.peer_id]

    async def verify(data: bytes) -> None:
        assert data == proof

    for number in range(2):
        identity = load_or_create(tmp_path / str(number))
        transport, directory = await create(first, key=tmp_path / str(number))
        store = ReputationStore(IN_MEMORY, clock)
        seat = Seat(transport, directory, clock, MODEL, store)
        voice = Accuser(seat, identity)
        await voice.serve()
        juries.append(Jury(seat, listed, accuser=voice, verify=verify))
        stores.append(store)
    assert await juries[0].hold("fraud", proof)
    await juries[1].look()
    _, late = await asyncio.wait(juries[1]._judging, timeout=60)
    assert not late
    assert len(stores[1].standing(suspect.peer_id).strikes) == 1
    assert len(await first[1].accusations(MODEL, [suspect.peer_id])) == 2
    assert [kept.digest for kept in stores[1].proofs()] == [kept.digest for kept in stores[0].proofs()]
    for jury, store in zip(juries, stores, strict=True):
        await jury.close()
        store.close()


async def stored(
    liar: HivemindDirectory, honest: HivemindDirectory, lies: list[tuple[bytes, Accusation]]
) -> list[bool]:
    """The liar keeps them, to answer with, and asks the honest node to; what that says to each."""
    protocol = liar._node.protocol
    keys = [DHTID.generate(source=key_of(record)) for _, record in lies]
    packed = [MSGPackSerializer.dumps(value) for value, _ in lies]
    expiries_s, subkeys = [record.expires_s for _, record in lies], [record.peer for _, record in lies]
    for entry in zip(keys, packed, expiries_s, subkeys, strict=True):
        protocol.storage.store(*entry[:3], subkey=entry[3])
    answer = await protocol.call_store(honest._node.p2p.peer_id, keys, packed, expiries_s, subkeys=subkeys)
    assert answer is not None
    return list(answer)
