"""Servers as auditors: who covers a stage's layers, and how one of them is made to compute its rows again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from swarm.client.auditing.reference import Replay
from swarm.client.chains.chain import Chain
from swarm.client.plan import ChainPlan, StagePlan
from swarm.core.errors import PeerUnreachableError, ProtocolViolation
from swarm.core.ids import ModelId, PeerId
from swarm.core.limits import MAX_STEP_ROWS
from swarm.core.listing import Listing
from swarm.core.numerics import DTYPE_BYTES, Numerics
from swarm.core.spans import Span
from swarm.scheduling.coverage import usable
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.verification.proofs import Charge
from swarm.verification.verdicts.calibration import Floats
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.frames import Frame
from swarm.wire.messages import Result, Step
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import from_float32, to_float32

STEP_S = 60.0
IN_FLIGHT = 2
"""Chunks under way: one is computed while the next one travels."""
CHUNK_BYTES = 8 * 1024 * 1024
"""Of rows in one frame, half of what a client takes."""


def covering(
    listings: Sequence[Listing], span: Span, numerics: Numerics, *, excluded: Collection[PeerId]
) -> list[StagePlan]:
    """The live servers that hold ``span`` with ``numerics``' dtype and quantization, without the ``excluded``.

    In the order of the listings, each as the stage it would be; for layer 0 only those that hold the embeddings too.
    """
    found = []
    for listing in listings:
        told = listing.announcement
        alike = (told.numerics.dtype, told.numerics.quantization) == (numerics.dtype, numerics.quantization)
        able = told.span.covers(span) and (span.start > 0 or told.embeddings)
        if usable(listing) and alike and able and listing.peer not in excluded:
            found.append(StagePlan(told, listing.record, span))
    return found


@dataclass(frozen=True, slots=True)
class Auditing:
    """How servers are reached to compute rows of ``model`` again."""

    model: ModelId
    transport: Transport
    pulse: PulseKeeper | None = None


class ServerReference:
    """Another server. To it the replay is an ordinary session of one stage that reads a long prompt."""

    def __init__(self, stage: StagePlan, auditing: Auditing) -> None:
        self.stage = stage
        self.name = str(stage.peer)
        self.numerics = stage.announcement.numerics
        self._auditing = auditing

    @property
    def peer(self) -> PeerId:
        return self.stage.peer

    async def outputs(self, replay: Replay) -> Floats:
        """See ``Reference``. ``ChainOpenError`` if it does not take the session, ``NetworkError`` if it gives up or
        takes more than ``STEP_S`` for a chunk, ``ProtocolViolation`` for rows that cannot be."""
        auditing = self._auditing
        plan = ChainPlan(
            model=auditing.model,
            stages=[replace(self.stage, span=replay.span)],
            kv_tokens=replay.rows,
            embed=replay.inputs is None,
            head=False,
            numerics=str(self.numerics),
            priority="batch",
        )
        chain = await Chain.open(plan, auditing.transport, auditing.pulse)
        try:
            return await self._replayed(chain, replay)
        finally:
            await asyncio.shield(chain.close())

    async def embedded(self, token_ids: Sequence[int]) -> Floats | None:
        """None: a server shows rows behind its layers only."""
        return None

    async def logits(self, finals: Floats) -> Floats | None:
        """None: a server shows tokens, and no logits."""
        return None

    async def _replayed(self, chain: Chain, replay: Replay) -> Floats:
        rows = max(1, min(MAX_STEP_ROWS, CHUNK_BYTES // (4 * replay.hidden)))
        flying: deque[tuple[int, asyncio.Future[Frame]]] = deque()
        found: list[Floats] = []
        for seq, start in enumerate(range(0, replay.rows, rows)):
            end = min(start + rows, replay.rows)
            want = max(end - max(start, replay.first), 0)
            step = Step(
                generation=chain.generation,
                epoch=0,
                seq=seq,
                keep=start,
                rows=end - start,
                want=want,
                ids=replay.inputs is None,
                horizon=replay.horizon or replay.rows,
            )
            flying.append((want, await chain.send(step, [self._payload(replay, start, end)], PREFILL_LANE)))
            while len(flying) > (IN_FLIGHT - 1 if end < replay.rows else 0):
                found.append(await self._answer(*flying.popleft(), replay.hidden))
        return np.concatenate([part for part in found if len(part)])

    def _payload(self, replay: Replay, start: int, end: int) -> bytes:
        if replay.inputs is None:
            return pack_ids(replay.token_ids[start:end])
        return from_float32(np.asarray(replay.inputs[start:end], np.float32), self.numerics.dtype)

    async def _answer(self, want: int, future: asyncio.Future[Frame], hidden: int) -> Floats:
        try:
            async with asyncio.timeout(STEP_S):
                frame = await future
        except TimeoutError as error:
            raise PeerUnreachableError(f"no rows within {STEP_S:g} s") from error
        rows = frame.message.rows if isinstance(frame.message, Result) else -1
        size = want * hidden * DTYPE_BYTES[self.numerics.dtype]
        if rows != want or len(frame.payload) != size:
            raise ProtocolViolation(f"{rows} rows in {len(frame.payload)} bytes, not {want} in {size}", peer=self.peer)
        return to_float32(frame.payload, self.numerics.dtype).reshape(want, hidden)


def delegated(
    auditing: Auditing,
    listings: Callable[[], Awaitable[Sequence[Listing]]],
    distrusted: Callable[[], Collection[PeerId]],
    random: Random,
) -> Callable[[Charge], Awaitable[list[ServerReference]]]:
    """For ``accusing.convict`` without weights: two servers that cover the accused layers, drawn by ``random``.

    Neither the accused nor anybody of ``distrusted``; fewer than two if there are not more.
    """

    async def references(charge: Charge) -> list[ServerReference]:
        excluded = {charge.subject, *distrusted()}
        found = covering(await listings(), charge.opening.span, charge.numerics, excluded=excluded)
        return [ServerReference(plan, auditing) for plan in random.sample(found, min(2, len(found)))]

    return references
