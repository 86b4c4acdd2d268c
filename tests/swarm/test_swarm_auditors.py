"""Whole swarms whose sessions are audited by their own servers: cheaters, framing auditors, proofs for strangers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from audited import PROMPT, auditors_of, stage_of, talked, turned
from harness import Node, Swarm, until

from swarm.client.auditing.audit import AuditMeans
from swarm.client.auditing.auditors import Auditing, ServerReference, covering
from swarm.client.auditing.budget import Budget
from swarm.client.auditing.own_traffic import TrafficAuditor, TrafficParts
from swarm.client.auditing.reference import Reference, Replay
from swarm.client.auditing.trial import Trial, consequences, try_stage
from swarm.client.evidence.records import SessionRecord
from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import RefusedError, SwarmError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.replica import Replica
from swarm.engine.work import Output
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.verification.standings.strikes import Policy, Standing, accused
from swarm.verification.verdicts.calibration import Calibration

POLICY = Policy()


async def tried(
    model: AsyncSwarmModel, record: SessionRecord, node: Node, calibration: Calibration, **options: object
) -> Trial:
    stage = stage_of(record, node)
    auditors: Sequence[Reference] = await auditors_of(model, record, stage)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    return await try_stage(record, stage, auditors, means, rate=1.0)


def outcomes(trial: Trial) -> list[str]:
    assert trial.audit.failure is None, trial.audit.failure
    return [window.outcome.value for window in trial.audit.windows]


def standing(record: SessionRecord, trial: Trial, node: Node) -> Standing:
    """Of a stranger, after the trial."""
    transition = consequences(record, trial, POLICY).get(node.peer)
    return transition(Standing()) if transition else Standing()


# -- audits by servers ----------------------------------------------------------------------------------------


async def test_honest_servers_pass_each_others_audits(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    model, record = await talked(swarm)
    auditors = await swarm.serve("0:5", "0:5")
    for node in chain:
        trial = await tried(model, record, node, calibration)
        assert outcomes(trial) == ["pass"] * 3
        assert not trial.rulings
        assert trial.audit.reference in {auditor.peer for auditor in auditors}
        found = standing(record, trial, node)
        assert (found.audited, found.strikes, found.audits.asked, found.audits.refused) == (3, (), 1, 0)
        assert all(standing(record, trial, auditor) == Standing() for auditor in auditors)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_cheater_is_struck_once_for_a_session(swarm: Swarm, calibration: Calibration, place: int) -> None:
    chain = await swarm.serve()
    chain[place].engine.after = turned  # type: ignore[attr-defined]
    model, record = await talked(swarm)
    await swarm.serve("0:5", "0:5")
    for node in chain:
        trial = await tried(model, record, node, calibration)
        guilty = node is chain[place]
        assert trial.convicted == ({node.peer} if guilty else frozenset()), node.peer
        assert len(standing(record, trial, node).strikes) == guilty
    again = await tried(model, record, chain[place], calibration)
    twice = consequences(record, again, POLICY)[chain[place].peer]
    assert len(twice(twice(Standing())).strikes) == 1


async def test_an_auditor_that_frames_an_honest_server_is_struck(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    model, record = await talked(swarm)
    framing, *others = await swarm.serve("0:5", "0:5", "0:5")
    framing.engine.after = turned  # type: ignore[attr-defined]
    stage = stage_of(record, chain[1])
    auditors = await auditors_of(model, record, stage)
    auditors.sort(key=lambda reference: reference.peer != framing.peer)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    trial = await try_stage(record, stage, auditors, means, rate=1.0)
    assert outcomes(trial) == ["hard"] * 3
    assert trial.convicted == {framing.peer}
    assert len(standing(record, trial, framing).strikes) == 1
    assert standing(record, trial, chain[1]).strikes == ()
    honest = standing(record, trial, chain[1])
    assert (honest.voided, honest.audited, honest.evidence) == (0, 0, ())
    assert all(standing(record, trial, node) == Standing() for node in others)


async def test_two_against_each_other_prove_nothing(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    model, record = await talked(swarm)
    [only] = await swarm.serve("0:5")
    trial = await tried(model, record, chain[1], calibration)
    assert (outcomes(trial), trial.convicted) == (["hard"] * 3, frozenset())
    assert all(ruling.void for _, ruling in trial.rulings)
    assert standing(record, trial, only) == Standing()


async def test_three_that_all_differ_leave_a_mark_and_no_strike(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    model, record = await talked(swarm)
    other, _ = await swarm.serve("0:5", "0:5")

    def negated(outputs: list[Output]) -> None:
        for output in outputs:
            if output.hidden:
                output.hidden = (-np.frombuffer(output.hidden, np.float32)).tobytes()

    other.engine.after = negated  # type: ignore[attr-defined]
    trial = await tried(model, record, chain[1], calibration)
    assert trial.convicted == frozenset()
    assert standing(record, trial, chain[1]).voided == 3


async def test_an_auditor_that_does_not_answer_gives_way(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    model, record = await talked(swarm)
    gone, there = await swarm.serve("0:5", "0:5")
    stage = stage_of(record, chain[1])
    auditors = await auditors_of(model, record, stage)
    auditors.sort(key=lambda reference: reference.peer != gone.peer)
    await swarm.crash(gone)
    means = AuditMeans(transport=model.parts.transport, calibration=calibration)
    trial = await try_stage(record, stage, auditors, means, rate=1.0)
    assert (trial.silent, trial.audit.reference) == ((gone.peer,), there.peer)
    assert outcomes(trial) == ["pass"] * 3
    alone = await try_stage(record, stage, auditors[:1], means, rate=1.0)
    assert alone.audit.failure is not None
    assert alone.audit.failure.kind == "no reference"
    assert standing(record, alone, chain[1]).audits.refused == 0


async def test_nobody_is_asked_where_nobody_covers_the_span(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    model, record = await talked(swarm)
    await swarm.serve("0:2", "1:3", dtype="bfloat16")
    assert await auditors_of(model, record, stage_of(record, chain[1])) == []
    trial = await tried(model, record, chain[1], calibration)
    assert trial.audit.plan is None
    assert consequences(record, trial, POLICY) == {}


async def test_a_stranger_or_a_wrong_secret_fetches_nothing(swarm: Swarm, calibration: Calibration) -> None:
    chain = await swarm.serve()
    model, record = await talked(swarm)
    await swarm.serve("0:5", "0:5")
    trial = await tried(swarm.client(), record, chain[1], calibration)
    assert trial.audit.failure is not None
    assert trial.audit.failure.kind == "refused"
    trial = await tried(model, replace(record, secret=bytes(32)), chain[1], calibration)
    assert trial.audit.failure is not None
    assert trial.audit.failure.kind == "refused"


async def test_an_auditor_refuses_what_it_never_can(swarm: Swarm) -> None:
    [node] = await swarm.serve("1:3")
    model = swarm.client()
    [listing] = await model.parts.directory.servers(swarm.files.model_id)
    [plan] = covering([listing], Span(1, 3), Numerics("float32"), excluded=())
    server = ServerReference(plan, Auditing(swarm.files.model_id, model.parts.transport))
    assert server.peer == node.peer
    rows = np.zeros((5000, 32), np.float32)
    with pytest.raises(SwarmError) as caught:
        await server.outputs(Replay(Span(1, 3), Numerics("float32"), (1,) * 5000, rows, 0, 32))
    failures = getattr(caught.value, "failures", {})
    assert isinstance(failures.get(node.peer), RefusedError)


@pytest.mark.parametrize("embeds", [True, False])
async def test_an_auditor_reads_a_long_prompt_in_chunks(swarm: Swarm, replica: Replica, embeds: bool) -> None:
    [node] = await swarm.serve("0:5")
    model = swarm.client()
    listings = await model.parts.directory.servers(swarm.files.model_id)
    span = Span(0, 3) if embeds else Span(1, 3)
    [plan] = covering(listings, span, Numerics("float32"), excluded=())
    ids = tuple(int(token) for token in np.random.default_rng(5).integers(4, 250, 600))
    inputs = None if embeds else replica.outputs(ids, span=Span(0, 1))
    replay = Replay(span, Numerics("float32"), ids, inputs, 300, 32)
    found = await ServerReference(plan, Auditing(swarm.files.model_id, model.parts.transport)).outputs(replay)
    expected = replica.outputs(ids if inputs is None else inputs, span=span, first=300)
    assert found.shape == (300, 32)
    assert np.abs(found - expected).max() < 1e-4
    assert node.rows == [512, 88]


# -- one's own traffic ----------------------------------------------------------------------------------------


async def auditing(
    swarm: Swarm,
    calibration: Calibration,
    told: Callable[[Trial], None],
    limit_bytes: float = 1e9,
    policy: Policy = POLICY,
) -> tuple[AsyncSwarmModel, ReputationStore, TrafficAuditor]:
    model = swarm.client()
    store = ReputationStore(IN_MEMORY, swarm.clock)
    parts = TrafficParts(
        auditing=Auditing(swarm.files.model_id, model.parts.transport),
        store=store,
        clock=swarm.clock,
        calibration=calibration,
        listings=lambda: model.parts.directory.servers(swarm.files.model_id),
        policy=policy,
        random=Random(4),
    )
    return model, store, TrafficAuditor(parts, Budget(limit_bytes), told)


async def test_own_traffic_ejects_a_cheater_after_two_sessions(swarm: Swarm, calibration: Calibration) -> None:
    trials: list[Trial] = []
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    model, store, auditor = await auditing(swarm, calibration, trials.append)
    records = [(await talked(swarm, PROMPT[start:], model=model))[1] for start in (0, 5)]
    await swarm.serve("0:5", "0:5")
    for record in records:
        auditor.settled(record)
    await until(lambda: len(trials) == 6)
    assert store.standing(chain[1].peer).ejected == "2 confirmed failures"
    for node in (chain[0], chain[2]):
        found = store.standing(node.peer)
        assert (found.strikes, found.audited > 0) == ((), True)
    await auditor.close()
    store.close()


async def test_after_a_strike_earlier_sessions_are_audited_too(swarm: Swarm, calibration: Calibration) -> None:
    trials: list[Trial] = []
    chain = await swarm.serve()
    chain[1].engine.after = turned  # type: ignore[attr-defined]
    never = Policy(audit_rate=0.0, probation_windows=0)
    model, store, auditor = await auditing(swarm, calibration, trials.append, policy=never)
    for node in chain:
        store.change(node.peer, lambda standing: Standing(audited=1_000_000))
    (_, first), (_, second) = [await talked(swarm, PROMPT[start:], model=model) for start in (0, 5)]
    await swarm.serve("0:5", "0:5")
    auditor.settled(first)
    await until(lambda: auditor.idle)
    assert trials == []
    store.change(chain[1].peer, lambda standing: accused(standing, never))
    auditor.settled(second)
    await until(lambda: auditor.idle)
    assert [trial.audit.stage.opening.session for trial in trials] == [second.session, first.session]
    assert store.standing(chain[1].peer).strikes == (second.session, first.session)
    assert chain[1].peer in store.ejected()
    await auditor.close()
    store.close()


async def test_own_traffic_stays_within_its_budget(swarm: Swarm, calibration: Calibration) -> None:
    trials: list[Trial] = []
    chain = await swarm.serve()
    model, store, auditor = await auditing(swarm, calibration, trials.append, limit_bytes=1.0)
    _, record = await talked(swarm, model=model)
    await swarm.serve("0:5", "0:5")
    auditor.settled(record)
    auditor.settled(record)
    await until(lambda: len(trials) == 3 and auditor.skipped == 1)
    assert store.standing(chain[1].peer).audited == 3
    await auditor.close()
    store.close()
