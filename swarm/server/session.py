"""One stage of one client's session at this server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.core.announcement import Announcement
from swarm.core.errors import NetworkError, ProtocolViolation, SwarmError
from swarm.core.ids import SessionKey
from swarm.core.limits import MAX_HEADER_BYTES, MAX_PENDING_STEPS, MAX_SAMPLED_ROWS, MAX_STEP_ROWS
from swarm.core.spans import Span
from swarm.decoding.sampling import Choice
from swarm.engine.kv import KVSlot
from swarm.engine.work import Output, SpanInfo, Work
from swarm.server.tail import TailSampler
from swarm.transport.framing import FrameStream
from swarm.wire.frames import Frame
from swarm.wire.messages import (
    Failed,
    Lane,
    LinkLost,
    Message,
    Open,
    Result,
    Step,
    TokenLogprobs,
)
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
    """A step whose turn has come, with its input as the engine takes it."""

    session: ServerSession
    step: Step
    ids: Ids | None
    tensor: Buffer | None
    lane: Lane
    size_bytes: int = 0
    ready_s: float = 0.0
    """When its turn might have come, on the event loop's clock."""
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
            want=step.want if session.is_tail else step.rows,
            logits=session.opened.head,
            span=Span(session.opened.start, session.opened.end),
        )


