"""A chain of servers, opened as one: control streams to all of them, links to the first, answers from the last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from swarm.client.chains.diagnosis import CRIME, LINK, WORD, Diagnosis, Loss
from swarm.client.chains.entrance import Entrance
from swarm.client.chains.errand import Errand
from swarm.client.chains.hearing import Hearing
from swarm.client.chains.member import Member, Patience, SessionParts
from swarm.client.chains.mend import Attempt, AttemptFailed, Rows, blame
from swarm.client.chains.mend_plan import check_patches
from swarm.client.chains.pending import PendingSteps
from swarm.client.chains.roster import Roster
from swarm.client.evidence.receipts import SessionNames, SessionReceipts
from swarm.client.evidence.witness import Witness
from swarm.client.plan import ChainPlan, Feed, Patch, StagePlan
from swarm.core.errors import ChainOpenError, MisuseError, PeerError, PeerLostError, ProtocolViolation, SwarmError
from swarm.core.ids import SECRET_BYTES, SESSION_BYTES, PeerId
from swarm.runtime.clock import SystemClock
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.verification.challenges.commitment import commit
from swarm.wire.evidence import Signed
from swarm.wire.fields import Lane
from swarm.wire.frames import Frame
from swarm.wire.messages import Accept, LinkLost, Pace, Replayed, Result, Step

__all__ = ["Chain", "ChainPlan", "Feed", "LastWords", "Loss", "Patch", "StagePlan"]

OPENING = Patience(dial_s=10.0, open_s=8.0, relink_s=0.0)
MENDING = Patience(dial_s=3.0, open_s=3.0, relink_s=5.0)
"""Somebody waits in the middle of an answer. RELINK may wait for a forward to end; who is frozen the pulse tells."""

LastWords = Callable[[Sequence[Member]], Awaitable[None]]
"""What is still to be said to the servers of a session before it is closed; it raises nothing."""


class Chain:
    """An open chain. Steps go in at the first server, results come back from the last.

    A chain that broke may be mended; until then nobody is answered. What its servers sign goes to ``receipts``.
    """

    def __init__(
        self, plan: ChainPlan, transport: Transport, pulse: PulseKeeper | None = None, witness: Witness | None = None
    ) -> None:
        self.plan = plan
        """What was opened first; ``stages`` tells who serves now."""
        self.unanswered = False
        """Set by whoever gave up waiting for a step."""
        self.generation = -1
        """What steps carry; ``mend`` raises it, also when it fails. Epoch and sequence start again at 0 then."""
        self.on_pace: Callable[[int, Pace], None] | None = None
        """Told each server's PACE, with its place in ``stages``."""
        key, nonce = secrets.token_bytes(SESSION_BYTES), secrets.token_bytes(SECRET_BYTES)
        names = SessionNames(transport.peer_id, key, nonce, commit(plan.audit_secret))
        self.witness = witness or Witness(SystemClock())
        self.receipts = SessionReceipts(plan, names, self.witness.clock)
        self._parts = SessionParts(plan, transport, pulse, names, self.witness)
        self._error: SwarmError | None = None
        self._entrance: Entrance | None = None
        self._attempt: Attempt | None = None
        self._mending = Errand()
        self._interrupted = False
        self._diagnosis = Diagnosis(transport.peer_id)
        self._roster = Roster(self._diagnosis, self)
        self._hearing = Hearing(self._judge)
        self._pending = PendingSteps()
        self._closing: asyncio.Task[None] | None = None

    # -- what is known --------------------------------------------------------------------------------------

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """Who serves now, in order; a place is an index into this. It changes only when ``mend`` has succeeded."""
        return self._roster.stages

    @property
    def loads(self) -> dict[PeerId, Accept]:
        """What each server said of its load when it accepted."""
        return self._roster.loads

    @property
    def silent(self) -> frozenset[PeerId]:
        """Who is being asked to join and has not answered yet."""
        order = self._attempt.order if self._attempt is not None else ()
        return frozenset(member.peer for member in order if not member.accepted)

    @property
    def error(self) -> SwarmError | None:
        """What broke the chain, for people; None while it is whole."""
        return self._error

    @property
    def broken(self) -> bool:
        """True if no step can be sent, until the chain is mended or for ever."""
        return self._error is not None

    @property
    def lost(self) -> Mapping[int, Loss]:
        """The places that are lost. It may grow until the next ``mend``, and while one runs."""
        return self._roster.lost

    @property
    def cuts(self) -> frozenset[tuple[int, int]]:
        """Links ``(place, place + 1)`` that were reported broken while the servers at both ends live.

        A patch over either end mends it; without one ``mend`` has the two dial each other anew.
        """
        return self._roster.cuts

    @property
    def suspects(self) -> frozenset[PeerId]:
        """Who was at fault in what broke, over the whole session.

        Both ends of a link that is cut: either may have lied about the other. Without ``unanswered`` it leaves out
        newcomers that failed while they were taken in, which ``mend`` named when it raised.
        """
        if self.unanswered:
            return frozenset(member.peer for member in self._roster.members)
        return self._diagnosis.culprits

    def renew(self, stages: Sequence[StagePlan]) -> None:
        """Note newer announcements of servers that are here, found by peer id (spans are ignored).

        A newcomer is told the next server's, and refuses one that has expired (they live 60 s): call it with a fresh
        view before ``mend``.
        """
        self._roster.renew(stages)

    # -- opening and mending --------------------------------------------------------------------------------

    @classmethod
    async def open(cls, plan: ChainPlan, transport: Transport, pulse: PulseKeeper | None = None) -> Chain:
        """Reserve every stage at once, in one round trip.

        Raises ``ChainOpenError`` with each failing server's own error; then nothing stays reserved anywhere.
        """
        chain = cls(plan, transport, pulse)
        await chain.start()
        return chain

    async def start(self) -> None:
        """See ``open``; for who looks at the chain meanwhile."""
        order = self._roster.newcomers(self.plan.stages)
        rows = Rows(0, Feed(lambda a, b: (), ids=False, horizon=0), lambda done, total: None)
        try:
            await self._run(self._take(order, OPENING, rows))
        except BaseException:
            await self.close()
            raise

    async def mend(self, patches: Sequence[Patch], keep: int, feed: Feed, progress: Callable[[int, int], None]) -> None:
        """One attempt to make a broken chain whole, in the next generation (or the one after that).

        ``patches`` are in order and do not overlap; they cover every lost place but slow ones, which otherwise go on.
        Newcomers are opened and all others relinked at once, the first ``keep`` rows are replayed to who lacks them, by
        the servers' logs or from ``feed``, and ``progress(rows, keep)`` is told how many rows all of them hold.
        Afterwards ``stages`` are the new ones, ``broken`` is False, and steps go on at ``keep`` in ``generation``,
        epoch 0, sequence 0, the first with the answer's parameters.

        Raises ``ChainOpenError`` with the errors of those that failed, by peer id: newcomers are forgotten again, and
        the caller notes whom to avoid (``suspects`` leaves them out); others are then in ``lost``, and whoever is not
        keeps its KV, so that another attempt may follow. ``MisuseError`` for patches that do not fit, a chain that is
        whole or is being mended. Raises ``PeerLostError`` if the chain is closed meanwhile. Cancelled, it leaves
        nothing open that ``close`` does not know of.
        """
        if self._closing is not None or self._error is None or self._mending.running:
            raise MisuseError("only a chain that is broken, and nobody mends, can be mended")
        lost = self.lost
        check_patches(self.stages, patches, [place for place, loss in lost.items() if loss.kind != "slow"])
        order = list(self._roster.members)
        for patch in reversed(patches):
            order[patch.first : patch.end] = self._roster.newcomers(patch.newcomers)
        redial = self._diagnosis.cuts(self._roster.numbers)
        for member in order:
            self._diagnosis.forgive(member.number)
        rows = Rows(keep, feed, progress, self.receipts.whole_rows(keep))
        await self._run(self._take(order, MENDING, rows, redial))

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run an attempt, which evidence and ``close`` can end as its caller can."""
        attempt = await self._mending.run(work, "mend a chain")
        if self._closing is not None or attempt.cancelled():
            raise PeerLostError("the session is closed")
        attempt.result()

    async def _take(
        self, order: Sequence[Member], patience: Patience, rows: Rows, redial: Collection[tuple[int, int]] = ()
    ) -> None:
        """Make ``order`` the chain, or leave everything as it was."""
        self._interrupted = False
        self._attempt = attempt = Attempt(self._parts, order, self._entrance, self, patience, self._next_generation)
        try:
            await attempt.run(rows, redial)
            if not self._roster.members and any(member.number in self._diagnosis.lost for member in order):
                raise AttemptFailed(())
        except BaseException as error:
            failed: ChainOpenError | None = None
            if isinstance(error, AttemptFailed) or self._interrupted:
                told = error.failures if isinstance(error, AttemptFailed) else ()
                failed = blame(attempt, told, self._diagnosis, self._roster.numbers)
            self._undo(attempt)
            if failed is not None:
                raise failed from error
            raise
        finally:
            self._attempt = None
        self._settle(attempt)

    def _next_generation(self) -> int:
        self.generation += 1
        if self._attempt is not None:
            self._diagnosis.seat(self.generation, [member.seat for member in self._attempt.order])
        return self.generation

    def _undo(self, attempt: Attempt) -> None:
        """Forget the newcomers of a failed attempt; those who were here before stay."""
        newcomers = [member for member in attempt.order if member not in self._roster.members]
        self._diagnosis.excuse(_numbers(newcomers))
        self._diagnosis.seat(self.generation, [member.seat for member in self._roster.members])
        for member in newcomers:
            self._roster.dismiss(member)
        self._roster.dismiss_lost()
        if attempt.entrance is not None and attempt.entrance is not self._entrance:
            self._roster.bid(attempt.entrance.close())
        if self._roster.members and attempt.generation >= 0:
            self.receipts.heal_failed(attempt.mended)

    def _settle(self, attempt: Attempt) -> None:
        """The attempt has made a chain: whoever it does without is sent home."""
        self._roster.seat(attempt.order)
        if self._entrance is not None and self._entrance is not attempt.entrance:
            self._roster.bid(self._entrance.close())
        self._entrance = attempt.entrance
        self.receipts.seated([member.signer for member in attempt.order], attempt.mended)
        self._diagnosis.settle()
        self._error = None

    # -- steps ----------------------------------------------------------------------------------------------

    async def send(self, step: Step, payload: Sequence[bytes | memoryview], lane: Lane) -> asyncio.Future[Frame]:
        """Put a step on its way; the future is its ``Result`` frame, or the error that broke the chain.

        Raises that error if the chain is broken already.
        """
        if self._error is not None or self._entrance is None:
            raise self._error or PeerLostError("the chain is not open")
        future = self._pending.expect(step)
        self.receipts.sent(step, payload)
        await self._pending.send(self._entrance.send(step, payload, lane))
        return future

    def forget(self) -> None:
        """A rollback: results of steps sent before it no longer matter."""
        self._pending.forget()

    def on_frame(self, member: Member, frame: Frame) -> None:
        """See ``Ears``."""
        message = frame.message
        if isinstance(message, Result):
            order = self._roster.members if self._attempt is None else self._attempt.order
            if member not in (*self._roster.members[-1:], *order[-1:]):
                raise ProtocolViolation("only the last server sends results")
            if self._pending.resolve(message, frame):
                self.receipts.answered(message, frame.payload)
        elif isinstance(message, Signed):
            self._hear_receipt(member, message)
        elif isinstance(message, LinkLost):
            if self._diagnosis.told(member.number, message):
                self._weigh()
        elif isinstance(message, Replayed) and self._attempt is not None:
            self._attempt.hear(member, message)
        elif isinstance(message, Pace) and self.on_pace is not None and member in self._roster.members:
            self.on_pace(self._roster.members.index(member), message)
        elif not isinstance(message, Pace | Replayed):
            raise ProtocolViolation(f"unexpected {type(message).__name__}")

    def _hear_receipt(self, member: Member, message: Signed) -> None:
        """Whoever lies in a receipt breaks the protocol, also if another's completes the window that shows it."""
        try:
            self.receipts.hear(member.number, member.peer, message)
        except PeerError as error:
            if error.peer in ("", member.peer):
                raise
            for liar in self._roster.members:
                if liar.peer == error.peer:
                    self.on_loss(liar, CRIME, Loss("failed", PeerLostError(error.message, peer=liar.peer)))

    # -- breaking and ending --------------------------------------------------------------------------------

    def on_loss(self, member: Member, weight: int, loss: Loss) -> None:
        """See ``Ears``."""
        if not member.parted and self._diagnosis.saw(member.number, weight, loss):
            self._weigh()

    def give_up(self, place: int, loss: Loss) -> None:
        """The caller's word that the server at ``place`` is lost (slow, late, or its results are wrong).

        Breaks the chain at once. A slow one may stay after all: a ``mend`` that does not cover it takes it back.
        """
        if not 0 <= place < len(self._roster.members):
            raise MisuseError(f"the chain has no place {place}")
        weight = LINK if loss.kind == "slow" else WORD  # it may turn out to be gone
        self._diagnosis.saw(self._roster.members[place].number, weight, loss)
        self._judge()

    def _weigh(self) -> None:
        if self._closing is None:
            self._hearing.weigh(self._diagnosis, self._seated)

    @property
    def _seated(self) -> list[int]:
        return _numbers(self._attempt.order if self._attempt is not None else self._roster.members)

    def _judge(self) -> None:
        """If somebody is lost, or a link: end the attempt that is under way, or else the steps."""
        self._hearing.call_off()
        if self._closing is not None:
            return
        numbers, attempt = self._seated, self._attempt
        lost = any(number in self._diagnosis.lost for number in numbers)
        if attempt is not None:
            cut = bool(self._roster.members) and bool(self._diagnosis.cuts(numbers, self.generation))
            if (lost or cut) and self._mending.running:
                self._interrupted = True
                self._mending.stop()
        elif lost or self._diagnosis.cuts(numbers):
            self._end(self._diagnosis.error(numbers) or PeerLostError("the chain broke"))
            self._roster.dismiss_lost()

    def _end(self, error: SwarmError) -> None:
        """From here on nothing is answered; whoever waits for a step is told why."""
        self._error = self._error or error
        self._pending.fail(self._error)

    async def close(self, settle: LastWords | None = None) -> None:
        """Tell every server that the session is over, and hang up; before that have ``settle`` talk to them.

        Idempotent, never raises but ``CancelledError``, and goes on to the end by itself when cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(settle), name="closing a chain")
        await asyncio.shield(self._closing)

    async def _close(self, settle: LastWords | None) -> None:
        self._hearing.call_off()
        self._end(PeerLostError("the session is closed"))
        await self._mending.stopped()
        if settle is not None:
            await settle(self._roster.members)
        if self._entrance is not None:
            self._roster.bid(self._entrance.close())
        await self._roster.close()


def _numbers(members: Sequence[Member]) -> list[int]:
    return [member.number for member in members]
