"""One challenge: an ordinary session over a chain through the server in question, then an audit by the own replica."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Literal

from swarm.client.auditing.audit import AuditFailure, AuditMeans, StageAudit, audit_stage
from swarm.client.auditing.reference import Reference
from swarm.client.auditing.suspects import Suspect
from swarm.client.auditing.trial import Transition, Trial, consequences
from swarm.client.auditing.watch import UNWATCHED, Watch
from swarm.client.evidence.records import ReceiptProblem, SessionRecord, StageRecord
from swarm.client.finding.search import Wish
from swarm.client.model import AsyncSwarmModel
from swarm.client.request import Options
from swarm.core.errors import MisuseError, NoRouteError, PeerLostError, SwarmError
from swarm.core.ids import PeerId
from swarm.scheduling.routing import Stage
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.standings.strikes import Policy
from swarm.verification.verdicts.verdict import Outcome, Ruling

SETTLE_S = 10.0
"""How long after the answer a session's last receipts may take."""

Kind = Literal["passed", "soft", "failed", "equivocated", "unanswered", "undecided"]
SHUNNED: tuple[str, ...] = ("refused", "unreachable")
"""Failures of an audit that count as not answered."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one challenge came to.

    ``passed``: every window that counted did; ``soft``: some are off by more than they should be, none by so much that
    it is a failure; ``failed``: at least one is. ``equivocated``: it signed two receipts under one counter.
    ``unanswered``: no answer, or nothing to judge it by, which is no failure but is counted. ``undecided``: nothing can
    be said, through no fault of the server's. ``what`` says so in words.
    """

    suspect: Suspect
    challenge: Challenge
    kind: Kind
    what: str
    record: SessionRecord | None = None
    audit: StageAudit | None = None

    @property
    def wrong(self) -> bool:
        """True if the server did what no honest one does."""
        return self.kind in ("failed", "equivocated")

    @property
    def worst(self) -> float | None:
        """The largest e among windows that counted; None without any."""
        windows = () if self.audit is None else self.audit.windows
        return max((w.found.error for w in windows if w.outcome is not Outcome.UNCOUNTED), default=None)

    @property
    def equivocation(self) -> bytes:
        """The proof of it; empty if there is none."""
        return next((found.proof for found in _equivocations(self.record, self.suspect.peer)), b"")


async def ask(
    model: AsyncSwarmModel, challenge: Challenge, suspect: Suspect, watch: Watch = UNWATCHED
) -> SessionRecord:
    """Send ``challenge`` over a chain in which ``suspect`` computes its span, and return what the session left behind.

    ``model`` is a client as any other, whose identity no server has seen. The session is as ``generate`` opens it: its
    chain is the fastest one that has the stage, it waits where servers are busy and heals what breaks, ends where the
    model ends the answer, and its OPENs commit to the challenge's seed as others do to their secrets. Raises what
    ``generate`` does, and ``PeerLostError`` if the session is not settled in time.
    """
    settled: asyncio.Future[SessionRecord] = asyncio.get_running_loop().create_future()

    def hear(record: SessionRecord) -> None:
        if record.secret == challenge.seed and not settled.done():
            settled.set_result(record)

    wish = Wish(Stage(suspect.peer, suspect.span), challenge.seed)
    model.witness.on_settled.append(hear)
    session = model.session(max_tokens=len(challenge.prompt) + challenge.max_new_tokens, wish=wish)
    try:
        await session.generate(progress=watch.answer, **_options(challenge))
    finally:
        await asyncio.shield(session.close())
    watch.doing("settling", 0)
    try:
        async with asyncio.timeout(SETTLE_S):
            return await settled
    except TimeoutError as error:
        raise PeerLostError(f"the session was not settled within {SETTLE_S:g} s") from error


def _options(challenge: Challenge) -> Options:
    how = challenge.sampling
    return Options(
        input_ids=challenge.prompt,
        max_new_tokens=challenge.max_new_tokens,
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        repetition_penalty=how.repetition_penalty,
        presence_penalty=how.presence_penalty,
        frequency_penalty=how.frequency_penalty,
        seed=how.seed,
    )


async def challenge_server(
    model: AsyncSwarmModel,
    challenge: Challenge,
    suspect: Suspect,
    reference: Reference,
    means: AuditMeans,
    *,
    rate: float = 1.0,
) -> Finding:
    """Send one challenge and judge what came of it. Whatever servers do ends up in the finding."""
    found = await sent(model, challenge, suspect, means.watch)
    return await examined(found, reference, means, rate=rate)