class ServerSession:
    """Takes steps in, hands them to the batcher in order, and sends what came out on its way."""

    def __init__(self, key: SessionKey, opened: Open, slot: KVSlot, info: SpanInfo, control: FrameStream) -> None:
        self.key = key
        self.opened = opened
        self.slot = slot
        self.control = control
        self.is_tail = opened.downstream is None
        self.from_client = opened.upstream.peer == key.client
        self.computing = False
        self.closed = False
        self.steps_taken = 0
        self.ended: asyncio.Future[Failed] = asyncio.get_running_loop().create_future()
        """Why the server ends the session, once it does."""
        self.gone = asyncio.Event()
        """Set when nothing of the session is left here."""
        self.links: dict[Lane, asyncio.Future[FrameStream]] = {}
        self.attached: dict[Lane, FrameStream] = {}
        self.sampler = TailSampler() if opened.head else None
        self.inbox: deque[Job] = deque()
        self._info = info
        self._following: Announcement | None = None
        self._inbox_bytes = 0
        self._taken = asyncio.Event()
        self._sequencer: StepSequencer[Job] = StepSequencer(
            capacity_tokens=opened.kv_tokens, generation=opened.generation
        )
        self._outbox: asyncio.Queue[Job] = asyncio.Queue()

    @property
    def ready(self) -> bool:
        """True if the next step may be computed now."""
        return bool(self.inbox) and not (self.computing or self.closed) and self._outbox.qsize() < MAX_OUTBOX_STEPS

    @property
    def working(self) -> bool:
        """True while the engine owes this session something."""
        return self.computing or self.ready

    @property
    def max_step_frame_bytes(self) -> int:
        """The largest frame a step of this session can make."""
        rows = min(self.opened.kv_tokens, MAX_STEP_ROWS)
        tensor = tensor_bytes("raw", "float32", rows, self._info.hidden_size)
        return MAX_HEADER_BYTES + rows * ID_BYTES + tensor + 2

    def offer(self, frame: Frame, lane: Lane) -> bool:
        """Take a step from a link; False if nothing is to be done now: a no-op, or a step that is stale or early.

        ``ProtocolViolation`` if the step, or its payload, cannot be right.
        """
        step = frame.message
        if not isinstance(step, Step):
            return False
        if step.want > MAX_SAMPLED_ROWS and self.opened.head:
            raise ProtocolViolation(f"{step.want} rows to sample (limit {MAX_SAMPLED_ROWS})")
        ids, tensor = split_payload(step, frame.payload)
        job = Job(self, step, ids, self._input(step, ids, tensor), lane, len(frame.payload))
        self.steps_taken += 1
        taken = self._sequencer.offer(step, job, job.size_bytes)
        for released in taken:
            self.inbox.append(released)
            self._inbox_bytes += released.size_bytes
        return bool(taken)

    async def room(self) -> None:
        """Return once the waiting steps are few enough to take another; whoever pushes faster has to wait."""
        while not self.closed and (len(self.inbox) >= MAX_PENDING_STEPS or self._inbox_bytes > MAX_INBOX_BYTES):
            self._taken.clear()
            await self._taken.wait()

    def _input(self, step: Step, ids: Ids | None, tensor: Buffer) -> Buffer | None:
        if self.opened.embed:
            if ids is None or len(tensor):
                raise ProtocolViolation("the head server of a session with embeddings takes token ids and no tensor")
            return None
        return decode_tensor(tensor, self.opened.codec, self._info.dtype, step.rows, self._info.hidden_size)

    def take(self) -> Job | None:
        """The next step that no rollback has voided; marks the session as computing."""
        while self.inbox:
            job = self.inbox.popleft()
            self._inbox_bytes -= job.size_bytes
            self._taken.set()
            if self._sequencer.is_current(job.step):
                self.computing = True
                return job
        return None

    def done(self, job: Job) -> None:
        """A step was computed; queue it for sending."""
        self.computing = False
        if not self.closed:
            self._outbox.put_nowait(job)

    async def forward(self, sent: Callable[[ServerSession], None]) -> None:
        """Send computed steps in order until cancelled; ``sent`` is told after each, so that waiting work moves."""
        while not self.closed:
            job = await self._outbox.get()
            if self._sequencer.is_current(job.step):
                try:
                    await (self._answer(job) if self.is_tail else self._push(job))
                except NetworkError as error:
                    lost = self._following.peer if self._following is not None else str(self.key.client)
                    await self.report(LinkLost(lost, str(error)))
                    return
            sent(self)

    def name_downstream(self, following: Announcement) -> None:
        """Remember who the next server is, and in what dtype it takes rows."""
        self._following = following

    async def _push(self, job: Job) -> None:
        if job.output is None or job.output.hidden is None or self._following is None:
            raise ProtocolViolation("a middle stage must have rows to pass on")
        link = await self.links[job.lane]
        codec, hidden = self.opened.codec, self._info.hidden_size
        dtype = self._following.numerics.dtype
        tensor = encode_tensor(cast_rows(job.output.hidden, self._info.dtype, dtype), codec, dtype, hidden)
        await link.send(job.step, *([pack_ids(job.ids)] if job.ids is not None else []), tensor)

    async def _answer(self, job: Job) -> None:
        step = job.step
        where = (step.generation, step.epoch, step.seq, step.keep + step.rows)
        if self.sampler is not None:
            tokens = tuple(choice.token_id for choice in job.choices)
            logprobs = tuple(
                TokenLogprobs(choice.logprob, choice.top) for choice in job.choices if choice.logprob is not None
            )
            await self.control.send(Result(*where, tokens, logprobs))
            return
        hidden = job.output.hidden if job.output is not None else None
        rows = step.want if hidden is not None else 0
        tensor = encode_tensor(hidden or b"", self.opened.codec, self._info.dtype, self._info.hidden_size)
        await self.control.send(Result(*where, rows=rows), *([tensor] if rows else []))

    async def report(self, message: Message) -> None:
        """Tell the client, if it is still there to be told."""
        if self.control.phase is Phase.ACTIVE:
            try:
                await self.control.send(message)
            except NetworkError:
                return  # its end of the control stream sees the same loss

    async def close_links(self) -> None:
        """Close the streams to the next server, and those of the one before."""
        for future in self.links.values():
            if future.done() and not future.cancelled() and future.exception() is None:
                await future.result().close()
            future.cancel()
        for link in self.attached.values():
            await link.close()

    def fail(self, error: SwarmError) -> None:
        """End the session because of ``error``. Returns at once; the first reason counts."""
        broken_rule = isinstance(error, ProtocolViolation)
        text = str(error)
        if broken_rule and not self.from_client:
            text = f"server {self.opened.upstream.peer[-8:]} sent what cannot be: {text}"
        self.end(Failed("client" if broken_rule and self.from_client else "server", text))

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
