"""One audit of one stage: what its server kept, computed again, judged window by window."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import numpy as np

from swarm.client.auditing.material import AuditFailure, FailureKind, Feed, Material, Unavailable, gather
from swarm.client.auditing.reference import Reference, Replay
from swarm.client.auditing.tokens import TokenTally, answered, tally
from swarm.client.auditing.watch import UNWATCHED, Watch
from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.core.errors import MisuseError, SwarmError
from swarm.core.numerics import Numerics
from swarm.transport.protocol import Transport
from swarm.verification.challenges.audits import AuditPlan, plan_audit
from swarm.verification.standings.sequential import honest_ceiling
from swarm.verification.verdicts.calibration import Calibration, Floats
from swarm.verification.verdicts.judging import judge_rows
from swarm.verification.verdicts.sketch import SKETCH_VALUES, Sketcher, is_sketch_of
from swarm.verification.verdicts.verdict import DENSE, Outcome, Thresholds, check_comparable, declared_thresholds
from swarm.verification.verdicts.whitening import Comparison, Rows

__all__ = [
    "AuditFailure",
    "AuditMeans",
    "AuditedWindow",
    "FailureKind",
    "Feed",
    "StageAudit",
    "TokenTally",
    "audit_stage",
    "judge",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMeans:
    """What an audit works with. ``calibration`` is the model's; ``thresholds`` those of its spans.

    ``feed`` is needed where the client keeps embeddings and head itself. ``watch`` hears how it goes.
    """

    transport: Transport
    calibration: Calibration
    thresholds: Thresholds = DENSE
    feed: Feed | None = None
    watch: Watch = UNWATCHED

    def thresholds_of(self, declared: Numerics) -> Thresholds:
        """For a server that declares these numerics."""
        return declared_thresholds(self.thresholds, declared)


@dataclass(frozen=True, slots=True)
class AuditedWindow:
    """Window number ``window``: how its rows compare, and what that and its tokens mean.

    ``sketches`` is False if the sketches in its leaves are not those of its rows; None if it has none.
    """

    window: int
    found: Comparison
    rows: Outcome
    tokens: TokenTally
    sketches: bool | None

    @property
    def outcome(self) -> Outcome:
        """Hard if the rows or any token are."""
        return Outcome.HARD if self.tokens.hard else self.rows


@dataclass(frozen=True, slots=True)
class StageAudit:
    """What an audit of one stage came to.

    ``plan`` is None if the lottery drew no window: then nothing was asked. ``windows`` are those judged, in order,
    empty if ``failure`` says why. ``reference`` is ``strikes.TRUSTED`` or an auditor's peer id, ``ceiling`` what an
    honest server's e may reach against it (``window_audited`` takes both). ``attested``: the rows before the judged
    ones are those that the suspect signed for; if not, a hard failure blames nobody. ``fetched_bytes`` came over the
    network. ``material`` and ``compared`` are what the verdicts were made from.
    """

    stage: StageRecord
    plan: AuditPlan | None
    windows: tuple[AuditedWindow, ...] = ()
    failure: AuditFailure | None = None
    reference: str = ""
    ceiling: float | None = None
    attested: bool = True
    material: Material | None = None
    compared: Compared | None = None
    fetched_bytes: int = 0

    @property
    def hard(self) -> tuple[AuditedWindow, ...]:
        """The windows that failed."""
        return tuple(window for window in self.windows if window.outcome is Outcome.HARD)

    @property
    def evidence(self) -> tuple[AuditedWindow, ...]:
        """The windows that say something of the suspect.

        Where rows before the judged ones are not attested, others may have sent what made it look wrong, so only what
        it got right counts.
        """
        return tuple(window for window in self.windows if self.attested or window.outcome is Outcome.PASS)


async def audit_stage(
    record: SessionRecord, stage: StageRecord, reference: Reference, means: AuditMeans, *, rate: float = 1.0
) -> StageAudit:
    """Audit ``stage`` of a closed session at ``rate`` q: ``gather`` what was kept, ``judge`` it by ``reference``.

    Reveals the session's secret to the suspect and to who fed it. Whatever others do ends up in ``failure``; raises
    ``MisuseError`` only for a reference of another quantization than the suspect declares, or other misuse.
    """
    check_comparable(Numerics.parse(stage.opening.numerics), reference.numerics)
    plan = plan_stage(record, stage, rate)
    if plan is None:
        return StageAudit(stage, None)
    means.watch.doing("fetching", plan.rows)
    try:
        material = await gather(record, stage, plan, means.transport, means.calibration.header.hidden, means.feed)
    except Unavailable as error:
        return StageAudit(stage, plan, failure=error.failure, fetched_bytes=error.byte_count)
    return await judge(material, plan, reference, means)


def plan_stage(record: SessionRecord, stage: StageRecord, rate: float) -> AuditPlan | None:
    """Which windows of ``stage`` are audited, and up to which row: only those whose rows can be had.

    After a gap in its receipts, only what follows the last one is looked at: rows between are not signed.
    """
    begin = max(stage.judged_from, stage.linked_from)
    receipts = [signed.receipt for signed in stage.receipts if signed.receipt.first >= begin]
    plan = plan_audit(record.secret, receipts, rate)
    if plan is None:
        return None
    last, known = plan.drawn[-1], set(plan.judged)
    first = next(window for window in range(last, -1, -1) if window - 1 not in known)
    judged = tuple(window for window in plan.judged if window >= first)
    return replace(plan, drawn=tuple(window for window in plan.drawn if window >= first), judged=judged)


async def judge(material: Material, plan: AuditPlan, reference: Reference, means: AuditMeans) -> StageAudit:
    """What was gathered, judged by one reference. Nothing is fetched from the suspect.

    Raises ``MisuseError`` for a reference that cannot be compared, or that does not hold the layers.
    """
    check_comparable(material.numerics, reference.numerics)
    audit = StageAudit(
        material.stage,
        plan,
        reference=reference.name,
        attested=material.attested,
        material=material,
        fetched_bytes=material.byte_count,
    )
    means.watch.doing("computing", material.rows)
    try:
        view = await Compared.of(material, reference)
        logits = await _logits(material, reference)
    except MisuseError:
        raise
    except SwarmError as error:
        failure = AuditFailure("no reference", material.stage.peer, error.message)
        return replace(audit, failure=failure)
    windows = await asyncio.to_thread(_verdicts, view, plan, means, logits)
    known = means.thresholds.fail_error is not None and view.inputs_known
    ceiling = honest_ceiling(material.numerics, reference.numerics) if known else None
    return replace(audit, windows=windows, ceiling=ceiling, compared=view)


@dataclass(frozen=True, eq=False, slots=True)
class Compared:
    """A suspect's rows beside a ``reference``'s outputs ``[n, hidden]`` of the same.

    ``inputs_known`` is False for a first stage whose embeddings nobody here has; then ``suspect.inputs`` are zeros.
    """

    material: Material
    numerics: Numerics
    suspect: Rows
    reference: Floats
    inputs_known: bool

    @classmethod
    async def of(cls, material: Material, reference: Reference) -> Compared:
        """Have it computed again; raises what ``reference`` raises."""
        first, ids, received = material.first, material.token_ids, material.received()
        hidden, horizon = material.form.hidden, material.record.horizon
        replay = Replay(material.span, material.numerics, ids, received, first, hidden, horizon)
        outputs = await reference.outputs(replay)
        computed = material.computed()
        inputs = received[first:] if received is not None else await reference.embedded(ids[first:])
        suspect = Rows(first, np.zeros_like(computed) if inputs is None else inputs, computed)
        return cls(material, reference.numerics, suspect, outputs, inputs is not None)


async def _logits(material: Material, reference: Reference) -> Floats | None:
    """Of the rows that were answered, from what the suspect computed; None where no token was chosen."""
    places = [leaf.position - material.first for leaf in answered(material)]
    return await reference.logits(material.computed()[places]) if places else None


def _verdicts(view: Compared, plan: AuditPlan, means: AuditMeans, logits: Floats | None) -> tuple[AuditedWindow, ...]:
    material, calibration = view.material, means.calibration
    found = judge_rows(
        view.suspect,
        view.reference,
        calibration,
        material.span,
        means.thresholds_of(material.numerics),
        inputs_known=view.inputs_known,
    )
    tallies = {} if logits is None else tally(material, np.asarray(logits, np.float32), view.numerics)
    sketches = _sketches(view, calibration)
    return tuple(
        AuditedWindow(
            verdict.window,
            verdict.found,
            verdict.outcome,
            tallies.get(verdict.window, TokenTally()),
            sketches.get(verdict.window),
        )
        for verdict in found
        if verdict.window in plan.judged
    )


def _sketches(view: Compared, calibration: Calibration) -> dict[int, bool]:
    """By window, whether the signed sketches are those of the rows; nothing where the server makes none."""
    material = view.material
    if material.stage.opening.calibration != calibration.digest() or not view.inputs_known:
        return {}
    sketcher, result = Sketcher.of(calibration, material.span), {}
    for window, rows in view.suspect.windows():
        begin = rows.first - material.first
        leaves = material.leaves[begin : begin + len(rows.inputs)]
        signed = np.frombuffer(b"".join(leaf.sketch for leaf in leaves), np.int8).reshape(-1, SKETCH_VALUES)
        with np.errstate(all="ignore"):
            update = np.asarray(rows.outputs, np.float32) - np.asarray(rows.inputs, np.float32)
        result[window] = is_sketch_of(signed, sketcher.sketch(update, first=rows.first))
    return result
