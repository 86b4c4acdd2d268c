"""What is said of servers, in virtual time: only what was checked counts, and lies cost those who told them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest
import pytest_asyncio
from msgspec.structs import replace
from proofs_at_hand import evidence_against, fraud_against, signed_accusation
from virtual_time import LoopClock

from swarm.client.judging.accuser import AGAIN_S, ENOUGH, Accuser, AccuserParts
from swarm.client.judging.docket import MAX_TRIES, RETRY_S
from swarm.client.judging.jury import ACCUSED_S, LOOK_EVERY_S, SUBJECTS_A_LOOK, Jury, JuryParts
from swarm.core.accusation import Accusation, ProofRef
from swarm.core.announcement import Announcement
from swarm.core.errors import BadProofError, ConfigError, NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.records import sign_record
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.transport.memory import MemoryNetwork
from swarm.transport.proofs import PART_S
from swarm.transport.protocol import Stream
from swarm.verification.standings.strikes import Policy, audit_rate
from swarm.wire.session import Channel

MODEL = ModelId.parse("demo@main#0123456789abcdef")
POLICY = Policy()
SERVERS = [Identity(bytes([100 + number]) * 32) for number in range(8)]
CHEAT, HONEST, OTHER = (server.peer_id for server in SERVERS[:3])


class Citizen:
    """One node with a store, a jury that knows which proofs are true, and a voice."""

    def __init__(self, scene: Scene, number: int, *, can_verify: bool = True) -> None:
        self.identity = Identity(bytes([number]) * 32)
        self.transport = scene.network.transport(self.identity)
        self.directory = MemoryDirectory(scene.store)
        self.store = ReputationStore(IN_MEMORY, scene.clock)
        self.verified: list[bytes] = []
        self.scene = scene
        parts = AccuserParts(self.transport, self.directory, self.identity, scene.clock, MODEL, self.store)
        self.voice = Accuser(parts)
        self.jury = Jury(
            JuryParts(self.transport, self.directory, scene.clock, MODEL, self.store),
            self.listed,
            accuser=self.voice,
            verify=self.verify if can_verify else None,
            chance=Random(number),
        )

    async def listed(self) -> Sequence[PeerId]:
        return self.scene.servers

    async def verify(self, proof: bytes) -> None:
        self.verified.append(proof)
        if proof not in self.scene.true:
            raise BadProofError("the server is right")

    async def look(self) -> None:
        """One look, and everything that it sets going."""
        await self.jury.look()
        while self.jury._judging:
            await asyncio.wait(self.jury._judging)


class Scene:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.store = MemoryDirectoryStore(self.clock)
        self.servers: list[PeerId] = [server.peer_id for server in SERVERS]
        self.true: set[bytes] = set()
        self.citizens: list[Citizen] = []

    async def citizen(self, *, can_verify: bool = True, serves: bool = True) -> Citizen:
        made = Citizen(self, len(self.citizens) + 1, can_verify=can_verify)
        self.citizens.append(made)
        if serves:
            await made.voice.serve()
        return made

    def fraud(self, server: int = 0, session: int = 1, *, true: bool = True) -> bytes:
        proof = fraud_against(SERVERS[server], MODEL, session=session)
        if true:
            self.true.add(proof)
        return proof

    async def announce(self, *servers: int) -> None:
        for number in servers:
            now_s = self.clock.wall_s()
            record = Announcement(
                model=str(MODEL), layer_count=4, peer=SERVERS[number].peer_id, start=0, end=4,
                numerics=Numerics("float32"), instance=1, sequence=1, started_s=now_s, expires_s=now_s + 500,
            )  # fmt: skip
            await MemoryDirectory(self.store).publish(sign_record(SERVERS[number], record), record)


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    for citizen in made.citizens:
        await citizen.jury.close()
        citizen.store.close()
    await made.network.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- what is true ---------------------------------------------------------------------------------------------


async def test_evidence_of_equivocation_ejects_wherever_it_is_read_and_spreads_from_there(scene: Scene) -> None:
    finder, reader, latecomer = [await scene.citizen() for _ in range(3)]
    evidence = evidence_against(SERVERS[0], MODEL)
    assert await finder.jury.hold("equivocation", evidence)
    await reader.look()
    for citizen in (finder, reader):
        assert citizen.store.ejected() == {CHEAT}
        assert "two different receipts" in citizen.store.standing(CHEAT).ejected
        assert [proof.kind for proof in citizen.store.proofs()] == ["equivocation"]
    scene.network.cut(finder.identity.peer_id, latecomer.identity.peer_id)
    await latecomer.directory.accusations(MODEL, [CHEAT])
    told = await latecomer.directory.accusations(MODEL, [CHEAT])
    assert {record.peer for record in told} == {finder.identity.peer_id, reader.identity.peer_id}
    await latecomer.look()
    assert latecomer.store.ejected() == {CHEAT}, "it needs nobody who found it: the evidence travels"


async def test_two_fraud_proofs_eject_and_one_is_a_strike(scene: Scene) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    await finder.jury.hold("fraud", scene.fraud(session=1), verified=True)
    await reader.look()
    standing = reader.store.standing(CHEAT)
    assert len(standing.strikes) == 1
    assert not standing.ejected
    assert reader.store.accused() == frozenset(), "what was checked is no accusation any more"
    await scene.clock.sleep(LOOK_EVERY_S)
    await finder.jury.hold("fraud", scene.fraud(session=2), verified=True)
    await reader.look()
    assert reader.store.ejected() == {CHEAT}
    assert len(reader.verified) == 2
    assert {proof.digest for proof in reader.store.proofs()} == {proof.digest for proof in finder.store.proofs()}


async def test_two_proofs_of_one_session_are_one_strike(scene: Scene) -> None:
    citizen = await scene.citizen()
    one, again = scene.fraud(session=1), fraud_against(SERVERS[0], MODEL, session=1, hidden=16)
    scene.true.add(again)
    assert await citizen.jury.hold("fraud", one)
    assert await citizen.jury.hold("fraud", again)
    assert len(citizen.store.standing(CHEAT).strikes) == 1


async def test_until_it_is_checked_an_accusation_means_avoid_and_audit_everything(scene: Scene) -> None:
    """Who cannot check it himself, in the end only stops avoiding."""
    finder = await scene.citizen()
    reader = await scene.citizen(can_verify=False)
    reader.store.change(CHEAT, lambda standing: standing.__class__(audited=10_000))
    await finder.voice.accuse(CHEAT, "fraud", scene.fraud())
    await reader.look()
    assert reader.store.accused() == {CHEAT}
    assert audit_rate(reader.store.standing(CHEAT), POLICY) == 1.0
    assert reader.store.standing(CHEAT).strikes == ()
    assert reader.store.proofs() == []
    for _ in range(int(ACCUSED_S / LOOK_EVERY_S) + 1):
        await scene.clock.sleep(LOOK_EVERY_S)
        await finder.voice.tell()
        await reader.look()
    assert reader.store.accused() == frozenset()


async def test_who_can_check_it_only_later_does_so_then(scene: Scene) -> None:
    finder = await scene.citizen()
    reader = await scene.citizen(can_verify=False)
    await finder.jury.hold("fraud", scene.fraud(), verified=True)
    await reader.look()

    async def no_weights(proof: bytes) -> None:
        raise ConfigError("no weights here")

    reader.jury.verify = no_weights
    await scene.clock.sleep(3600)
    await scene.announce(0)
    await finder.voice.tell()
    await reader.look()
    assert reader.store.standing(CHEAT).strikes == ()
    reader.jury.verify = reader.verify
    await scene.clock.sleep(3600)
    await scene.announce(0)
    await finder.voice.tell()
    await reader.look()
    assert len(reader.store.standing(CHEAT).strikes) == 1


async def test_a_jury_looks_every_few_seconds_whatever_the_directory_does(scene: Scene) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    running = asyncio.create_task(reader.jury.run())
    scene.store.down = True
    await scene.clock.sleep(3 * LOOK_EVERY_S)
    scene.store.down = False
    await finder.jury.hold("equivocation", evidence_against(SERVERS[0], MODEL))
    await scene.clock.sleep(LOOK_EVERY_S + 1.0)
    assert reader.store.ejected() == {CHEAT}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_store_that_cannot_be_written_is_tried_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    await finder.jury.hold("fraud", scene.fraud(), verified=True)

    def full(*_: object) -> bytes:
        raise ConfigError("no room on the disk")

    running = asyncio.create_task(reader.jury.run())
    with monkeypatch.context() as patch:
        patch.setattr(reader.store, "keep_proof", full)
        await scene.clock.sleep(LOOK_EVERY_S + 1.0)
    assert reader.store.standing(CHEAT).strikes == ()
    await scene.clock.sleep(RETRY_S + LOOK_EVERY_S)
    assert len(reader.store.standing(CHEAT).strikes) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_in_a_large_swarm_everybody_is_asked_about_in_turns_and_ones_own_servers_always(scene: Scene) -> None:
    reader = await scene.citizen()
    crowd = [Identity(number.to_bytes(32, "big")).peer_id for number in range(1, 60)]
    scene.servers = [HONEST, *crowd]
    asked: list[Sequence[str]] = []

    async def accusations(model: ModelId, subjects: Sequence[str]) -> list[Accusation]:
        asked.append(subjects)
        return []

    reader.directory.accusations = accusations  # type: ignore[method-assign]
    for _ in range(8):
        await reader.look()
    assert all(len(subjects) == SUBJECTS_A_LOOK == len(set(subjects)) and HONEST in subjects for subjects in asked)
    assert {peer for subjects in asked for peer in subjects} == set(scene.servers)


# -- what is told again ---------------------------------------------------------------------------------------


async def test_a_proof_is_told_again_while_its_subject_is_there(scene: Scene) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    await finder.jury.hold("fraud", scene.fraud(), verified=True)
    running = asyncio.create_task(finder.voice.run())
    await scene.announce(0)
    await scene.clock.sleep(Accusation.LIFETIME_S + 2 * AGAIN_S)
    assert await reader.directory.accusations(MODEL, [CHEAT])
    await scene.clock.sleep(500 + Accusation.LIFETIME_S)  # its announcement has expired
    assert await reader.directory.accusations(MODEL, [CHEAT]) == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_holders_leave_it_to_a_few(scene: Scene) -> None:
    evidence = evidence_against(SERVERS[0], MODEL)
    citizens = [await scene.citizen() for _ in range(ENOUGH + 4)]
    for citizen in citizens:
        await citizen.jury.hold("equivocation", evidence)
    for _ in range(6):
        await scene.announce(0)
        await scene.clock.sleep(AGAIN_S)
        for citizen in citizens:
            await citizen.voice.tell()
    told = await citizens[0].directory.accusations(MODEL, [CHEAT])
    assert len(told) == ENOUGH


async def test_only_what_concerns_the_model_is_told(scene: Scene) -> None:
    citizen = await scene.citizen()
    other = ModelId.parse("other@main#0123456789abcdef")
    citizen.store.keep_proof(CHEAT, "equivocation", evidence_against(SERVERS[0], other))
    citizen.store.keep_proof(HONEST, "fraud", b"of another version of the package")
    await scene.announce(0, 1)
    await citizen.voice.tell()
    assert await citizen.directory.accusations(MODEL, [CHEAT, HONEST]) == []
    assert not await citizen.jury.hold("equivocation", evidence_against(SERVERS[1], other))
    assert citizen.store.ejected() == frozenset()


async def test_a_directory_that_is_down_loses_no_proof(scene: Scene) -> None:
    citizen = await scene.citizen()
    scene.store.down = True
    assert await citizen.jury.hold("equivocation", evidence_against(SERVERS[0], MODEL))
    assert citizen.store.ejected() == {CHEAT}
    with pytest.raises(NetworkError):
        await citizen.voice.tell()
    scene.store.down = False
    await scene.announce(0)
    await citizen.voice.tell()
    assert await citizen.directory.accusations(MODEL, [CHEAT])


# -- what is not true -----------------------------------------------------------------------------------------


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


async def publish(citizen: Citizen, subject: PeerId, *proofs: ProofRef) -> None:
    server = next(server for server in SERVERS if server.peer_id == subject)
    now_s = citizen.scene.clock.wall_s()
    value, record = signed_accusation(citizen.identity, server, MODEL, now_s, proofs=proofs)
    await citizen.directory.publish(value, record)
