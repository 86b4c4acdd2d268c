"""What is said of servers, in virtual time: only what was checked counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from jury_scene import CHEAT, HONEST, MODEL, SERVERS, Scene
from proofs_at_hand import evidence_against, fraud_against

from swarm.client.judging.accuser import AGAIN_S, ENOUGH
from swarm.client.judging.docket import RETRY_S
from swarm.client.judging.jury import ACCUSED_S, LOOK_EVERY_S, SUBJECTS_A_LOOK
from swarm.core.accusation import Accusation
from swarm.core.errors import BadProofError, ConfigError, NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.verification.standings.strikes import TERMS, Policy, audit_rate

POLICY = Policy()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.end()


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


async def test_what_others_computed_ejects_for_a_term_and_is_computed_again_after_it(scene: Scene) -> None:
    """A cheat stays out as long as its accusers stand by it; whom two liars found guilty, the next two do not."""
    finder, reader, misled = [await scene.citizen() for _ in range(3)]
    reader.jury.own_weights = misled.jury.own_weights = False

    async def later(seconds: float) -> None:
        await scene.clock.sleep(seconds)
        await scene.announce(0)
        await finder.voice.tell()
        for citizen in (reader, misled):
            await citizen.jury.look()
        await scene.clock.sleep(1.0)

    async def disagree(proof: bytes) -> None:
        raise BadProofError("these two find nothing wrong")

    for session in (1, 2):
        await finder.jury.hold("fraud", scene.fraud(session=session), verified=True)
        await later(LOOK_EVERY_S)
    assert finder.store.ejected() == reader.store.ejected() == misled.store.ejected() == {CHEAT}
    misled.jury.verify = disagree
    await later(TERMS.first_s - 10.0)
    assert len(reader.verified) == 2, "nothing new"
    await later(10.0)
    assert len(reader.verified) > 2
    assert finder.store.ejected() == reader.store.ejected() == {CHEAT}
    assert (finder.store.standing(CHEAT).terms, reader.store.standing(CHEAT).terms) == (0, 2)
    assert misled.store.ejected() == frozenset()


async def test_what_others_computed_and_the_user_forgave_is_not_held_again_but_something_new_is(scene: Scene) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    reader.jury.own_weights = False

    async def found(*sessions: int) -> None:
        for session in sessions:
            await finder.jury.hold("fraud", scene.fraud(session=session), verified=True)
        await scene.clock.sleep(LOOK_EVERY_S)
        await scene.announce(0)
        await finder.voice.tell()
        await reader.look()

    await found(1)
    assert len(reader.store.standing(CHEAT).unproven) == 1
    reader.store.forgive(CHEAT)
    await found()
    assert len(reader.verified) == 1
    assert reader.store.standing(CHEAT).strikes == ()
    assert reader.store.accused() == frozenset()
    await found(2)
    assert len(reader.verified) == 2
    assert len(reader.store.standing(CHEAT).strikes) == 1


async def test_who_has_the_weights_judges_again_what_stood_by_the_word_of_others(scene: Scene) -> None:
    finder, reader = [await scene.citizen() for _ in range(2)]
    proof = scene.fraud()
    reader.jury.own_weights = False
    assert await reader.jury.hold("fraud", proof)
    assert len(reader.store.standing(CHEAT).unproven) == 1
    reader.jury.own_weights = True
    await finder.jury.hold("fraud", proof, verified=True)
    await reader.look()
    standing = reader.store.standing(CHEAT)
    assert (len(standing.strikes), standing.unproven) == (1, ())
    await scene.clock.sleep(LOOK_EVERY_S)
    await reader.look()
    assert len(reader.verified) == 2, "that is its last verdict"


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
