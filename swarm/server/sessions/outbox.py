"""Computed steps on their way out: to the next server, or as results to the client; each is noted as it leaves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from swarm.core.errors import NetworkError, ProtocolViolation
from swarm.server.record.kept import Kept
from swarm.server.record.notes import Note
from swarm.server.record.replay_log import Encoding
from swarm.server.sessions.neighbours import Neighbours
from swarm.server.sessions.passage import Passage, Stage
from swarm.server.sessions.tail import hidden_result, sampled_result
from swarm.transport.framing import FrameStream
from swarm.wire.fields import PREFILL_LANE, Lane
from swarm.wire.messages import Replay, Replayed, Step
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import Buffer, cast_rows, encode_tensor, tensor_bytes

MAX_OUTBOX_STEPS = 4
"""Computed steps that wait for a slow link before a session stops computing more."""


class Outbox:
    """One stage's steps, in order of computing. A step that a heal or a rollback has voided is dropped."""

    def __init__(
        self,
        stage: Stage,
        control: FrameStream,
        neighbours: Neighbours,
        kept: Kept,
        is_current: Callable[[Passage], bool],
    ) -> None:
        self._stage = stage
        self._control = control
        self._neighbours = neighbours
        self._kept = kept
        self._is_current = is_current
        self._steps: deque[Passage] = deque()
        self._filled = asyncio.Event()
        opened, info = stage.opened, stage.info
        self._arriving = Encoding(opened.codec, info.dtype, info.hidden_size)

    @property
    def full(self) -> bool:
        """True if so much waits that nothing more should be computed."""
        return len(self._steps) >= MAX_OUTBOX_STEPS

    @property
    def oldest(self) -> Passage | None:
        return next(iter(self._steps), None)

    def put(self, step: Passage) -> None:
        """A step was computed."""
        self._steps.append(step)
        self._filled.set()

    def clear(self) -> None:
        """Everything that waits is void; whoever runs ``send`` begins it anew."""
        self._steps.clear()

    async def send(self, sent: Callable[[Passage], None]) -> None:
        """Send computed steps in order until cancelled; ``sent`` is told of each."""
        while True:
            if not self._steps:
                self._filled.clear()
                await self._filled.wait()
                continue
            step = self._steps[0]
            if self._is_current(step):
                with suppress(NetworkError):  # whoever reads that stream sees the same, and tells the client
                    await self._send(step)
            self._steps.popleft()
            sent(step)

    async def replay(self, rows: int, generation: int, hops: int) -> None:
        """Send the first ``rows`` that were sent before to the next server, as ``Replay``."""
        downlink = self._neighbours.downlink
        if downlink is None:
            return
        with suppress(NetworkError):  # whoever watches the link tells the client
            for part in self._kept.sent.frames(rows):
                message = Replay(generation, part.keep, part.rows, part.ids, part.horizon, hops)
                await downlink.send(PREFILL_LANE, message, *part.parts)

    async def _send(self, passage: Passage) -> None:
        step = passage.step
        if isinstance(step, Step):
            await (self._answer(passage, step) if self._stage.is_tail else self._push(passage, step))
            return
        if step.hops:
            await self._push(passage, msgspec.structs.replace(step, hops=step.hops - 1), PREFILL_LANE)
            return
        if self._stage.is_tail:
            self._note_answer(passage, b"")
        else:
            self._keep(passage)
        await self._control.send(Replayed(step.generation, step.keep + step.rows))

    async def _push(self, passage: Passage, step: Step | Replay, lane: Lane | None = None) -> None:
        if self._neighbours.downlink is None:
            raise ProtocolViolation("a middle stage must have a next server")
        ids, tensor = self._keep(passage)
        await self._neighbours.downlink.send(passage.lane if lane is None else lane, step, ids, tensor)

    def _keep(self, passage: Passage) -> tuple[bytes, Buffer]:
        """A step's ids and rows as the next server takes them; they are kept for whoever may take its place."""
        output, downlink = passage.output, self._neighbours.downlink
        if downlink is None or output is None or output.hidden is None:
            raise ProtocolViolation("a middle stage must have rows to pass on")
        step, encoding = passage.step, downlink.encoding
        rows = cast_rows(output.hidden, self._stage.info.dtype, encoding.dtype)
        tensor = encode_tensor(rows, encoding.codec, encoding.dtype, encoding.hidden)
        ids = pack_ids(passage.ids) if passage.ids is not None else b""
        self._kept.pass_on(step, ids, tensor, encoding)
        self._note(passage, tensor, encoding, step.rows)
        return ids, tensor

    async def _answer(self, passage: Passage, step: Step) -> None:
        if self._stage.sampler is not None:
            self._note_answer(passage, None)
            await self._control.send(sampled_result(step, passage.choices))
            return
        hidden = (passage.output.hidden if passage.output is not None else None) or b""
        rows, encoding = step.want if hidden else 0, self._arriving
        wanted = memoryview(hidden)[len(hidden) - tensor_bytes("raw", encoding.dtype, rows, encoding.hidden) :]
        tensor = encode_tensor(wanted, encoding.codec, encoding.dtype, encoding.hidden)
        self._note_answer(passage, tensor)
        await self._control.send(hidden_result(step, rows), *([tensor] if rows else []))

    def _note_answer(self, passage: Passage, tensor: Buffer | None) -> None:
        """A tail's rows: ``tensor`` holds the wanted ones, or is None where tokens were chosen after them."""
        left = None if self._stage.sampler is not None else tensor
        tokens = [choice.token_id for choice in passage.choices]
        self._note(passage, left, self._arriving, passage.want, tokens)

    def _note(
        self, passage: Passage, left: Buffer | None, leaving: Encoding, answered: int, tokens: Sequence[int] = ()
    ) -> None:
        step, output = passage.step, passage.output
        if not self._stage.recorded or output is None or output.hidden is None:
            return
        replayed = isinstance(step, Replay)
        note = Note(
            first=step.keep,
            rows=step.rows,
            ids=passage.ids,
            came=passage.came,
            arriving=self._arriving,
            inputs=passage.tensor if passage.tensor is not None else output.embedded or b"",
            outputs=output.hidden,
            left=left,
            leaving=leaving,
            answered=answered,
            tokens=tokens,
            leads_on=not self._stage.is_tail,
            replayed=replayed,
        )
        self._kept.note(note, (step.generation, step.epoch if isinstance(step, Step) else 0), step.horizon)
