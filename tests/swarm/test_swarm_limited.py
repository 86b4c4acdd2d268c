"""A server with a limited uplink: answers are the same, the limit holds, and tokens do not wait behind prompts."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from harness import Swarm

from swarm.core.ids import PeerId
from swarm.server.config import ServerConfig
from swarm.transport.capped import BURST_S, line_bytes

MBPS = 0.1
BYTES_PER_S = 1e6 / 8 * MBPS
PROMPT = "a long prompt, read in chunks " * 8
"""Its rows take seconds at that rate."""


async def test_a_limit_holds_and_a_token_does_not_wait_for_a_prompt(swarm: Swarm) -> None:
    [head] = await swarm.serve("0:3", config=ServerConfig(uplink_mbps=MBPS))
    await swarm.serve("3:5")
    sent: list[tuple[float, int]] = []

    def watch(source: PeerId, target: PeerId, protocol: str, data: bytes) -> bytes:
        if source == head.peer:
            sent.append((swarm.clock.monotonic_s(), line_bytes(len(data))))
        return data

    remove = swarm.network.tap(watch)
    talking, reading = swarm.client(), swarm.client()
    stream = await talking.stream("talk", max_new_tokens=30, ignore_eos=True)
    alone = await _gaps(swarm, stream, 12)
    asking = asyncio.create_task(reading.generate(PROMPT, max_new_tokens=4, ignore_eos=True))
    beside = await _gaps(swarm, stream, 12)
    assert not asking.done(), "the prompt is on its way all the while"
    assert max(beside) <= max(alone) + 0.15, "a piece of the prompt, and what else is urgent"
    [piece async for piece in stream]
    result = await asking
    remove()

    assert stream.result.token_ids == tuple(swarm.reference.greedy("talk", 30))
    assert list(result.token_ids) == swarm.reference.greedy(PROMPT, 4)
    assert not result.heals
    backlog_bytes, before_s = 0.0, 0.0
    for at_s, size_bytes in sent:
        backlog_bytes = max(0.0, backlog_bytes - BYTES_PER_S * (at_s - before_s)) + size_bytes
        assert backlog_bytes <= BYTES_PER_S * BURST_S + line_bytes(1024) + 1
        before_s = at_s
    assert head.server.vitals.metrics().uplink_mbps == MBPS


async def _gaps(swarm: Swarm, stream: Any, count: int) -> list[float]:
    """Seconds between ``count`` pieces."""
    times = [swarm.clock.monotonic_s()]
    for _ in range(count):
        await stream.next_piece()
        times.append(swarm.clock.monotonic_s())
    return [later - earlier for earlier, later in pairwise(times)]