async def sent(model: AsyncSwarmModel, challenge: Challenge, suspect: Suspect, watch: Watch = UNWATCHED) -> Finding:
    """The first half: a finding that is ``unanswered``, or has a record to examine."""
    try:
        record = await ask(model, challenge, suspect, watch)
    except (NoRouteError, MisuseError) as error:
        return Finding(suspect, challenge, "undecided", f"no chain through it: {error.message}")
    except SwarmError as error:
        return Finding(suspect, challenge, "unanswered", f"no answer to judge: {error.message}")
    return Finding(suspect, challenge, "undecided", "not examined yet", record)


async def examined(found: Finding, reference: Reference, means: AuditMeans, *, rate: float = 1.0) -> Finding:
    """The second half: the suspect's stage of the settled session audited at ``rate``, which reveals the seed."""
    record, suspect = found.record, found.suspect
    if record is None:
        return found
    stage = stage_of(record, suspect)
    if stage is None:
        return replace(found, kind="unanswered", what="another server had to take over from it")
    if _equivocations(record, suspect.peer):
        return replace(found, kind="equivocated", what="it signed two different receipts with one counter")
    if not stage.receipts:
        return replace(found, kind="unanswered", what=_unsigned(record, suspect.peer))
    return judged(found, await audit_stage(record, stage, reference, means, rate=rate))


def stage_of(record: SessionRecord, suspect: Suspect) -> StageRecord | None:
    """The stage over which the server was challenged; None if it did not answer for it to the end."""
    wanted = suspect.peer, suspect.span
    return next((stage for stage in record.stages if (stage.peer, stage.opening.span) == wanted), None)


def judged(found: Finding, audit: StageAudit) -> Finding:
    """The finding with its audit: what the windows, or the lack of them, come to."""
    found = replace(found, audit=audit)
    if audit.failure is not None:
        return _without_windows(found, audit.failure)
    if audit.plan is None:
        return replace(found, kind="undecided", what="the lottery drew none of its windows")
    outcomes = [window.outcome for window in audit.windows]
    counted = len(outcomes) - outcomes.count(Outcome.UNCOUNTED)
    if audit.hard:
        said = f"{len(audit.hard)} of {counted} windows are wrong"
        if not audit.attested:
            return replace(found, kind="undecided", what=f"{said}, but after a heal nobody can say by whose fault")
        return replace(found, kind="failed", what=said)
    if not counted:
        return replace(found, kind="undecided", what="no window counts: the rows are not such as text leads to")
    soft = outcomes.count(Outcome.SOFT)
    said = f"{soft} of {counted} windows are off" if soft else f"{counted} window{'s' * (counted > 1)} right"
    return replace(found, kind="soft" if soft else "passed", what=said)


def _without_windows(found: Finding, failure: AuditFailure) -> Finding:
    if failure.kind == "contradiction":
        return replace(found, kind="failed", what=f"what it shows is not what it signed: {failure.what}")
    kind: Kind = "unanswered" if failure.kind in SHUNNED else "undecided"
    return replace(found, kind=kind, what=failure.what)


def standings_after(found: Finding, policy: Policy) -> dict[PeerId, Transition]:
    """What the audit means for the server, and for whoever fed it: see ``trial.consequences``.

    The own replica rules alone: a window that fails against it is a failure. A challenge gives one strike at most,
    named after its session. What the session's receipts show by themselves, equivocation too, is for ``Consequences``.
    """
    if found.audit is None or found.record is None:
        return {}
    ruling = Ruling(struck=found.suspect.peer, suspects=(found.suspect.peer,), reason="computed again here")
    rulings = tuple((window.window, ruling) for window in found.audit.hard)
    return consequences(found.record, Trial(found.audit, rulings), policy)


def _equivocations(record: SessionRecord | None, peer: PeerId) -> list[ReceiptProblem]:
    problems = () if record is None else record.problems
    return [found for found in problems if found.kind == "equivocation" and peer in found.peers]


def _unsigned(record: SessionRecord, peer: PeerId) -> str:
    """Why there is no receipt of it, as far as the session shows."""
    said = [found.what for found in record.problems if peer in found.peers]
    return f"it signed nothing: {'; '.join(said)}" if said else "it signed nothing"
