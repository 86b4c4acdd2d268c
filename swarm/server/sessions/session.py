"""One stage of one client's session at this server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swarm.core.errors import NetworkError, ProtocolViolation, SwarmError
from swarm.core.ids import SessionKey
from swarm.core.limits import MAX_HEADER_BYTES, MAX_PENDING_STEPS, MAX_SAMPLED_ROWS, MAX_STEP_ROWS
from swarm.runtime.tasks import Tasks
from swarm.server.record.kept import Kept
from swarm.server.sessions.downlink import Downlink
from swarm.server.sessions.neighbours import Neighbours
from swarm.server.sessions.outbox import Outbox
from swarm.server.sessions.pacing import Paces
from swarm.server.sessions.passage import Passage, Stage
from swarm.transport.framing import FrameStream
from swarm.wire.fields import Lane
from swarm.wire.frames import Frame
from swarm.wire.messages import Failed, LinkLost, Message, Replay, Step, Upstream
from swarm.wire.payload import ID_BYTES, Ids, split_payload
from swarm.wire.session import Phase, StepSequencer
from swarm.wire.tensors import Buffer, decode_tensor, tensor_bytes

MAX_INBOX_BYTES = 8 * 1024 * 1024
"""Payload that waits for the engine before this session's links are read no further."""
GOODBYE_S = 2.0
"""How long a client that reads nothing may hold up the end of its session."""


@dataclass(slots=True, kw_only=True)
class Job(Passage):
    """A session's step whose turn has come, or replayed rows."""

    session: ServerSession


