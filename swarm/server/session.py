"""One stage of one client's session at this server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from swarm.core.errors import NetworkError, ProtocolViolation, SwarmError
from swarm.core.ids import SessionKey
from swarm.core.limits import MAX_HEADER_BYTES, MAX_PENDING_STEPS, MAX_SAMPLED_ROWS, MAX_STEP_ROWS
from swarm.core.spans import Span
from swarm.decoding.sampling import Choice
from swarm.engine.kv import KVSlot
from swarm.engine.work import Output, SpanInfo, Work
from swarm.runtime.tasks import Tasks
from swarm.server.downlink import Downlink
from swarm.server.neighbours import Neighbours
from swarm.server.pacing import Paces
from swarm.server.replay_log import ReplayLog
from swarm.server.tail import TailSampler, hidden_result, sampled_result
from swarm.transport.framing import FrameStream
from swarm.wire.fields import PREFILL_LANE, Lane
from swarm.wire.frames import Frame
from swarm.wire.messages import Failed, LinkLost, Message, Open, Replay, Replayed, Step, Upstream
from swarm.wire.payload import ID_BYTES, Ids, pack_ids, split_payload
from swarm.wire.session import Phase, StepSequencer
from swarm.wire.tensors import Buffer, cast_rows, decode_tensor, encode_tensor, tensor_bytes

MAX_OUTBOX_STEPS = 4
"""Computed steps that wait for a slow link before this session stops computing more."""
MAX_INBOX_BYTES = 8 * 1024 * 1024
"""Payload that waits for the engine before this session's links are read no further."""
GOODBYE_S = 2.0
"""How long a client that reads nothing may hold up the end of its session."""


@dataclass(slots=True)
class Job:
    """A step whose turn has come, or replayed rows, with the input as the engine takes it."""

    session: ServerSession
    step: Step | Replay
    ids: Ids | None
    tensor: Buffer | None
    lane: Lane
    size_bytes: int = 0
    ready_s: float = 0.0
    """When its turn might have come, on the event loop's clock."""
    arrived_s: float = 0.0
    """When it and every step before it were here, on the server's clock."""
    choices: list[Choice] = field(default_factory=list)
    output: Output | None = None

    def work(self) -> Work:
        """The engine's view of this step."""
        session, step = self.session, self.step
        return Work(
            slot=session.slot,
            keep=step.keep,
            hidden=self.tensor,
            token_ids=self.ids if self.tensor is None else None,
            rows=step.rows,
            horizon=step.horizon,
            want=self._want() if session.is_tail else step.rows,
            logits=session.opened.head,
            span=Span(session.opened.start, session.opened.end),
        )

    def computed(self, output: Output) -> None:
        """In the compute thread: take what came out, and sample if tokens are chosen here."""
        self.output = output
        sampler = self.session.sampler
        if sampler is None:
            return
        if isinstance(self.step, Replay):
            sampler.recall(self.step.keep, self.ids)
        else:
            self.choices = sampler.advance(self.step, self.ids, output.logits)

    def _want(self) -> int:
        return self.step.want if isinstance(self.step, Step) else 0


