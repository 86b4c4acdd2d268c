"""Lies about servers, in virtual time: they cost those who told them, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest_asyncio
from jury_scene import CHEAT, HONEST, MODEL, OTHER, SERVERS, Scene, publish
from msgspec.structs import replace
from proofs_at_hand import signed_accusation

from swarm.client.judging.docket import MAX_TRIES, RETRY_S
from swarm.client.judging.jury import ACCUSED_S, LOOK_EVERY_S
from swarm.core.accusation import Accusation, ProofRef
from swarm.core.ids import ModelId
from swarm.transport.proofs import PART_S
from swarm.transport.protocol import Stream
from swarm.verification.standings.strikes import Policy
from swarm.wire.session import Channel

POLICY = Policy()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.end()


async def test_attack_a_framing_accuser_costs_himself_and_nobody_else(scene: Scene) -> None:
    framer, reader = [await scene.citizen() for _ in range(2)]
    await framer.voice.accuse(HONEST, "fraud", scene.fraud(1, true=False))
    await reader.jury.look()
    assert reader.store.accused() == {HONEST}
    while reader.jury._judging:
        await asyncio.wait(reader.jury._judging)
    standing = reader.store.standing(HONEST)
    assert (standing.strikes, standing.ejected) == ((), "")
    assert reader.store.accused() == frozenset()
    assert reader.store.proofs() == []
    await framer.voice.accuse(OTHER, "fraud", scene.fraud(2, true=False))
    await reader.look()
    assert reader.store.accused() == frozenset()
    assert len(reader.verified) == 1, "it is not listened to any more"


async def test_attack_a_proof_against_one_announced_against_another(scene: Scene) -> None:
    framer, reader = [await scene.citizen() for _ in range(2)]
    digest = framer.store.keep_proof(HONEST, "fraud", proof := scene.fraud(0))
    await publish(framer, HONEST, ProofRef(digest, len(proof)))
    await reader.look()
    for peer in (CHEAT, HONEST):
        assert reader.store.standing(peer).strikes == ()
    assert reader.verified == []
    assert reader.jury._docket.believes(framer.identity.peer_id) < 0


async def test_attack_rubbish_in_a_proofs_place(scene: Scene) -> None:
    framer, reader = [await scene.citizen() for _ in range(2)]
    digest = framer.store.keep_proof(HONEST, "fraud", rubbish := Random(0).randbytes(5000))
    await publish(framer, HONEST, ProofRef(digest, len(rubbish)))
    await reader.look()
    assert reader.store.standing(HONEST).strikes == ()
    assert reader.store.accused() == frozenset()
    assert reader.jury._docket.believes(framer.identity.peer_id) < 0


async def test_attack_a_holder_that_has_no_proof_or_cannot_be_reached(scene: Scene) -> None:
    liar, ghost = await scene.citizen(), await scene.citizen(serves=False)
    reader = await scene.citizen()
    await publish(liar, HONEST, ProofRef(b"n" * 32, 1000))
    await publish(ghost, OTHER, ProofRef(b"g" * 32, 1000))
    await reader.look()
    assert reader.store.accused() == {HONEST, OTHER}
    for _ in range(MAX_TRIES + 1):
        await scene.clock.sleep(RETRY_S + PART_S)
        await reader.look()
    assert len(reader.jury._docket) == 0
    for holder in (liar, ghost):
        assert reader.jury._docket.believes(holder.identity.peer_id) < 0
    await scene.clock.sleep(ACCUSED_S)
    assert reader.store.accused() == frozenset()


async def test_attack_holders_of_a_true_proof_that_do_not_give_it(scene: Scene) -> None:
    """The accused has his own crowd vouch for the digest, to be asked in the place of who has it."""
    finder = await scene.citizen()
    crowd = [await scene.citizen(serves=False) for _ in range(12)]
    reader = await scene.citizen()
    digest = finder.store.keep_proof(CHEAT, "fraud", proof := scene.fraud())
    for citizen in (*crowd, finder):
        await publish(citizen, CHEAT, ProofRef(digest, len(proof)))
    for _ in range(20):
        await reader.look()
        await scene.clock.sleep(LOOK_EVERY_S)
    assert len(reader.store.standing(CHEAT).strikes) == 1
    assert reader.jury._docket.believes(finder.identity.peer_id) > 0


async def test_attack_a_holder_that_drips_keeps_nobody_elses_proof_waiting(scene: Scene) -> None:
    slow, finder = await scene.citizen(serves=False), await scene.citizen()
    reader = await scene.citizen()

    async def drip(stream: Stream) -> None:
        await stream.read_exactly(1)
        await asyncio.sleep(3600)

    await slow.transport.listen(Channel.PROOF.protocol, drip)
    await publish(slow, HONEST, ProofRef(b"d" * 32, 1000))
    await reader.jury.look()
    await scene.clock.sleep(1.0)
    await finder.jury.hold("fraud", scene.fraud(), verified=True)
    await reader.jury.look()
    await scene.clock.sleep(1.0)
    assert len(reader.store.standing(CHEAT).strikes) == 1
    assert reader.jury._judging, "the slow one is still asked"


async def test_attack_nobody_is_left_alone_in_routing_by_accusing_all_others(scene: Scene) -> None:
    reader = await scene.citizen(can_verify=False)
    for number in range(1, len(SERVERS)):
        holder = await scene.citizen(can_verify=False)
        await holder.voice.accuse(SERVERS[number].peer_id, "fraud", scene.fraud(number, true=False))
    await reader.look()
    assert len(reader.store.accused()) == len(SERVERS) // 4


async def test_attack_lies_of_a_directory_node(scene: Scene) -> None:
    """It answers whatever it likes; the jury checks the evidence by itself."""
    reader = await scene.citizen()
    good = signed_accusation(reader.identity, SERVERS[0], MODEL, scene.clock.wall_s())[1]
    forged = bytearray(good.evidence)
    forged[-1] ^= 1

    async def accusations(model: ModelId, subjects: Sequence[str]) -> list[Accusation]:
        return [replace(good, evidence=bytes(forged)), replace(good, evidence=b"x")]

    reader.directory.accusations = accusations  # type: ignore[method-assign]
    await reader.look()
    assert reader.store.ejected() == frozenset()
