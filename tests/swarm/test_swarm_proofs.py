"""Fraud proofs in whole swarms: made from challenges, believed by strangers, and by the clients that hear of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from audited import PROMPT, SEED, TABLE, auditors_of, stage_of, talked, turned
from harness import Node, Swarm

from swarm.client.auditing.accusing import ChallengeText, convict, prove
from swarm.client.auditing.audit import AuditMeans, audit_stage
from swarm.client.auditing.checking import audit_traffic, check_proofs
from swarm.client.auditing.reference import OwnReference, Reference, Replay
from swarm.client.evidence.records import SessionRecord
from swarm.client.finding.search import Wish
from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import BadProofError, MisuseError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.replica import Replica
from swarm.scheduling.routing import Stage
from swarm.verification.challenges.challenge import walk
from swarm.verification.proofs import Charge
from swarm.verification.verdicts.calibration import Calibration, Floats

# -- proofs ---------------------------------------------------------------------------------------------------


async def challenged(swarm: Swarm) -> tuple[AsyncSwarmModel, SessionRecord, ChallengeText]:
    prompt = walk(SEED, 70, TABLE)
    model, record = await talked(swarm, prompt, wish=Wish(audit_secret=SEED))
    return model, record, ChallengeText(TABLE, len(prompt))


def own(replica: Replica) -> Callable[[Charge], object]:
    async def references(charge: Charge) -> list[Reference]:
        return [OwnReference(replica)]

    return references


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_proof_convinces_a_stranger_with_weights(
    swarm: Swarm, calibration: Calibration, replica: Replica, place: int
) -> None:
    chain = await swarm.serve()
    chain[place].engine.after = turned  # type: ignore[attr-defined]
    model, record, text = await challenged(swarm)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    audit = await audit_stage(record, stage_of(record, chain[place]), OwnReference(replica), means)
    data = prove(audit, text, calibration).to_bytes()
    found = await convict(data, own(replica), calibration)  # type: ignore[arg-type]
    assert found.subject == chain[place].peer
    assert str(chain[place].peer) in found.sentence
    with pytest.raises(BadProofError, match="length"):
        await convict(data, own(replica), calibration, length_matters=True)  # type: ignore[arg-type]


async def test_a_proof_convinces_a_stranger_without_weights(
    swarm: Swarm, calibration: Calibration, replica: Replica
) -> None:
    chain = await swarm.serve()
    for place in (0, 1):
        chain[place].engine.after = turned  # type: ignore[attr-defined]
    model, record, text = await challenged(swarm)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    lying, *honest = await swarm.serve("0:5", "0:5", "0:5")
    stranger = swarm.client()
    for place in (0, 1):
        stage = stage_of(record, chain[place])
        audit = await audit_stage(record, stage, OwnReference(replica), means)
        data = prove(audit, text, calibration).to_bytes()
        all_of_them = await auditors_of(stranger, record, stage)

        async def two(charge: Charge, nodes: Sequence[Node] = honest) -> list[Reference]:
            peers = {node.peer for node in nodes}
            return [one for one in all_of_them if one.peer in peers]  # noqa: B023

        found = await convict(data, two, calibration)
        assert (found.subject, len(found.verdicts)) == (chain[place].peer, 2)
        lying.engine.after = turned if place else None  # type: ignore[attr-defined]

        async def split(charge: Charge) -> list[Reference]:
            return await two(charge, [lying, honest[0]])

        if place:
            with pytest.raises(MisuseError, match="do not agree"):
                await convict(data, split, calibration)

        async def one(charge: Charge) -> list[Reference]:
            return await two(charge, honest[:1])

        with pytest.raises(MisuseError, match="not enough"):
            await convict(data, one, calibration)


class Forger:
    """A reference of somebody who wants a proof against an honest server."""

    name = ""
    numerics = Numerics("float32")

    async def outputs(self, replay: Replay) -> Floats:
        return np.ones((replay.rows - replay.first, replay.hidden), np.float32)

    async def embedded(self, token_ids: Sequence[int]) -> Floats | None:
        return None

    async def logits(self, finals: Floats) -> Floats | None:
        return None


async def test_a_framing_verifiers_proof_convinces_nobody(
    swarm: Swarm, calibration: Calibration, replica: Replica
) -> None:
    chain = await swarm.serve()
    model, record, text = await challenged(swarm)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    honest = await audit_stage(record, stage_of(record, chain[1]), OwnReference(replica), means)
    with pytest.raises(MisuseError, match="no window failed"):
        prove(honest, text, calibration)
    replica_outputs = OwnReference(replica).outputs

    class Half(Forger):
        async def outputs(self, replay: Replay) -> Floats:
            right = await replica_outputs(replay)
            return np.roll(right, 1, axis=1)

    audit = await audit_stage(record, stage_of(record, chain[1]), Half(), means)
    data = prove(audit, text, calibration).to_bytes()
    with pytest.raises(BadProofError, match="the server is right"):
        await convict(data, own(replica), calibration)  # type: ignore[arg-type]


async def test_nothing_is_proven_of_a_users_session(swarm: Swarm, calibration: Calibration, replica: Replica) -> None:
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    model, record = await talked(swarm)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    audit = await audit_stage(record, stage_of(record, chain[1]), OwnReference(replica), means)
    assert audit.hard
    with pytest.raises(MisuseError, match="not the challenge"):
        prove(audit, ChallengeText(TABLE, len(PROMPT)), calibration)


# -- clients that act on them ---------------------------------------------------------------------------------


async def test_a_client_without_weights_has_a_proof_checked_by_two_others_and_acts_on_it(
    swarm: Swarm, calibration: Calibration, replica: Replica
) -> None:
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    verifier, record, text = await challenged(swarm)
    means = AuditMeans(transport=verifier.parts.transport, calibration=calibration)
    audit = await audit_stage(record, stage_of(record, chain[1]), OwnReference(replica), means)
    data = prove(audit, text, calibration).to_bytes()
    client = swarm.client()
    check_proofs(client, calibration)
    assert not await client.jury.hold("fraud", data), "nobody else holds those layers"
    assert client.reputation.verdict(hashlib.sha256(data).digest()) is None
    assert client.reputation.standing(chain[1].peer).strikes == ()
    await swarm.serve("0:5", "1:4")
    await client.ground.view.look(fresh=True)
    assert await client.jury.hold("fraud", data)
    assert client.reputation.standing(chain[1].peer).strikes == (record.session,)


@pytest.mark.parametrize("head", ["remote", "local"])
async def test_a_client_that_has_its_traffic_audited_strikes_the_cheater(
    swarm: Swarm, calibration: Calibration, head: str
) -> None:
    chain = await swarm.serve()
    await swarm.serve("1:4", "1:4")
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    client = swarm.client(head=head)
    auditor = audit_traffic(client, calibration, mb_per_h=10.0)
    wish = Wish(Stage(chain[1].peer, Span(1, 3)))
    _, record = await talked(swarm, model=client, wish=wish)
    await auditor.finish()
    assert client.reputation.standing(chain[1].peer).strikes == (record.session,)
    assert client.reputation.ejected() == frozenset()


async def test_nobody_sees_a_users_rows_unless_the_user_asks_for_it(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    others = await swarm.serve("1:4", "1:4")
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    client = swarm.client()
    check_proofs(client, calibration)
    await talked(swarm, model=client, wish=Wish(Stage(chain[1].peer, Span(1, 3))))
    await asyncio.sleep(60.0)
    assert [node.rows for node in others] == [[], []]
    assert client.reputation.standing(chain[1].peer).audited == 0
