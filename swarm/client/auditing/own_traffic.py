"""A client that has its own conversations audited by other servers: a share of all windows, within a budget.

It shows users' rows to auditors, so it is off unless the user asks for it (``audit_my_traffic``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from swarm.client.auditing.audit import AuditMeans, plan_stage
from swarm.client.auditing.auditors import Auditing, ServerReference, covering
from swarm.client.auditing.budget import Budget
from swarm.client.auditing.material import Feed
from swarm.client.auditing.trial import Trial, consequences, try_stage
from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.core.clock import Clock
from swarm.core.errors import NetworkError, SwarmError
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.runtime.reputation import ReputationStore
from swarm.verification.standings.strikes import Policy, audit_rate
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import DENSE, Outcome, Thresholds

MAX_WAITING = 64
"""Sessions that wait to be audited; servers keep their rows for ten minutes anyway."""
KEPT_S = 540.0
"""For so long after a session its servers can be asked; they keep its rows a minute longer."""
FINISH_S = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficParts:
    """What auditing one's own traffic takes. ``listings`` reads the directory, ``feed`` is what a local head sends."""

    auditing: Auditing
    store: ReputationStore
    clock: Clock
    calibration: Calibration
    listings: Callable[[], Awaitable[list[Listing]]]
    feed: Callable[[SessionRecord], Awaitable[Feed]] | None = None
    thresholds: Thresholds = DENSE
    policy: Policy = field(default_factory=Policy)
    random: Random = field(default_factory=Random)


class TrafficAuditor:
    """Audits one settled session after the other in the background, each server at the rate that its standing asks for.

    After a strike what that server did in earlier sessions is audited in full, as far as it is still kept. ``told``
    hears of every trial. ``skipped`` counts sessions that were not looked at: over the budget, or too many.
    """

    def __init__(self, parts: TrafficParts, budget: Budget, told: Callable[[Trial], None] = lambda trial: None) -> None:
        self.skipped = 0
        self._parts = parts
        self._budget = budget
        self._told = told
        self._waiting: deque[SessionRecord] = deque()
        self._more = asyncio.Event()
        self._rest = asyncio.Event()
        self._rest.set()
        self._unchecked: set[str] = set()
        self._past: deque[tuple[float, SessionRecord]] = deque(maxlen=MAX_WAITING)
        self._looked_at: deque[tuple[bytes, int]] = deque(maxlen=8 * MAX_WAITING)
        """Stages that were audited in full."""
        self._worker = asyncio.create_task(self._work(), name="audit own traffic")

    def settled(self, record: SessionRecord) -> None:
        """A session is over; for ``Witness.on_settled``."""
        self._waiting.append(record)
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.skipped += 1
        self._rest.clear()
        self._more.set()

    @property
    def idle(self) -> bool:
        """True if nothing waits, and nothing is under way."""
        return self._rest.is_set()

    async def finish(self) -> None:
        """Give what waits ``FINISH_S``, then leave off: a client that is about to go was asked to audit too."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_S):
                await self._rest.wait()
        await self.close()

    async def close(self) -> None:
        """Leave off, whatever waits. Idempotent."""
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._rest.set()
                self._more.clear()
                await self._more.wait()
            record = self._waiting.popleft()
            if self._budget.wait_s(self._parts.clock.monotonic_s()) > 0:
                self.skipped += 1
                continue
            self._past.append((self._parts.clock.monotonic_s(), record))
            convicted: set[PeerId] = set()
            for stage in record.stages:
                convicted |= await self._audited(record, stage)
            await self._look_back(convicted)

    async def _look_back(self, convicted: Collection[PeerId]) -> None:
        """Audit what else of these servers is still kept; their rate is 1 now."""
        since_s = self._parts.clock.monotonic_s() - KEPT_S
        for at_s, record in list(self._past):
            for stage in record.stages:
                fresh = (record.session, stage.opening.stage) not in self._looked_at
                if at_s > since_s and stage.peer in convicted and fresh:
                    await self._audited(record, stage)

    async def _audited(self, record: SessionRecord, stage: StageRecord) -> frozenset[PeerId]:
        """Who was convicted by the audit of one stage."""
        try:
            return await self._audit(record, stage)
        except SwarmError as error:
            log.warning("an audit of %s came to nothing: %s", stage.plan.short, error)
            return frozenset()

    async def _audit(self, record: SessionRecord, stage: StageRecord) -> frozenset[PeerId]:
        parts = self._parts
        rate = audit_rate(await asyncio.to_thread(parts.store.standing, stage.peer), parts.policy)
        if plan_stage(record, stage, rate) is None:
            return frozenset()
        if rate == 1.0:
            self._looked_at.append((record.session, stage.opening.stage))
        auditors = await self._auditors(record, stage)
        feed = None if record.remote_head or parts.feed is None else await parts.feed(record)
        means = AuditMeans(
            transport=parts.auditing.transport, calibration=parts.calibration, thresholds=parts.thresholds, feed=feed
        )
        trial = await try_stage(record, stage, auditors, means, rate=rate)
        self._budget.spend(parts.clock.monotonic_s(), cost_bytes(trial))
        await asyncio.to_thread(self._note, record, trial)
        for peer in trial.convicted:
            log.warning("server %s answered wrongly for layers %s", peer[-8:], stage.opening.span)
        self._told(trial)
        return trial.convicted

    async def _auditors(self, record: SessionRecord, stage: StageRecord) -> list[ServerReference]:
        """Whoever covers the span and has nothing to do with the suspect's links, in random order."""
        parts, opening = self._parts, stage.opening
        try:
            listings = await parts.listings()
        except NetworkError as error:
            log.info("nobody to audit with: %s", error)
            return []
        excluded = neighbours(record, stage) | parts.store.ejected() | parts.store.accused()
        found = covering(listings, opening.span, Numerics.parse(opening.numerics), excluded=excluded)
        if len(found) < 2 and str(opening.span) not in self._unchecked:
            self._unchecked.add(str(opening.span))
            log.info("layers %s are not spot-checkable: %d others hold them", opening.span, len(found))
        parts.random.shuffle(found)
        return [ServerReference(plan, parts.auditing) for plan in found]

    def _note(self, record: SessionRecord, trial: Trial) -> None:
        counted = [window for window in trial.audit.windows if window.outcome is not Outcome.UNCOUNTED]
        worst = max((window.found.error for window in counted), default=None)
        suspect = trial.audit.stage.peer
        for peer, transition in consequences(record, trial, self._parts.policy).items():
            self._parts.store.change(peer, transition, error=worst if peer == suspect else None)


def neighbours(record: SessionRecord, stage: StageRecord) -> frozenset[PeerId]:
    """The stage's own server, and those at the other ends of its links."""
    number, upstream = stage.opening.stage, stage.upstream
    linked = [other for other in record.stages if other.opening.stage == upstream or other.upstream == number]
    return frozenset({stage.peer, *(other.peer for other in linked)})


def cost_bytes(trial: Trial) -> int:
    """About what a trial moved: what was fetched, and once more, in and out, for each server that computed it."""
    audit = trial.audit
    if audit.material is None:
        return audit.fetched_bytes
    replayed = len(audit.material.inputs) + len(audit.material.outputs)
    return audit.fetched_bytes + replayed * (1 + bool(trial.rulings) + len(trial.silent))
