"""Keeps one session's chain whole: who takes over what was lost, for as long as somebody can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from swarm.client.chains.chain import Chain, Feed, LastWords, Loss, Patch, StagePlan
from swarm.client.finding.ground import Ground
from swarm.client.finding.opener import BUSY_JITTER, OpenChain
from swarm.client.recovery.casualties import Mercy
from swarm.client.recovery.outlook import Outlook
from swarm.client.recovery.relinks import Relinks
from swarm.client.recovery.standbys import Reserve, StandbyKeeper, stages_of
from swarm.client.recovery.takeover import Takeover
from swarm.client.recovery.targets import patched
from swarm.client.results import ChainStage, Heal, Progress, ProgressCallback, served_by
from swarm.core.errors import (
    BusyError,
    ChainOpenError,
    NoRouteError,
    PeerError,
    PeerLostError,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import PeerId
from swarm.scheduling.handover import Handovers, Report
from swarm.scheduling.routing import RouteNeeds
from swarm.wire.messages import Pace

LOOK_EVERY_S = 1.0
"""While nobody holds the lost layers, the directory is read so often."""
LEAST_WAIT_S = 0.05
MAX_ATTEMPTS = 32
"""So many mends without a row that came through, and the chain is given up: a swarm of liars goes on for ever."""

FeedFor = Callable[[Sequence[StagePlan]], Awaitable[Feed]]
"""What newcomers of these stages, the whole chain as it will be, are fed."""


@dataclass(frozen=True, slots=True)
class HealOptions:
    """How a client heals. Times in seconds; ``patience_s`` is how long to wait where nobody holds what was lost."""

    patience_s: float = 60.0
    mixed_numerics: bool = False


class Healer:
    """One open session's chain, its standbys, and what has befallen it. Not for concurrent use."""

    def __init__(self, opened: OpenChain, ground: Ground, keeper: StandbyKeeper, options: HealOptions) -> None:
        self.chain: Chain = opened.chain
        self.heals: list[Heal] = []
        """Since ``begin``."""
        self.decoding = False
        """Set while tokens come one by one: only then is a server slow that takes its time."""
        self._opened = opened
        self._ground = ground
        self._keeper = keeper
        self._options = options
        self._needs = _same_class(opened.needs, self.chain.stages)
        self._exact = opened.route.exact and self.chain.plan.codec == "raw"
        self._handovers = Handovers()
        self._reserve = Reserve(ground, self._standby_needs)
        self._reserve.serve(self.chain.stages)
        wanted = [self._needs, replace(self._needs, numerics="any")]  # those of the chain's own class first
        self._takeover = Takeover(
            self.chain, ground, keeper, self._reserve, wanted if options.mixed_numerics else wanted[:1]
        )
        self._casualties = self._takeover.casualties
        self._report: ProgressCallback = _silent
        self._closed = asyncio.Event()
        self._attempts = 0
        self._waited_s = 0.0
        self._all_late = False
        self._proven = True
        self._relinks = Relinks(ground.view.links, ground.clock)
        self.chain.on_pace = self._paced

    @property
    def exact(self) -> bool:
        """All who ever served were of one numerics class, and the wire loses nothing."""
        return self._exact

    @property
    def served_by(self) -> tuple[ChainStage, ...]:
        """Who serves now."""
        return served_by(self.chain.stages)

    def begin(self, report: ProgressCallback) -> None:
        """An answer begins; until ``rest`` the standbys are kept current and warm."""
        self.heals = []
        self._report = report
        self._progressed()
        self._leave_ejected()
        self._keeper.watch(self._reserve)

    def rest(self) -> None:
        """The answer has ended. Idempotent."""
        self._report = _silent
        self.decoding = False
        self._keeper.unwatch(self._reserve)

    async def close(self, settle: LastWords | None = None) -> None:
        """End the session at every server; whoever heals it gives up. Idempotent."""
        if self._closed.is_set():
            await self.chain.close()
            return
        self._closed.set()
        self.rest()
        await self._opened.close(settle)

    # -- what the steps tell --------------------------------------------------------------------------------

    def progressed(self) -> None:
        """A step came through: whatever happens next is new trouble."""
        self._proven = True
        self._relinks.progressed(self.chain.stages)
        if self._attempts or self._all_late:
            self._progressed()

    def _progressed(self) -> None:
        self._attempts, self._waited_s, self._all_late = 0, 0.0, False
        self._relinks.rest()

    def blame_tail(self, error: SwarmError) -> None:
        """What the last server answered is wrong: it is lost."""
        tail = self.chain.stages[-1]
        self.chain.give_up(len(self.chain.stages) - 1, Loss("failed", PeerLostError(error.message, peer=tail.peer)))

    def late(self, timeout_s: float) -> None:
        """A step was not answered for ``timeout_s``: give up who holds it, once the whole chain if nobody says so.

        Raises ``PeerLostError`` where even that did not help.
        """
        holder = self._handovers.holder(self._ground.clock.monotonic_s())
        said = f"no answer to a step within {timeout_s:g} s"
        if holder is None and self._all_late:
            raise PeerLostError(said, hint="ask again: other servers may answer")
        self._all_late = holder is None
        for place, stage in enumerate(self.chain.stages):
            if holder in (None, place):
                reason = f"{said}; server {stage.short} for layers {stage.span} had it"
                self.chain.give_up(
                    place, Loss("late", PeerLostError(said if holder is None else reason, peer=stage.peer))
                )

    def _paced(self, place: int, pace: Pace) -> None:
        """A server told how long its steps take."""
        self._leave_ejected()
        report = Report(self._ground.clock.monotonic_s(), pace.step_s, pace.held_s)
        if not self.decoding or self.chain.broken:
            self._handovers.see(place, report)
            return
        spare = self._reserve.at(place)
        if self._handovers.note(place, report, None if spare is None else spare.limit_s):
            stage, takes_s = self.chain.stages[place], max(pace.step_s or 0.0, pace.held_s)
            reason = (
                f"server {stage.short} for layers {stage.span} is alive, but slow: "
                f"it takes {takes_s * 1e3:.0f} ms a step, where others would take less"
            )
            self.chain.give_up(place, Loss("slow", PeerLostError(reason, peer=stage.peer)))

    def _leave_ejected(self) -> None:
        """Whoever was ejected since he was chosen is lost."""
        ejected = self._ground.reputation.ejected()
        for place, stage in enumerate(self.chain.stages if ejected else ()):
            if stage.peer in ejected and place not in self.chain.lost:
                reason = f"server {stage.short} for layers {stage.span} was ejected"
                self.chain.give_up(place, Loss("gone", PeerLostError(reason, peer=stage.peer)))

    # -- mending --------------------------------------------------------------------------------------------

    async def heal(self, keep: int, feed_for: FeedFor, *, patience_s: float | None = None) -> None:
        """Make the broken chain whole, with the first ``keep`` rows at every server of it.

        Tries one set of newcomers after the other, at most ``MAX_ATTEMPTS`` times without progress. Where nobody can
        take over it waits for somebody, up to ``patience_s`` (None: as the options say), and tells so.

        Raises ``PeerLostError`` with what was lost and why nobody took over.
        """
        patience_s = self._options.patience_s if patience_s is None else patience_s
        began_s = self._ground.clock.monotonic_s()
        self._handovers.restart()
        why = self._why()
        self._report(Progress("healing", total=keep, detail=why))
        while True:
            if self._closed.is_set():
                raise PeerLostError("the session is closed")
            if self._attempts >= MAX_ATTEMPTS:
                raise PeerLostError(f"{why}; {MAX_ATTEMPTS} others in a row did no better", peer=self._first_lost())
            try:
                outlook, patches = await self._takeover.choose()
                self._relinks.check(self.chain.stages, self.chain.cuts, patches)
            except NoRouteError as error:
                await self._wait(error, patience_s)
                self._relinks.rest()
                continue
            before = self.chain.stages
            if await self._attempt(outlook, patches, keep, feed_for):
                break
        pause_s = self._ground.clock.monotonic_s() - began_s
        self._healed(before, patches, Heal((), (), pause_s, keep if patches else 0, why))

    async def _attempt(self, outlook: Outlook, patches: Sequence[Patch], keep: int, feed_for: FeedFor) -> bool:
        """One mend; False if it failed, with everybody noted who was at fault."""
        chain, loads, needs = self.chain, self._ground.view.loads, self._needs
        newcomers = [stage for patch in patches for stage in patch.newcomers]
        peers = [stage.peer for stage in newcomers]
        self._attempts += bool(newcomers)
        feed = await feed_for(patched(chain.stages, patches))
        chain.renew(outlook.view.plans(stages_of(chain.stages)))
        covered = {place for patch in patches for place in range(patch.first, patch.end)}
        if self._closed.is_set() or not self._takeover.damage().gone <= covered:
            return False  # somebody else was lost meanwhile

        def told(done: int, total: int) -> None:
            self._report(Progress("healing", done, total, f"{_names(newcomers)} take over"))

        loads.begin(peers, needs.kv_tokens)
        began_s = self._ground.clock.monotonic_s()
        try:
            await chain.mend(patches, keep, feed, told)
        except ChainOpenError as error:
            self._note_failures(error)
            self._waited_s += self._ground.clock.monotonic_s() - began_s
            return False
        finally:
            loads.end(peers, needs.kv_tokens)
        said = {peer: chain.loads[peer] for peer in peers if peer in chain.loads}
        loads.accept(said, outlook.view.listings, self._ground.clock.monotonic_s())
        return True

    def _note_failures(self, error: ChainOpenError) -> None:
        now_s = self._ground.clock.monotonic_s()
        for name, failure in error.failures.items():
            peer = PeerId(name)
            if isinstance(failure, BusyError):
                asked_s = max(failure.retry_after_s, LEAST_WAIT_S) * self._ground.random.uniform(*BUSY_JITTER)
                self._casualties.note_busy(peer, failure, now_s + asked_s)
                continue
            at_fault = isinstance(failure, PeerError | RefusedError)
            self._casualties.note(peer, "failed" if at_fault else "gone")
            if not isinstance(failure, RefusedError):
                self._avoid(peer, now_s)

    def _healed(self, before: Sequence[StagePlan], patches: Sequence[Patch], heal: Heal) -> None:
        """Other servers stand in the chain now."""
        now_s = self._ground.clock.monotonic_s()
        for peer in self.chain.suspects:
            self._avoid(peer, now_s)
        lost = [stage for patch in patches for stage in before[patch.first : patch.end]]
        newcomers = [stage for patch in patches for stage in patch.newcomers]
        for stage in lost:
            if not self._casualties.knows(stage.peer) and stage.peer not in {other.peer for other in newcomers}:
                self._casualties.note(stage.peer, "slow")  # it lives, and was replaced for a link of its own
        if not self._proven and self.heals and not self.heals[-1].replaced_by:  # a link made anew that did not hold
            heal = replace(heal, pause_s=heal.pause_s + self.heals.pop().pause_s)
        self._proven = False
        self._relinks.seated()
        self._takeover.mended()
        self.heals.append(replace(heal, lost=served_by(lost), replaced_by=served_by(newcomers)))
        numerics = {str(stage.announcement.numerics) for stage in (*lost, *self.chain.stages)}
        self._exact = self._exact and len(numerics) == 1
        self._handovers.restart()
        self._reserve.serve(self.chain.stages)

    def _avoid(self, peer: PeerId, now_s: float) -> None:
        """Once for each failure: a session that ends notes those who broke it as well."""
        if peer not in self._opened.noted:
            self._opened.noted.add(peer)
            self._ground.avoided.note(peer, now_s)

    # -- waiting --------------------------------------------------------------------------------------------

    async def _wait(self, error: NoRouteError, patience_s: float) -> None:
        """Nobody can take over now: let some time pass, or raise once there was enough of it."""
        now_s = self._ground.clock.monotonic_s()
        due_s, busy = self._casualties.busy(now_s)
        wait_s = min(LOOK_EVERY_S, max(due_s - now_s, LEAST_WAIT_S))
        if self._waited_s + wait_s > patience_s:
            waited = f" within {patience_s:g} s" if patience_s else ""
            reasons = "; ".join(filter(None, (error.message, busy)))
            raise PeerLostError(
                f"{self._why()}; nobody took over{waited}: {reasons}", peer=self._first_lost(), hint=error.hint
            ) from error
        detail = f"{busy or error.message}; waiting up to {patience_s - self._waited_s:.0f} s for one"
        self._report(Progress("healing", detail=detail))
        self._waited_s += wait_s
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._closed.wait()
                raise PeerLostError("the session is closed")

    # -- words and needs ------------------------------------------------------------------------------------

    def _why(self) -> str:
        error = self.chain.error
        return error.message if error is not None else "the chain broke"

    def _first_lost(self) -> str:
        error = self.chain.error
        return error.peer if isinstance(error, PeerLostError) else ""

    def _standby_needs(self) -> RouteNeeds:
        now_s = self._ground.clock.monotonic_s()
        return replace(self._needs, excluded=self._casualties.excluded(Mercy.NONE, frozenset(), now_s))


def _same_class(needs: RouteNeeds, stages: Sequence[StagePlan]) -> RouteNeeds:
    """Newcomers must compute as those that are there do, if these are of one class."""
    classes = {str(stage.announcement.numerics): stage.announcement.numerics for stage in stages}
    return replace(needs, numerics=next(iter(classes.values())) if len(classes) == 1 else "any")


def _names(stages: Sequence[StagePlan]) -> str:
    return ", ".join(f"{stage.short}[{stage.span}]" for stage in stages) or "the same servers"


def _silent(_: Progress) -> None:
    """Nobody listens."""