class ServerSession:
    """Takes steps in, hands them to the batcher in order, and sends what came out on its way.

    A lost neighbour does not end it: KV and log stay, and what is computed meanwhile is dropped, until the client says
    who takes the neighbour's place (``fence``, ``neighbours``).
    """

    def __init__(
        self, key: SessionKey, opened: Open, slot: KVSlot, info: SpanInfo, control: FrameStream, log: ReplayLog
    ) -> None:
        self.key = key
        self.opened = opened
        self.slot = slot
        self.control = control
        self.log = log
        self.is_tail = opened.downstream is None
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
        self.sampler = TailSampler() if opened.head else None
        self.inbox: deque[Job] = deque()
        self._info = info
        self._tasks: Tasks
        self._sent: Callable[[ServerSession, Job], None]
        self._forwarding: asyncio.Task[None] | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._inbox_bytes = 0
        self._taken = asyncio.Event()
        self._running: Job | None = None
        self._cut: int | None = None
        self._outbox: deque[Job] = deque()
        self._computed = asyncio.Event()
        self._sequencer: StepSequencer[Job] = StepSequencer(
            capacity_tokens=opened.kv_tokens, generation=opened.generation
        )

    @property
    def generation(self) -> int:
        return self._sequencer.generation

    @property
    def ready(self) -> bool:
        """True if the next step may be computed now."""
        return bool(self.inbox) and not (self.computing or self.closed) and len(self._outbox) < MAX_OUTBOX_STEPS

    @property
    def working(self) -> bool:
        """True while the engine owes this session something."""
        return self.computing or self.ready

    @property
    def oldest(self) -> Job | None:
        """Of the steps that are here, the one that came first."""
        running = self._running if self.computing else None
        return next(iter(self._outbox), None) or running or next(iter(self.inbox), None)

    @property
    def max_step_frame_bytes(self) -> int:
        """The largest frame a step of this session can make."""
        rows = min(self.opened.kv_tokens, MAX_STEP_ROWS)
        tensor = tensor_bytes("raw", "float32", rows, self._info.hidden_size)
        return MAX_HEADER_BYTES + rows * ID_BYTES + tensor + 2

    # -- in -------------------------------------------------------------------------------------------------

    def offer(self, frame: Frame, lane: Lane, now_s: float) -> bool:
        """Take a step from a link; False if nothing is to be done now: a no-op, or a step that is stale or early.

        ``ProtocolViolation`` if the step, or its payload, cannot be right.
        """
        message = frame.message
        if not isinstance(message, Step | Replay):
            return False
        ids, tensor = split_payload(message, frame.payload)
        job = Job(self, message, ids, self._input(message, ids, tensor), lane, len(frame.payload))
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
        return decode_tensor(tensor, self.opened.codec, self._info.dtype, step.rows, self._info.hidden_size)

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
        if not self.closed and self._is_current(job):
            self._outbox.append(job)
            self._computed.set()

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

    def _is_current(self, job: Job) -> bool:
        """False if a heal or a rollback has voided a step since it came."""
        if isinstance(job.step, Replay):
            return job.step.generation == self.generation
        return self._sequencer.is_current(job.step)

    # -- out ------------------------------------------------------------------------------------------------

    def start(self, tasks: Tasks, sent: Callable[[ServerSession, Job], None]) -> None:
        """Begin to send, with ``tasks`` that whoever calls closes; ``sent`` is told when a step has left."""
        self._tasks, self._sent = tasks, sent
        self._forwarding = tasks.spawn(self._forward(), name="forward")

    async def _forward(self) -> None:
        """Send computed steps in order until cancelled."""
        while not self.closed:
            if not self._outbox:
                self._computed.clear()
                await self._computed.wait()
                continue
            job = self._outbox[0]
            if self._is_current(job):
                with suppress(NetworkError):  # whoever reads that stream sees the same, and tells the client
                    await self._send(job)
            self._outbox.popleft()
            self._sent(self, job)

    async def _send(self, job: Job) -> None:
        step = job.step
        if isinstance(step, Step):
            await (self._answer(job, step) if self.is_tail else self._push(job, step))
            return
        if step.hops:
            await self._push(job, msgspec.structs.replace(step, hops=step.hops - 1), PREFILL_LANE)
            return
        if not self.is_tail:
            self._note(job)
        await self.control.send(Replayed(step.generation, step.keep + step.rows))

    async def _push(self, job: Job, step: Step | Replay, lane: Lane | None = None) -> None:
        if self.neighbours.downlink is None:
            raise ProtocolViolation("a middle stage must have a next server")
        ids, tensor = self._note(job)
        await self.neighbours.downlink.send(job.lane if lane is None else lane, step, ids, tensor)

    def _note(self, job: Job) -> tuple[bytes, Buffer]:
        """A step's ids and rows as the next server takes them; they are kept for whoever may take its place."""
        if self.neighbours.downlink is None or job.output is None or job.output.hidden is None:
            raise ProtocolViolation("a middle stage must have rows to pass on")
        step, encoding = job.step, self.neighbours.downlink.encoding
        rows = cast_rows(job.output.hidden, self._info.dtype, encoding.dtype)
        tensor = encode_tensor(rows, encoding.codec, encoding.dtype, encoding.hidden)
        ids = pack_ids(job.ids) if job.ids is not None else b""
        self.log.append(step.keep, step.rows, ids, tensor, encoding, step.horizon)
        return ids, tensor

    async def _answer(self, job: Job, step: Step) -> None:
        if self.sampler is not None:
            await self.control.send(sampled_result(step, job.choices))
            return
        hidden = job.output.hidden if job.output is not None else None
        rows = step.want if hidden is not None else 0
        tensor = encode_tensor(hidden or b"", self.opened.codec, self._info.dtype, self._info.hidden_size)
        await self.control.send(hidden_result(step, rows), *([tensor] if rows else []))

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
        self.log.readdress(downlink.encoding)
        self.neighbours.lead_to(downlink, self._tasks)

    # -- healing --------------------------------------------------------------------------------------------

    def fence(self, generation: int, keep: int) -> None:
        """Enter a higher generation: everything under way is void, and ``keep`` rows remain."""
        self._sequencer.fence(generation)
        self.inbox.clear()
        self._inbox_bytes = 0
        self._taken.set()
        self._outbox.clear()
        for task in (self._forwarding, self._replaying):
            if task is not None:
                task.cancel()  # what it waits to send is void, and a frozen neighbour may never take it
        self._forwarding = self._tasks.spawn(self._forward(), name="forward")
        self.log.truncate(keep)
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
        self._replaying = self._tasks.spawn(self._replay(rows, hops), name="replay")

    async def _replay(self, rows: int, hops: int) -> None:
        downlink, generation = self.neighbours.downlink, self.generation
        if downlink is None:
            return
        with suppress(NetworkError):  # whoever watches the link tells the client
            for part in self.log.frames(rows):
                message = Replay(generation, part.keep, part.rows, part.ids, part.horizon, hops)
                await downlink.send(PREFILL_LANE, message, *part.parts)

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
