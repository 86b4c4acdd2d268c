"""Challenges over whole swarms: whom they go through, what they come to, and how a verifier ejects a cheater."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from archives import calibrated
from audited import turned
from harness import Engines, Node, Swarm

from swarm.client.auditing.challenges import ask, stage_of
from swarm.client.auditing.reference import OwnReference
from swarm.client.auditing.suspects import Suspect, Unchecked
from swarm.client.auditing.traffic import Script, everyday, seed_of
from swarm.client.auditing.verifier import Judged, Listener, Verifier, VerifierOptions, VerifierParts
from swarm.client.auditing.watch import Watch
from swarm.client.judging.accuser import Accuser
from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.client.model import AsyncSwarmModel
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.dht.memory import MemoryDirectory
from swarm.engine.replica import Replica, ReplicaRequest
from swarm.models.progress import silent
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.challenges.commitment import commit
from swarm.verification.verdicts.calibration import Calibration

PROMPTS = tuple(f"What of number {number}, and why is it so?" for number in range(40))
"""As text to a tokenizer of bytes; they leave the tiny context room."""


@pytest.fixture(scope="module")
def replica(engines: Engines) -> Replica:
    return Replica.load(engines.files, ReplicaRequest(span=Span(0, 5)), silent)


@pytest.fixture(scope="module")
def calibration(engines: Engines, replica: Replica) -> Calibration:
    return calibrated(replica, engines.files.model_id)


def script(swarm: Swarm) -> Script:
    return everyday(swarm.reference.tokenizer, 120, interval_s=20.0, prompts=PROMPTS)


def suspect(peer: PeerId, start: int, end: int) -> Suspect:
    return Suspect(peer, Span(start, end), Span(start, end), "")


@dataclass
class Notes(Listener):
    """Everything that a verifier tells."""

    sent: list[tuple[PeerId, Challenge]] = field(default_factory=list)
    found: list[Judged] = field(default_factory=list)
    others: list[Unchecked] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    going: list[tuple[str, int]] = field(default_factory=list)
    """What was done, and with how many tokens or rows."""

    def sending(self, suspect: Suspect, challenge: Challenge) -> None:
        self.sent.append((suspect.peer, challenge))

    def watch(self, suspect: Suspect, challenge: Challenge) -> Watch:
        return Watch(
            lambda progress: self.going.append((progress.phase, progress.done)),
            lambda doing, rows: self.going.append((doing, rows)),
        )

    def judged(self, judged: Judged) -> None:
        self.found.append(judged)

    def uncheckable(self, server: Unchecked) -> None:
        self.others.append(server)

    def trouble(self, what: str) -> None:
        self.troubles.append(what)


class Desk:
    """A verifier at work in a test, with a node of its own that accuses."""

    def __init__(self, swarm: Swarm, replica: Replica, calibration: Calibration, span: Span) -> None:
        self.swarm = swarm
        self.notes = Notes()
        self.stop = asyncio.Event()
        self.store = ReputationStore(IN_MEMORY, swarm.clock)
        self.clients: list[AsyncSwarmModel] = []
        identity = swarm.identity()
        self.peer = identity.peer_id
        transport, directory = swarm.network.transport(identity), MemoryDirectory(swarm.store)
        self.directory, model = directory, swarm.files.model_id
        seat = Seat(transport, directory, swarm.clock, model, self.store)
        self.accuser = Accuser(seat, identity)

        async def listed() -> list[PeerId]:
            return [listing.peer for listing in await directory.servers(model)]

        self.jury = Jury(seat, listed, accuser=self.accuser)
        parts = VerifierParts(
            directory=directory,
            clock=swarm.clock,
            model=model,
            store=self.store,
            reference=OwnReference(replica),
            span=span,
            calibration=calibration,
            script=script(swarm),
            client=self._client,
            jury=self.jury,
        )
        self.verifier = Verifier(parts, VerifierOptions(), self.notes)

    async def _client(self) -> AsyncSwarmModel:
        self.clients.append(self.swarm.client())
        return self.clients[-1]

    async def once(self) -> list[Judged]:
        return await self.verifier.once(self.stop)

    async def close(self) -> None:
        await self.jury.close()
        self.store.close()


def cheating(node: Node) -> Node:
    node.engine.after = turned  # type: ignore[attr-defined]
    return node


@pytest.mark.parametrize("stages", [(0, 1), (1, 3), (2, 3), (3, 5)])
async def test_a_challenge_goes_through_whom_it_is_meant_for(swarm: Swarm, stages: tuple[int, int]) -> None:
    """Though others hold the same layers, and whichever part of its span is asked for."""
    await swarm.serve("0:1", "1:3", "3:5")
    mine = await swarm.serve("0:1", "1:3", "3:5")
    target = next(node for node in mine if node.server.parts.engine.info.span.covers(Span(*stages)))
    challenge = script(swarm).challenge(seed_of("7"))
    record = await ask(swarm.client(), challenge, suspect(target.peer, *stages))
    stage = stage_of(record, suspect(target.peer, *stages))
    assert stage is not None
    assert stage.opening.commitment == commit(challenge.seed)
    assert record.token_ids[: len(challenge.prompt)] == challenge.prompt
    assert record.covered_rows == len(record.token_ids)
    assert not record.problems


async def test_honest_servers_pass_and_who_cannot_be_checked_is_named(
    swarm: Swarm, replica: Replica, calibration: Calibration
) -> None:
    nodes = await swarm.serve("0:1", "1:3", "3:5")
    desk = Desk(swarm, replica, calibration, Span(1, 5))
    found = await desk.once()
    assert {judged.finding.suspect.peer for judged in found} == {nodes[1].peer, nodes[2].peer}
    assert [judged.finding.kind for judged in found] == ["passed", "passed"]
    assert all(judged.after.audited and not judged.after.strikes for judged in found)
    assert [(server.peer, server.spot_checkable) for server in desk.notes.others] == [(nodes[0].peer, False)]
    assert not desk.notes.troubles
    await desk.close()


async def test_who_waits_hears_what_for(swarm: Swarm, replica: Replica, calibration: Calibration) -> None:
    """Token by token, then settling, fetching and computing, with all the rows that were answered."""
    await swarm.serve("0:5")
    desk = Desk(swarm, replica, calibration, Span(0, 5))
    (judged,) = await desk.once()
    record = judged.finding.record
    assert record is not None
    going = desk.notes.going
    tokens = [done for phase, done in going if phase == "decode"]
    assert tokens == list(range(1, len(tokens) + 1))
    assert len(tokens) == len(record.answers)
    rows = record.covered_rows
    assert going[-3:] == [("settling", 0), ("fetching", rows), ("computing", rows)]
    await desk.close()


async def test_no_two_challenges_come_from_one_client_nor_from_who_accuses(
    swarm: Swarm, replica: Replica, calibration: Calibration
) -> None:
    """Nor does a server see the seed of one before its session is over, or the same commitment twice."""
    await swarm.serve("0:5")
    desk = Desk(swarm, replica, calibration, Span(0, 5))
    for _ in range(3):
        await desk.once()
    senders = [model.parts.transport.peer_id for model in desk.clients]
    assert len(set(senders)) == len(senders) == 3
    assert desk.peer not in senders
    assert len({challenge.commitment for _, challenge in desk.notes.sent}) == 3
    await desk.close()


async def test_a_cheater_is_ejected_by_the_second_failure_and_another_client_leaves_it_alone(
    swarm: Swarm, replica: Replica, calibration: Calibration
) -> None:
    """The other client knows nothing of the verifier but its signed word, and checks the proofs by other servers."""
    honest = await swarm.serve("0:1", "1:3", "3:5", "1:3", "1:3")
    (cheater,) = await swarm.serve("1:3")
    cheating(cheater)
    desk = Desk(swarm, replica, calibration, Span(1, 3))
    await desk.accuser.serve()
    found = await desk.once()
    mine = [judged for judged in found if judged.finding.suspect.peer == cheater.peer]
    assert [judged.finding.kind for judged in mine] == ["failed", "failed"]
    assert [judged.ejected for judged in mine] == [False, True]
    assert all(judged.accused for judged in mine)
    assert desk.store.ejected() == {cheater.peer}
    assert all(judged.finding.kind == "passed" for judged in found if judged not in mine)
    seeds = {judged.finding.challenge.seed for judged in mine}
    assert len(seeds) == len(desk.store.proofs()) == 2

    told = await desk.directory.accusations(swarm.files.model_id, [cheater.peer])
    assert [(record.peer, len(record.proofs)) for record in told] == [(desk.peer, 2)]
    other = swarm.client()
    await other.generate("hello", max_new_tokens=2)
    assert cheater.peer in other.reputation.ejected() | other.reputation.accused()
    result = await other.generate("hello again", max_new_tokens=2)
    assert cheater.peer not in {stage.peer for stage in result.chain}
    assert {stage.peer for stage in result.chain} <= {node.peer for node in honest}
    await desk.close()


async def test_a_verifier_that_is_stopped_ends_at_once_and_goes_on_later(
    swarm: Swarm, replica: Replica, calibration: Calibration
) -> None:
    await swarm.serve("0:5")
    desk = Desk(swarm, replica, calibration, Span(0, 5))
    running = asyncio.create_task(desk.verifier.run(desk.stop))
    while len(desk.notes.found) < 2:
        await swarm.clock.sleep(5.0)
    desk.stop.set()
    began_s = swarm.clock.monotonic_s()
    await running
    assert swarm.clock.monotonic_s() - began_s < 15.0
    audited = desk.store.known()[0].standing.audited
    assert audited == desk.notes.found[-1].after.audited
    desk.stop.clear()
    (again,) = await desk.once()
    assert again.before.audited == audited < again.after.audited
    await desk.close()


async def test_a_server_that_is_gone_is_no_failure(swarm: Swarm, replica: Replica, calibration: Calibration) -> None:
    nodes = await swarm.serve("0:3", "3:5")
    desk = Desk(swarm, replica, calibration, Span(3, 5))
    await swarm.crash(nodes[1])
    for judged in await desk.once():
        assert judged.finding.kind in ("unanswered", "undecided")
        assert not judged.after.strikes
    await desk.close()
