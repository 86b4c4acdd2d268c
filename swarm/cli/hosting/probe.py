"""The self-probe: before a server says READY, a stranger in the same process uses it as any client would."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from swarm.client.chains.chain import Chain, ChainPlan, StagePlan
from swarm.core.announcement import Announcement
from swarm.core.errors import ChainOpenError, NetworkError, SwarmError
from swarm.core.ids import ModelId
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions
from swarm.transport.protocol import Transport
from swarm.wire.fields import DECODE_LANE, PREFILL_LANE
from swarm.wire.messages import Result, Step
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import decode_tensor, from_float32, to_float32

PROBE_ROWS = 8
"""Rows of the probe's prefill."""
STEP_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """How long a prefill of ``PROBE_ROWS`` rows and one decode step took, in seconds, seen from outside."""

    prefill_s: float
    decode_s: float


async def probe(announced: Announcement, record: bytes, hidden_size: int) -> ProbeReport:
    """Dial the server from a second, short-lived node (libp2p refuses to dial itself) and run a prefill and a step.

    ``record`` is the signed form of ``announced``. Raises ``NetworkError`` that says what a stranger met.
    """
    stranger = await Libp2pTransport.create(None, nat=NatOptions(dht_mode="client", serve_relay=False))
    try:
        return await probe_through(stranger, StagePlan(announced, record, announced.span), hidden_size)
    except ChainOpenError as error:
        raise _unreachable(next(iter(error.failures.values()))) from error
    except NetworkError as error:
        raise _unreachable(error) from error
    finally:
        await stranger.close()


def _unreachable(error: SwarmError) -> NetworkError:
    return NetworkError(
        f"this server does not answer strangers: {error.message}",
        hint="check that its port is open, or use --announce or --relay",
    )


async def probe_through(transport: Transport, stage: StagePlan, hidden_size: int) -> ProbeReport:
    """Open a session of one stage at ``stage``, prefill ``PROBE_ROWS`` rows and decode one more."""
    announced = stage.announcement
    plan = ChainPlan(
        model=ModelId.parse(announced.model),
        stages=[stage],
        kv_tokens=PROBE_ROWS + 1,
        embed=announced.embeddings,
        head=announced.head,
    )
    chain = await Chain.open(plan, transport)
    try:
        began_s = time.perf_counter()
        await _step(chain, 0, PROBE_ROWS, hidden_size)
        middle_s = time.perf_counter()
        await _step(chain, 1, 1, hidden_size)
        return ProbeReport(middle_s - began_s, time.perf_counter() - middle_s)
    finally:
        await chain.close()


async def _step(chain: Chain, seq: int, rows: int, hidden_size: int) -> None:
    """One step and its result, checked: the right rows, and finite values."""
    announced, embed, head = chain.plan.stages[0].announcement, chain.plan.embed, chain.plan.head
    ids = embed or head
    keep = 0 if seq == 0 else PROBE_ROWS
    step = Step(generation=0, epoch=0, seq=seq, keep=keep, rows=rows, want=1, ids=ids)
    payload: list[bytes | memoryview] = [pack_ids([1] * rows)] if ids else []
    if not embed:
        row_f = np.random.default_rng(seq).standard_normal(rows * hidden_size).astype(np.float32)
        payload.append(from_float32(row_f, announced.numerics.dtype))
    lane = DECODE_LANE if rows == 1 else PREFILL_LANE
    async with asyncio.timeout(STEP_TIMEOUT_S):
        frame = await (await chain.send(step, payload, lane))
    result = frame.message
    if not isinstance(result, Result) or result.kv_length != keep + rows:
        raise NetworkError("it lost count of its own cache")
    if head:
        answered = len(result.tokens) == 1
    else:
        raw = decode_tensor(frame.payload, "raw", announced.numerics.dtype, 1, hidden_size)
        answered = bool(np.isfinite(to_float32(raw, announced.numerics.dtype)).all())
    if not answered:
        raise NetworkError("its answer to the probe is not a number")
