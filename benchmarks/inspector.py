"""A client that asks with challenge texts and audits what it got, every window, by replicas of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.client.auditing.audit import AuditedWindow, AuditMeans, StageAudit, audit_stage
from swarm.client.auditing.reference import OwnReference
from swarm.client.blocking import SwarmModel
from swarm.client.evidence.records import SessionRecord
from swarm.client.request import Options
from swarm.core.errors import ConfigError, NetworkError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.replica import Replica, ReplicaRequest
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.progress import silent
from swarm.runtime.calibrations import find_calibration
from swarm.verification.challenges.challenge import words
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.verdicts.calibration import Calibration

SETTLE_S = 30.0
WORDS_PER_TOKEN = 1.2
"""More words than tokens never are needed: a text is cut to its length in tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """One session: ``prompt_tokens`` of challenge text, ``new_tokens`` of answer, sampled at ``temperature``."""

    number: int
    prompt_tokens: int
    new_tokens: int
    temperature: float = 0.0

    def options(self, model: SwarmModel) -> Options:
        tokenizer = model._inner.parts.tokenizer
        text = words(self.number.to_bytes(32, "big"), round(self.prompt_tokens * WORDS_PER_TOKEN) + 8)
        ids = tokenizer.encode(text)[: self.prompt_tokens]
        return Options(
            input_ids=ids,
            max_new_tokens=self.new_tokens,
            ignore_eos=True,
            temperature=self.temperature,
            seed=self.number,
        )


@dataclass(frozen=True, slots=True)
class Inspected:
    """One stage of one session, audited. Windows from ``decode_from`` on were computed token by token."""

    audit: StageAudit
    decode_from: int

    @property
    def windows(self) -> tuple[AuditedWindow, ...]:
        return self.audit.windows

    def is_decode(self, window: AuditedWindow) -> bool:
        return window.window >= self.decode_from


@dataclass
class Inspector:
    """Uses ``model`` for its sessions; one after the other, or several side by side."""

    model: SwarmModel
    calibration: Calibration
    _replicas: dict[str, OwnReference] = field(default_factory=dict)
    _records: asyncio.Queue[SessionRecord] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.model._inner.witness.on_settled.append(self._records.put_nowait)

    def ask(self, requests: Sequence[Request]) -> list[SessionRecord]:
        """Send them side by side; the records as they were settled, in any order."""
        return self.model._loop.run(self._ask(requests))

    async def _ask(self, requests: Sequence[Request]) -> list[SessionRecord]:
        async def one(request: Request) -> None:
            room = request.prompt_tokens + request.new_tokens + 1
            session = self.model._inner.session(max_tokens=room)
            try:
                await session.generate(**request.options(self.model))
            finally:
                await session.close()

        await asyncio.gather(*(one(request) for request in requests))
        async with asyncio.timeout(SETTLE_S):
            return [await self._records.get() for _ in requests]

    def audit(self, record: SessionRecord, span: Span, prompt_tokens: int) -> Inspected:
        """Audit the stage of ``span`` in every window; ``NetworkError`` if it was not in the session's chain."""
        stages = [stage for stage in record.stages if stage.opening.span == span]
        if not stages:
            raise NetworkError(f"no stage of layers {span} signed anything: {record.problems}")
        reference = self._reference(Numerics.parse(stages[0].opening.numerics))
        means = AuditMeans(transport=self.model._inner.parts.transport, calibration=self.calibration)
        audit = self.model._loop.run(audit_stage(record, stages[0], reference, means))
        return Inspected(audit, -(-prompt_tokens // WINDOW_ROWS))

    def _reference(self, numerics: Numerics) -> OwnReference:
        """The whole model, in float32 with the quantization that was declared."""
        name = numerics.quantization
        if name not in self._replicas:
            files = self.model._inner.parts.files
            request = ReplicaRequest(
                span=Span(0, files.layer_count),
                weights=LoadOptions(device="cpu", dtype="float32", quantization=name),
                threads=1,
            )
            self._replicas[name] = OwnReference(Replica.load(files, request, silent))
        return self._replicas[name]


def calibration_of(files: ModelFiles) -> Calibration:
    """The stored one; ``ConfigError`` without."""
    found = find_calibration(files.model_id)
    if found is None:
        raise ConfigError("the demo model is not calibrated", hint="python -m swarm calibrate --model demo")
    return found
