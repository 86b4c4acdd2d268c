"""A step on its way through one stage: what came, what the engine makes of it, what came out."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.core.spans import Span
from swarm.decoding.sampling import Choice
from swarm.engine.kv import KVSlot
from swarm.engine.work import Output, SpanInfo, Work
from swarm.server.sessions.tail import TailSampler
from swarm.wire.fields import DECODE_LANE, Lane
from swarm.wire.messages import Open, Replay, Step
from swarm.wire.payload import Ids
from swarm.wire.tensors import Buffer


@dataclass(frozen=True, slots=True)
class Stage:
    """What a session reserved here. ``recorded``: every row is to come back from the engine, for receipts."""

    opened: Open
    slot: KVSlot
    info: SpanInfo
    recorded: bool
    sampler: TailSampler | None

    @property
    def is_tail(self) -> bool:
        """True if no next server follows."""
        return self.opened.downstream is None


@dataclass(slots=True, kw_only=True)
class Passage:
    """A step, or replayed rows.

    ``came`` is the tensor as the wire had it, ``tensor`` as the engine takes it: None where token ids come alone.
    """

    stage: Stage
    step: Step | Replay
    ids: Ids | None
    came: Buffer
    tensor: Buffer | None
    lane: Lane
    size_bytes: int = 0
    ready_s: float = 0.0
    """When its turn might have come, on the event loop's clock."""
    arrived_s: float = 0.0
    """When it and every step before it were here, on the server's clock."""
    compute_s: float = 0.0
    """What the forward took that it was in."""
    computed_s: float = 0.0
    """When that ended, on the event loop's clock."""
    choices: list[Choice] = field(default_factory=list)
    output: Output | None = None

    def work(self) -> Work:
        """The engine's view of this step."""
        stage, step = self.stage, self.step
        return Work(
            slot=stage.slot,
            keep=step.keep,
            hidden=self.tensor,
            token_ids=self.ids if self.tensor is None else None,
            rows=step.rows,
            horizon=step.horizon,
            want=self.want if stage.is_tail else step.rows,
            logits=stage.opened.head,
            span=Span(stage.opened.start, stage.opened.end),
            record=stage.recorded,
        )

    def computed(self, output: Output) -> None:
        """In the compute thread: take what came out, and sample if tokens are chosen here."""
        self.output = output
        sampler = self.stage.sampler
        if sampler is None:
            return
        if isinstance(self.step, Replay):
            sampler.recall(self.step.keep, self.ids)
        else:
            self.choices = sampler.advance(self.step, self.ids, output.logits)

    @property
    def is_decode(self) -> bool:
        """True for a step of the decode lane."""
        return self.lane == DECODE_LANE and isinstance(self.step, Step)

    @property
    def begins_answer(self) -> bool:
        """True for the step that ends a prompt: whoever wrote that was not waiting for this chain."""
        return isinstance(self.step, Step) and self.step.answer is not None

    @property
    def answers(self) -> int:
        """How many tokens its client gets of this step, sampled here or by itself; none before the last layer.

        Rows that are wanted in bulk and not sampled here (an auditor's) count as one.
        """
        stage = self.stage
        if not stage.is_tail or stage.opened.end != stage.info.layer_count:
            return 0
        return self.want if stage.opened.head or self.is_decode else min(self.want, 1)

    @property
    def want(self) -> int:
        """How many rows are to be answered, the last ones of the step."""
        return self.step.want if isinstance(self.step, Step) else 0
