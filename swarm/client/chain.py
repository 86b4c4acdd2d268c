"""A chain of servers, opened as one: control streams to all of them, links to the first, answers from the last."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence

from swarm.client.diagnosis import Loss
from swarm.client.plan import ChainPlan, Feed, Patch, StagePlan
from swarm.core.errors import (
    BusyError,
    ChainOpenError,
    MisuseError,
    NetworkError,
    PeerLostError,
    ProtocolViolation,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import SECRET_BYTES, SESSION_BYTES, PeerId
from swarm.core.limits import PROTOCOL_MAJOR
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.transport.pulse import Hold, PulseKeeper
from swarm.verification.commitment import AUDIT_SECRET_BYTES, commit
from swarm.wire.frames import Frame
from swarm.wire.messages import (
    LANES,
    Accept,
    Busy,
    Close,
    Downstream,
    Failed,
    Hello,
    Lane,
    LinkLost,
    Noop,
    Open,
    Pace,
    Refused,
    Result,
    Step,
    Upstream,
)
from swarm.wire.session import Channel, Phase, Role

__all__ = ["Chain", "ChainPlan", "Feed", "Loss", "Patch", "StagePlan"]

OPEN_TIMEOUT_S = 8.0
MAX_RESULT_FRAME_BYTES = 16 * 1024 * 1024
"""Room for every row a step may want answered, in float32, of a model far wider than any."""
HANG_UP_S = 2.0
"""How long a peer that reads nothing may hold up the end of a session."""
LINK_EVIDENCE = 1
"""The least weight of evidence: somebody's word that a link broke."""
BLAME_WAIT_S = 0.1
"""How long a broken link waits for a better reason: a server's own word beats its neighbours' guesses."""


