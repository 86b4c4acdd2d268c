"""A server's owner reads in its log what it is accused of, and nobody can fill that log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterator

import pytest
from harness import Node, Swarm
from proofs_at_hand import evidence_against, fraud_against, signed_accusation

from swarm.client.judging.accuser import Accuser
from swarm.client.judging.seat import Seat
from swarm.core.accusation import ProofRef
from swarm.dht.memory import MemoryDirectory
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.server.self_watch import LOOK_EVERY_S, MAX_TOLD


@pytest.fixture
def store(swarm: Swarm) -> Iterator[ReputationStore]:
    with ReputationStore(IN_MEMORY, swarm.clock) as opened:
        yield opened


async def accuser(swarm: Swarm, store: ReputationStore) -> Accuser:
    identity = swarm.identity()
    transport, directory = swarm.network.transport(identity), MemoryDirectory(swarm.store)
    made = Accuser(Seat(transport, directory, swarm.clock, swarm.files.model_id, store), identity)
    await made.serve()
    return made


async def accused(swarm: Swarm, node: Node, *proofs: ProofRef) -> None:
    holder = swarm.identity()
    value, record = signed_accusation(
        holder, node.identity, swarm.files.model_id, swarm.clock.wall_s(), **({"proofs": proofs} if proofs else {})
    )
    await MemoryDirectory(swarm.store).publish(value, record)


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    watch = [record for record in caplog.records if record.name == "swarm.server.self_watch"]
    return [record.getMessage() for record in watch if record.levelno >= level]


async def test_each_accusation_is_told_once_with_what_it_says(
    swarm: Swarm, node: Node, store: ReputationStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    voice = await accuser(swarm, store)
    evidence = evidence_against(node.identity, swarm.files.model_id)
    await accused(swarm, node)
    await voice.accuse(node.peer, "fraud", proof := fraud_against(node.identity, swarm.files.model_id))
    await asyncio.sleep(3 * LOOK_EVERY_S + 1)
    lines = told(caplog)
    assert len(lines) == 2
    assert any("two different receipts" in line and digest_of(evidence) in line for line in lines)
    assert any("layers 0:1 and rows 0:32" in line and digest_of(proof) in line for line in lines)
    assert all(node.peer not in line.split(" accuses ")[0] for line in lines)
    assert not node.server.fatal.done()


async def test_a_proof_that_is_not_to_be_had_or_proves_nothing(
    swarm: Swarm, node: Node, store: ReputationStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await accused(swarm, node, ProofRef(b"n" * 32, 100))
    voice = await accuser(swarm, store)
    digest = store.keep_proof(node.peer, "fraud", b"rubbish")
    value, record = signed_accusation(
        voice._identity, node.identity, swarm.files.model_id, swarm.clock.wall_s(),
        proofs=(ProofRef(digest, 7),),
    )  # fmt: skip
    await MemoryDirectory(swarm.store).publish(value, record)
    await asyncio.sleep(3 * LOOK_EVERY_S + 1)
    [missing] = told(caplog)
    assert "says to have proof 6e6e6e6e6e6e6e6e" in missing
    assert any("proves nothing" in line for line in told(caplog, logging.INFO))


async def test_attack_a_log_full_of_accusations(swarm: Swarm, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(MAX_TOLD + 20):
        await accused(swarm, node, ProofRef(number.to_bytes(32, "big"), 100))
    await asyncio.sleep(10 * LOOK_EVERY_S)
    assert len(told(caplog)) <= MAX_TOLD
    await swarm.answers()


async def test_a_directory_that_is_down_breaks_no_server(swarm: Swarm, node: Node) -> None:
    swarm.store.down = True
    await asyncio.sleep(3 * LOOK_EVERY_S)
    swarm.store.down = False
    await asyncio.sleep(LOOK_EVERY_S)
    assert not node.server.fatal.done()


def digest_of(proof: bytes) -> str:
    return hashlib.sha256(proof).hexdigest()[:16]
