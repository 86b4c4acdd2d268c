"""One stage of one client's session at this server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.core.errors import NetworkError, ProtocolViolation, SwarmError
from swarm.core.ids import SessionKey
from swarm.core.limits import MAX_REASON_CHARS, MAX_SAMPLED_ROWS
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
from swarm.wire.payload import Ids, pack_ids, split_payload
from swarm.wire.session import Phase, StepSequencer
from swarm.wire.tensors import Buffer, decode_tensor, encode_tensor

MAX_OUTBOX_STEPS = 4
"""Computed steps that wait for a slow link before this session stops computing more."""


@dataclass(slots=True)
class Job:
    """A step whose turn has come, with its input as the engine takes it."""

    session: ServerSession
    step: Step
    ids: Ids | None
    tensor: Buffer | None
    lane: Lane
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
        self.is_tail = not opened.downstream
        self.computing = False
        self.closed = False
        self.steps_taken = 0
        self._downstream_peer = ""
        self.links: dict[Lane, asyncio.Future[FrameStream]] = {}
        self.attached: set[Lane] = set()
        self.sampler = TailSampler() if opened.head else None
        self.inbox: deque[Job] = deque()
        self._info = info
        self._sequencer: StepSequencer[Job] = StepSequencer(capacity_tokens=opened.kv_tokens)
        self._outbox: asyncio.Queue[Job] = asyncio.Queue()

    @property
    def ready(self) -> bool:
        """True if the next step may be computed now."""
        return bool(self.inbox) and not (self.computing or self.closed) and self._outbox.qsize() < MAX_OUTBOX_STEPS

    def offer(self, frame: Frame, lane: Lane) -> None:
        """Take a step from a link. ``ProtocolViolation`` if it, or its payload, cannot be right."""
        step = frame.message
        if not isinstance(step, Step):
            return
        if step.want > MAX_SAMPLED_ROWS and self.opened.head:
            raise ProtocolViolation(f"{step.want} rows to sample (limit {MAX_SAMPLED_ROWS})")
        ids, tensor = split_payload(step, frame.payload)
        job = Job(self, step, ids, self._input(step, ids, tensor), lane)
        self.steps_taken += 1
        self.inbox.extend(self._sequencer.offer(step, job, len(frame.payload)))

    def _input(self, step: Step, ids: Ids | None, tensor: Buffer) -> Buffer | None:
        if self.opened.embed and self.key.stage == 0:
            if ids is None or len(tensor):
                raise ProtocolViolation("the head server of a session with embeddings takes token ids and no tensor")
            return None
        return decode_tensor(tensor, self.opened.codec, self._info.dtype, step.rows, self._info.hidden_size)

    def take(self) -> Job | None:
        """The next step that no rollback has voided; marks the session as computing."""
        while self.inbox:
            job = self.inbox.popleft()
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
        while True:
            job = await self._outbox.get()
            if self._sequencer.is_current(job.step):
                try:
                    await (self._answer(job) if self.is_tail else self._push(job))
                except NetworkError as error:
                    await self.report(LinkLost(self._downstream_peer or str(self.key.client), _short(error)))
                    return
            sent(self)

    def name_downstream(self, peer: str) -> None:
        """Remember who the next server is, for reports."""
        self._downstream_peer = peer

    async def _push(self, job: Job) -> None:
        if job.output is None or job.output.hidden is None:
            raise ProtocolViolation("a middle stage must have rows to pass on")
        link = await self.links[job.lane]
        codec, dtype, hidden = self.opened.codec, self._info.dtype, self._info.hidden_size
        tensor = encode_tensor(job.output.hidden, codec, dtype, hidden)
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
        """Close what was opened to the next server."""
        for future in self.links.values():
            if future.done() and not future.cancelled() and future.exception() is None:
                await future.result().close()
            future.cancel()

    async def fail(self, error: SwarmError | None, *, fault: str, reason: str = "") -> None:
        """End the session with a reason the client can show."""
        text = _short(error) if error is not None else reason[:MAX_REASON_CHARS]
        await self.report(Failed(fault, text))  # type: ignore[arg-type]
        self.closed = True
        await self.control.close()


def _short(error: SwarmError) -> str:
    return str(error)[:MAX_REASON_CHARS]