class ServerSession:
    """Takes steps in, hands them to the batcher in order, and sends what came out on its way.

    A lost neighbour does not end it: KV and log stay, and what is computed meanwhile is dropped, until the client says
    who takes the neighbour's place (``fence``, ``neighbours``).
    """

    def __init__(self, key: SessionKey, stage: Stage, control: FrameStream, kept: Kept) -> None:
        opened = stage.opened
        self.key = key
        self.stage = stage
        self.opened = opened
        self.slot = stage.slot
        self.control = control
        self.kept = kept
        self.is_tail = stage.is_tail
        self.computing = False
        self.closed = False
        self.steps_taken = 0
        self.paces = Paces()
        self.relinks = 0
        self.relinked_s = float("-inf")
        self.ended: asyncio.Future[Failed] = asyncio.get_running_loop().create_future()
        """Why the server ends the session, once it does."""
        self.gone = asyncio.Event()
        """Set when nothing of the session is left here."""
        self.neighbours = Neighbours(key.client, opened.upstream, opened.generation, self.tell_lost)
        self.inbox: deque[Job] = deque()
        self._tasks: Tasks
        self._sent: Callable[[Passage], None]
        self._forwarding: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._inbox_bytes = 0
        self._taken = asyncio.Event()
        self._running: Job | None = None
        self._cut: int | None = None
        self._outbox = Outbox(stage, control, self.neighbours, kept, self._is_current)
        self._sequencer: StepSequencer[Job] = StepSequencer(
            capacity_tokens=opened.kv_tokens, generation=opened.generation
        )

    @property
    def generation(self) -> int:
        return self._sequencer.generation

    @property
    def ready(self) -> bool:
        """True if the next step may be computed now."""
        held_up = self.computing or self.closed or self._outbox.full or self.kept.behind
        return bool(self.inbox) and not held_up

    @property
    def working(self) -> bool:
        """True while the engine owes this session something."""
        return self.computing or self.ready

    @property
    def oldest(self) -> Passage | None:
        """Of the steps that are here, the one that came first."""
        running = self._running if self.computing else None
        return self._outbox.oldest or running or next(iter(self.inbox), None)

    @property
    def max_step_frame_bytes(self) -> int:
        """The largest frame a step of this session can make."""
        rows = min(self.opened.kv_tokens, MAX_STEP_ROWS)
        tensor = tensor_bytes("raw", "float32", rows, self.stage.info.hidden_size)
        return MAX_HEADER_BYTES + rows * ID_BYTES + tensor + 2

    # -- in -------------------------------------------------------------------------------------------------

    def offer(self, frame: Frame, lane: Lane, now_s: float) -> bool:
        """Take a step from a link; False if nothing is to be done now: a no-op, or a step that is stale, early or late.

        ``ProtocolViolation`` if the step, or its payload, cannot be right.
        """
        message = frame.message
        if not isinstance(message, Step | Replay) or self.kept.settled:
            return False
        ids, came = split_payload(message, frame.payload)
        job = Job(
            session=self,
            stage=self.stage,
            step=message,
            ids=ids,
            came=came,
            tensor=self._input(message, ids, came),
            lane=lane,
            size_bytes=len(frame.payload),
        )
        self.steps_taken += 1
        taken = self._in_order(job, message)
        for released in taken:
            released.arrived_s = now_s
            self.inbox.append(released)
            self._inbox_bytes += released.size_bytes
        return bool(taken)

    async def room(self) -> None:
        """Return once the waiting steps are few enough to take another; whoever pushes faster has to wait."""
        while not self.closed and (len(self.inbox) >= MAX_PENDING_STEPS or self._inbox_bytes > MAX_INBOX_BYTES):
            self._taken.clear()
            await self._taken.wait()

    def _in_order(self, job: Job, step: Step | Replay) -> list[Job]:
        """What may run now that this has come: replayed rows as they come, steps by their numbers."""
        if isinstance(step, Step):
            if step.want > MAX_SAMPLED_ROWS and self.opened.head:
                raise ProtocolViolation(f"{step.want} rows to sample (limit {MAX_SAMPLED_ROWS})")
            return self._sequencer.offer(step, job, job.size_bytes)
        if step.hops and self.is_tail:
            raise ProtocolViolation("a replay that goes on behind the last stage")
        return [job] if self._sequencer.admits(step) else []

    def _input(self, step: Step | Replay, ids: Ids | None, tensor: Buffer) -> Buffer | None:
        if self.opened.embed:
            if ids is None or len(tensor):
                raise ProtocolViolation("the head server of a session with embeddings takes token ids and no tensor")
            return None
        info = self.stage.info
        return decode_tensor(tensor, self.opened.codec, info.dtype, step.rows, info.hidden_size)

    # -- computing ------------------------------------------------------------------------------------------

    def take(self) -> Job | None:
        """The next step that no rollback has voided; marks the session as computing."""
        while self.inbox:
            job = self.inbox.popleft()
            self._inbox_bytes -= job.size_bytes
            self._taken.set()
            if self._is_current(job):
                self.computing = True
                self._running = job
                return job
        return None

    def done(self, job: Job) -> None:
        """A step was computed; queue it for sending."""
        self._rest()
        if self._is_current(job):
            self._outbox.put(job)

    def failed(self, job: Job, error: SwarmError) -> None:
        """A step could not be computed: that ends the session, unless a heal has voided the step meanwhile."""
        self._rest()
        if job.step.generation == self.generation:
            self.fail(error)

    def _rest(self) -> None:
        """The engine has let go of the session: what a heal voided meanwhile is cut off now."""
        self.computing, self._running = False, None
        if self._cut is not None:
            self.slot.length = min(self.slot.length, self._cut)
            self._cut = None

    def _is_current(self, job: Passage) -> bool:
        """False if a heal or a rollback has voided a step since it came, or the session is over."""
        if self.closed:
            return False
        if isinstance(job.step, Replay):
            return job.step.generation == self.generation
        return self._sequencer.is_current(job.step)

    # -- out ------------------------------------------------------------------------------------------------

    def start(self, tasks: Tasks, sent: Callable[[Passage], None], notify: Callable[[], None]) -> None:
        """Begin to send and to sign, with ``tasks`` that whoever calls closes.

        ``sent`` is told of each step that has left, ``notify`` that there may be something to compute again.
        """
        self._tasks, self._sent = tasks, sent
        self._forwarding = tasks.spawn(self._outbox.send(sent), name="forward")
        if self.kept.notary is not None:
            tasks.spawn(self._sign(notify), name="sign receipts")

    async def _sign(self, notify: Callable[[], None]) -> None:
        assert self.kept.notary is not None
        try:
            await self.kept.notary.run(self.report, notify)
        except ProtocolViolation as error:
            self.end(Failed("client", str(error)))

    async def report(self, message: Message) -> None:
        """Tell the client, if it is still there to be told."""
        if self.control.phase is Phase.ACTIVE:
            try:
                await self.control.send(message)
            except NetworkError:
                return  # its end of the control stream sees the same loss

    async def tell_lost(self, peer: str, reason: str) -> None:
        """Tell the client that a neighbour was lost."""
        if not self.closed:
            await self.report(LinkLost(peer, reason, self.generation))

    def be_fed_by(self, upstream: Upstream) -> None:
        """From now on rows come from this server before."""
        self.neighbours.be_fed_by(upstream, self.generation, self._tasks)

    def lead_to(self, downlink: Downlink) -> None:
        """From now on rows go to this next server."""
        self.kept.sent.readdress(downlink.encoding)
        self.neighbours.lead_to(downlink, self._tasks)

    # -- healing --------------------------------------------------------------------------------------------

    def fence(self, generation: int, keep: int, signed_rows: int) -> None:
        """Enter a higher generation: everything under way is void, and ``keep`` rows remain.

        Windows below ``signed_rows`` are signed for good.
        """
        self._sequencer.fence(generation)
        self.inbox.clear()
        self._inbox_bytes = 0
        self._taken.set()
        self._outbox.clear()
        for task in (self._forwarding, self._replaying):
            if task is not None:
                task.cancel()  # what it waits to send is void, and a frozen neighbour may never take it
        self._forwarding = self._tasks.spawn(self._outbox.send(self._sent), name="forward")
        self.kept.fence(generation, keep, signed_rows)
        if self.computing:
            self._cut = min(keep, keep if self._cut is None else self._cut)
        else:
            self.slot.length = min(self.slot.length, keep)

    @property
    def kv_length(self) -> int:
        """Rows that are held for sure: a forward that is under way may cut back to what its step keeps."""
        if self.computing and self._running is not None:
            held = self._running.step.keep
            return held if self._cut is None else min(held, self._cut)
        return self.slot.length

    def replay(self, rows: int, hops: int) -> None:
        """Send the first ``rows`` that were logged to the next server, in the background."""
        replaying = self._outbox.replay(rows, self.generation, hops)
        self._replaying = self._tasks.spawn(replaying, name="replay")

    # -- ending ---------------------------------------------------------------------------------------------

    def fail(self, error: SwarmError) -> None:
        """End the session because of ``error``. Returns at once; the first reason counts."""
        broken_rule, from_client = isinstance(error, ProtocolViolation), self.neighbours.from_client
        text = str(error)
        if broken_rule and not from_client:
            text = f"server {self.neighbours.upstream.peer[-8:]} sent what cannot be: {text}"
        self.end(Failed("client" if broken_rule and from_client else "server", text))

    def end(self, reason: Failed) -> None:
        """End the session; its client is told why. Returns at once; the first reason counts."""
        self.closed = True
        self._taken.set()
        if not self.ended.done():
            self.ended.set_result(reason)

    async def say_goodbye(self) -> None:
        """Tell the client why the session ended, if it listens."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self.report(self.ended.result())
        except TimeoutError:
            return