class Chain:
    """An open chain. Steps go in at the first server, results come back from the last.

    ``audit_secret`` is what the OPENs commit to; it is revealed only after the session, to decide what is audited.
    """

    def __init__(self, plan: ChainPlan, transport: Transport, pulse: PulseKeeper | None = None) -> None:
        self.plan = plan
        self.loads: dict[PeerId, Accept] = {}
        self._transport = transport
        self._pulse = pulse
        self._holds: list[Hold] = []
        self._session = secrets.token_bytes(SESSION_BYTES)
        self.audit_secret = secrets.token_bytes(AUDIT_SECRET_BYTES)
        self._nonce = secrets.token_bytes(SECRET_BYTES)
        self._link_secrets = [secrets.token_bytes(SECRET_BYTES) for _ in range(len(plan.stages) + 1)]
        self._controls: dict[int, FrameStream] = {}
        self._links: dict[Lane, FrameStream] = {}
        self._pending: dict[tuple[int, int, int], asyncio.Future[Frame]] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._error: SwarmError | None = None
        self._blame: tuple[int, SwarmError] | None = None
        self._blame_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self.unanswered = False
        """Set by whoever gave up waiting for a step."""
        self.on_pace: Callable[[int, Pace], None] | None = None
        """Told each server's PACE, with the server's place in ``stages``."""
        self.generation = 0
        """What steps carry; ``mend`` raises it, also when it fails. Epoch and sequence start again at 0 then."""

    @property
    def suspects(self) -> frozenset[PeerId]:
        """Who may have broken the chain; empty if nobody has.

        A lost link blames the servers at both its ends: either may have lied about the other.
        """
        peers = [stage.peer for stage in self.plan.stages]
        if self.unanswered:
            return frozenset(peers)
        if self._error is None or self._blame is None:
            return frozenset()
        weight, error = self._blame
        named = [index for index, peer in enumerate(peers) if isinstance(error, PeerLostError) and peer == error.peer]
        before = [index - 1 for index in named if index > 0 and weight == LINK_EVIDENCE]
        return frozenset(peers[index] for index in (*named, *before)) or frozenset(peers)

    @property
    def broken(self) -> bool:
        """True if no step can be sent any more."""
        return self._error is not None

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """Who serves now, in order; a place is an index into this. It changes only when ``mend`` has succeeded."""
        return tuple(self.plan.stages)

    @property
    def error(self) -> SwarmError | None:
        """What broke the chain, for people; None while it is whole."""
        return self._error

    @property
    def lost(self) -> Mapping[int, Loss]:
        """The places that are lost. It may grow until the next ``mend``, and while one runs."""
        return {}

    @property
    def cuts(self) -> frozenset[tuple[int, int]]:
        """Links ``(place, place + 1)`` that were reported broken while the servers at both ends live.

        A patch over either end mends it; without one ``mend`` has the two dial each other anew.
        """
        return frozenset()

    def renew(self, stages: Sequence[StagePlan]) -> None:
        """Note newer announcements of servers that are here, found by peer id (spans are ignored).

        A newcomer is told the next server's, and refuses one that has expired (they live 60 s): call it with a fresh
        view before ``mend``.
        """
        raise MisuseError("not yet")

    def give_up(self, place: int, loss: Loss) -> None:
        """The caller's word that the server at ``place`` is lost (slow, late, or its results are wrong).

        Breaks the chain at once. A slow one may stay after all: a ``mend`` that does not cover it takes it back.
        """
        raise MisuseError("not yet")

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
        raise MisuseError("not yet")

    # -- opening --------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, plan: ChainPlan, transport: Transport, pulse: PulseKeeper | None = None) -> Chain:
        """Reserve every stage at once, in one round trip.

        Raises ``ChainOpenError`` with each failing server's own error; then nothing stays reserved anywhere.
        """
        chain = cls(plan, transport, pulse)
        chain._hold_pulses()
        try:
            await chain._open_all()
        except BaseException:
            await chain.close()
            raise
        chain._readers = [asyncio.create_task(chain._read_control(index)) for index in chain._controls]
        chain._readers += [asyncio.create_task(chain._watch_link(link)) for link in chain._links.values()]
        return chain

    async def _open_all(self) -> None:
        stages = self.plan.stages
        asked = [(stage.peer, self._open_stage(index)) for index, stage in enumerate(stages)]
        asked += [(stages[0].peer, self._open_link(lane)) for lane in LANES]
        outcomes = await asyncio.gather(*(opening for _, opening in asked), return_exceptions=True)
        failures: dict[str, SwarmError] = {}
        for (peer, _), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, SwarmError):
                failures.setdefault(peer, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        if failures:
            raise ChainOpenError(failures)

    def _open_message(self, index: int) -> Open:
        plan, last = self.plan, len(self.plan.stages) - 1
        stage = plan.stages[index]
        return Open(
            protocol=PROTOCOL_MAJOR,
            model=str(plan.model),
            session=self._session,
            stage=index,
            start=stage.span.start,
            end=stage.span.end,
            embed=plan.embed and index == 0,
            head=plan.head and index == last,
            kv_tokens=plan.kv_tokens,
            numerics=plan.numerics,
            codec=plan.codec,
            upstream=Upstream(
                plan.stages[index - 1].peer if index else self._transport.peer_id, self._link_secrets[index]
            ),
            downstream=Downstream(plan.stages[index + 1].record, index + 1, self._link_secrets[index + 1])
            if index < last
            else None,
            nonce=self._nonce,
            commitment=commit(self.audit_secret),
            priority=plan.priority,
        )

    async def _open_stage(self, index: int) -> None:
        stage = self.plan.stages[index]
        control = await self._dial(stage, Channel.CONTROL)
        self._controls[index] = control
        await control.send(self._open_message(index))
        reply = (await control.receive_within(OPEN_TIMEOUT_S, "answer to OPEN")).message
        if isinstance(reply, Busy):
            raise BusyError(f"server {stage.short} is busy: {reply.reason}", retry_after_s=reply.retry_after_s)
        if isinstance(reply, Refused):
            raise RefusedError(f"server {stage.short} refused: {reply.reason}")
        if isinstance(reply, Accept):
            self.loads[stage.peer] = reply

    async def _open_link(self, lane: Lane) -> None:
        link = await self._dial(self.plan.stages[0], Channel.LINK)
        self._links[lane] = link
        await link.send(Hello(self._transport.peer_id, self._session, 0, self._link_secrets[0], lane))

    async def _dial(self, stage: StagePlan, channel: Channel) -> FrameStream:
        stream = await self._transport.dial(stage.peer, channel.protocol, addresses=stage.announcement.addresses)
        return FrameStream(stream, channel, Role.DIALER, max_frame_bytes=MAX_RESULT_FRAME_BYTES)

    # -- steps ----------------------------------------------------------------------------------------------

    async def send(self, step: Step, payload: Sequence[bytes | memoryview], lane: Lane) -> asyncio.Future[Frame]:
        """Put a step on its way; the future is its ``Result`` frame, or the error that broke the chain."""
        if self._error is not None:
            raise self._error
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[(step.generation, step.epoch, step.seq)] = future
        try:
            await self._links[lane].send(step, *payload)
        except NetworkError as error:
            self._suspect(LINK_EVIDENCE, PeerLostError(str(error), peer=self.plan.stages[0].peer))
        return future

    async def _read_control(self, index: int) -> None:
        stage, control = self.plan.stages[index], self._controls[index]
        try:
            while True:
                frame = await control.receive()
                message = frame.message
                if isinstance(message, Result):
                    self._resolve(index, message, frame)
                elif isinstance(message, LinkLost):
                    lost = PeerLostError(
                        f"server {self._name(message.peer)} was lost: {message.reason}", peer=message.peer
                    )
                    self._suspect(LINK_EVIDENCE, lost)
                elif isinstance(message, Failed):
                    reason = f"server {stage.short} ended the session ({message.fault}): {message.reason}"
                    self._suspect(2, PeerLostError(reason, peer=stage.peer))
                elif not isinstance(message, Noop):
                    raise ProtocolViolation(f"unexpected {type(message).__name__}", peer=stage.peer)
        except PeerLostError as error:
            gone = f"server {stage.short} for layers {stage.span} went away: {error.message}"
            self._suspect(2, PeerLostError(gone, peer=stage.peer))
        except SwarmError as error:
            self._suspect(3, PeerLostError(str(error), peer=stage.peer))

    async def _watch_link(self, link: FrameStream) -> None:
        try:
            while True:
                await link.receive()
        except SwarmError as error:
            first = self.plan.stages[0]
            self._suspect(
                LINK_EVIDENCE, PeerLostError(f"server {first.short} closed the link: {error}", peer=first.peer)
            )

    def _resolve(self, index: int, result: Result, frame: Frame) -> None:
        if index != len(self.plan.stages) - 1:
            raise ProtocolViolation("only the last server sends results", peer=self.plan.stages[index].peer)
        future = self._pending.pop((result.generation, result.epoch, result.seq), None)
        if future is not None and not future.done():
            future.set_result(frame)

    def forget(self) -> None:
        """A rollback: results of steps sent before it no longer matter."""
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()

    def _hold_pulses(self) -> None:
        """Beat to every server of the chain: one that falls silent is lost, even if its connection looks alive."""
        if self._pulse is None:
            return
        for stage in {stage.peer: stage for stage in self.plan.stages}.values():

            def silent(reason: str, stage: StagePlan = stage) -> None:
                gone = f"server {stage.short} for layers {stage.span} went away: {reason}"
                self._suspect(2, PeerLostError(gone, peer=stage.peer))

            self._holds.append(self._pulse.hold(stage.peer, stage.announcement.addresses, silent))

    # -- ending ---------------------------------------------------------------------------------------------

    def _suspect(self, weight: int, error: SwarmError) -> None:
        """Something broke. The heaviest evidence within a moment is what the caller is told."""
        if self._blame is None or weight > self._blame[0]:
            self._blame = (weight, error)
        if self._blame_timer is None:
            self._blame_timer = asyncio.get_running_loop().call_later(BLAME_WAIT_S, self._break)

    def _break(self) -> None:
        if self._blame is not None:
            self._end(self._blame[1])

    def _end(self, error: SwarmError) -> None:
        """From here on nothing is answered; whoever waits for a step is told why."""
        self._error = self._error or error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._error)
                future.exception()  # marks it as seen: a step that was given up is never awaited
        self._pending.clear()

    async def close(self) -> None:
        """Tell every server that the session is over, and hang up.

        Idempotent, never raises but ``CancelledError``, and goes on to the end by itself when cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="closing a chain")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._blame_timer is not None:
            self._blame_timer.cancel()
        self._end(PeerLostError("the session is closed"))
        for hold in self._holds:
            if self._pulse is not None:
                self._pulse.release(hold)
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers = []
        await asyncio.gather(*map(_hang_up, self._controls.values()), return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()), return_exceptions=True)

    def _name(self, peer: str) -> str:
        for stage in self.plan.stages:
            if stage.peer == peer:
                return f"{stage.short} for layers {stage.span}"
        return peer[-8:]


async def _hang_up(control: FrameStream) -> None:
    try:
        async with asyncio.timeout(HANG_UP_S):
            if control.phase in (Phase.OPENING, Phase.ACTIVE):
                await control.send(Close())
    except (SwarmError, TimeoutError):
        pass  # it is gone already, which is what was wanted
    await control.close()
