"""An audit by other servers: one computes the stage again, and if they differ a second one decides who is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from swarm.client.auditing.audit import (
    AuditedWindow,
    AuditMeans,
    Compared,
    StageAudit,
    audit_stage,
    judge,
    plan_stage,
)
from swarm.client.auditing.reference import Reference
from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.core.ids import PeerId
from swarm.verification.challenges.audits import AuditPlan
from swarm.verification.standings.strikes import (
    TRUSTED,
    Policy,
    Standing,
    audit_asked,
    struck,
    window_audited,
    window_void,
)
from swarm.verification.verdicts.judging import arbitrate_window
from swarm.verification.verdicts.verdict import Outcome, Ruling
from swarm.verification.verdicts.whitening import Rows

MAX_ASKED = 4
"""Servers asked to compute a stage again, those that did not included."""

Transition = Callable[[Standing], Standing]
NOBODY_ELSE = Ruling(void=True, reason="fewer than three identities cover the span")


@dataclass(frozen=True, slots=True)
class Trial:
    """What the audit of one stage came to, and for every window that failed hard who is wrong.

    ``silent`` are servers that were asked to compute it again and did not.
    """

    audit: StageAudit
    rulings: tuple[tuple[int, Ruling], ...] = ()
    silent: tuple[PeerId, ...] = ()

    @property
    def convicted(self) -> frozenset[PeerId]:
        """Who is wrong in at least one window: the suspect, or an auditor."""
        return frozenset(ruling.struck for _, ruling in self.rulings if ruling.struck is not None)


async def try_stage(
    record: SessionRecord, stage: StageRecord, auditors: Sequence[Reference], means: AuditMeans, *, rate: float
) -> Trial:
    """Audit ``stage`` at ``rate`` by the first of ``auditors`` that answers; on a failure ask the next one.

    A rate of 0, or nobody to ask, asks nobody anything. Raises ``MisuseError`` for auditors that cannot be compared.
    """
    plan = plan_stage(record, stage, rate)
    if plan is None or not auditors:
        return Trial(StageAudit(stage, None))
    left, silent = list(auditors[:MAX_ASKED]), list[PeerId]()
    first = left.pop(0)
    audit = await audit_stage(record, stage, first, means, rate=rate)
    while audit.failure is not None and audit.failure.kind == "no reference" and audit.material is not None:
        silent.append(PeerId(first.name))
        if not left:
            return Trial(audit, silent=tuple(silent))
        first = left.pop(0)
        audit = await judge(audit.material, plan, first, means)
    failed = [window.window for window in audit.windows if window.rows is Outcome.HARD]
    if not failed or audit.compared is None:
        return Trial(audit, silent=tuple(silent))
    second = await _second(audit.compared, plan, left, means, silent)
    if second is None or second.compared is None:
        return Trial(audit, tuple((window, NOBODY_ELSE) for window in failed), tuple(silent))
    found = {first.name: audit.compared, second.reference: second.compared}
    rulings = tuple((window, _rule(audit.stage.peer, found, window, means)) for window in failed)
    return Trial(audit, rulings, tuple(silent))


async def _second(
    compared: Compared, plan: AuditPlan, left: Iterable[Reference], means: AuditMeans, silent: list[PeerId]
) -> StageAudit | None:
    for reference in left:
        audit = await judge(compared.material, plan, reference, means)
        if audit.failure is None:
            return audit
        silent.append(PeerId(reference.name))
    return None


def _rule(suspect: PeerId, found: Mapping[str, Compared], window: int, means: AuditMeans) -> Ruling:
    one = next(iter(found.values()))
    answers = {suspect: _window(one.suspect, window)}
    for name, compared in found.items():
        rows = compared.suspect
        answers[PeerId(name)] = _window(Rows(rows.first, rows.inputs, compared.reference), window)
    return arbitrate_window(
        suspect,
        answers,
        means.calibration,
        one.material.span,
        means.thresholds_of(one.material.numerics),
        inputs_known=one.inputs_known,
    )


def _window(rows: Rows, window: int) -> Rows:
    return next(part for number, part in rows.windows() if number == window)


def consequences(record: SessionRecord, trial: Trial, policy: Policy) -> dict[PeerId, Transition]:
    """What a trial means for the standing of everybody in it; each is applied once.

    The suspect: every window judged, those aside in which the auditor was wrong; whether it showed what it was asked
    for; a strike if two others agree against it or if it contradicts itself; a mark for windows about which nothing can
    be said. Who fed it: whether it showed what
    it had sent. Auditors: a strike if the other two agree against one. That an auditor was right counts nowhere: audits
    can be told by their shape, and whoever computes only those would earn its way out of probation. A session gives
    each peer one strike at most. Where the rows before the judged ones are not the suspect's own, nobody is struck.
    Proven is what the own replica found: two others may lie together, and what is fetched is not signed.
    """
    steps: dict[PeerId, list[Transition]] = {}
    audit, suspect = trial.audit, trial.audit.stage.peer
    mine = steps.setdefault(suspect, [])
    if audit.plan is not None:
        answered = audit.failure is None or audit.failure.kind not in ("refused", "unreachable")
        mine.append(_asked(policy, answered=answered))
        feeder = None if audit.stage.upstream is None else record.stage(audit.stage.upstream)
        if feeder is not None and answered:
            shown = audit.failure is None or audit.failure.kind != "no inputs"
            steps.setdefault(feeder.peer, []).append(_asked(policy, answered=shown))
    framed = {window for window, ruling in trial.rulings if ruling.struck not in (None, suspect)}
    mine += [_audited(policy, audit, window) for window in audit.evidence if window.window not in framed]
    struck_now = set(trial.convicted) if audit.attested else set()
    if audit.failure is not None and audit.failure.kind == "contradiction":
        struck_now.add(suspect)
    for peer in struck_now:
        proven = peer in trial.convicted and audit.reference == TRUSTED
        steps.setdefault(peer, []).append(_struck(policy, record.session, proven=proven))
    for _, ruling in trial.rulings:
        unsure = ruling.suspects if ruling.void else (suspect,) * (not audit.attested)
        for peer in unsure:
            steps.setdefault(peer, []).append(window_void)
    return {peer: _in_turn(transitions) for peer, transitions in steps.items() if transitions}


def _asked(policy: Policy, *, answered: bool) -> Transition:
    return lambda standing: audit_asked(standing, policy, answered=answered)


def _audited(policy: Policy, audit: StageAudit, window: AuditedWindow) -> Transition:
    return lambda standing: window_audited(
        standing, policy, window.outcome, window.found.error, reference=audit.reference, ceiling=audit.ceiling
    )


def _struck(policy: Policy, occasion: bytes, *, proven: bool) -> Transition:
    return lambda standing: struck(standing, policy, occasion, proven=proven)


def _in_turn(transitions: Sequence[Transition]) -> Transition:
    return lambda standing: reduce(lambda before, transition: transition(before), transitions, standing)
