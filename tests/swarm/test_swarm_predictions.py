"""What READY, `status` and the health page expect of a swarm that has just come together, against what it then does."""

from __future__ import annotations

import asyncio

import pytest
from harness import Node, Swarm
from watching import only, watching

from swarm.cli.commands.status import look
from swarm.cli.hosting.prospects import Forecast
from swarm.cli.hosting.ready import worth
from swarm.client.finding.snapshot import Snapshot
from swarm.dht.memory import MemoryDirectory
from swarm.engine.speed import SpanSpeed
from swarm.transport.memory import LinkShape

DELAY_S = 0.03
SPEED = SpanSpeed(tau_s=0.01, fixed_s=0.005)
SPANS = ("0:2", "2:4", "4:5")
SOON_S = 10.0
NEAR = 1.25
"""A prediction that is off by less is right."""


async def measured(swarm: Swarm) -> float:
    """Tokens per second that a client gets."""
    result = await swarm.client().generate("how fast", max_new_tokens=20, ignore_eos=True)
    await asyncio.sleep(8 * DELAY_S)  # until it is settled
    return result.tokens_per_s


async def status(swarm: Swarm) -> Snapshot:
    """As somebody sees it who comes now."""
    directory = MemoryDirectory(swarm.store)
    transport = swarm.network.transport(swarm.identity())
    _, snapshot = await look(directory, transport, swarm.clock, swarm.files.model_id.name)
    await directory.close()
    await transport.close()
    assert snapshot is not None
    return snapshot


async def joined(node: Node) -> Forecast:
    """What its READY would say."""
    _, adds = await worth(node.server, None)
    return adds.joined


def holds(forecast: Forecast, tokens_per_s: float) -> bool:
    least, most = forecast.range_tokens_per_s or (0.0, 0.0)
    return least / NEAR < tokens_per_s < most * NEAR


async def test_ten_seconds_after_the_last_ready_all_three_know(swarm: Swarm) -> None:
    swarm.network._shape = LinkShape(delay_s=DELAY_S)
    async with watching(swarm, settled=False) as watch:
        for span in SPANS:
            [last] = await swarm.serve(span, speed=SPEED)
            if span != SPANS[-1]:
                await asyncio.sleep(3.0)
        ready = await joined(last)
        await asyncio.sleep(SOON_S)
        told, page = (await status(swarm)).expected, only(watch.state())
        truth = await measured(swarm)
    assert holds(ready, truth)
    assert told is not None
    assert told.unmeasured == 0
    assert 1 / told.middle_s == pytest.approx(truth, rel=NEAR - 1)
    assert page.tokens_per_s == pytest.approx(truth, rel=NEAR - 1)
    assert page.sentence.startswith(f"Usable now: about {page.tokens_per_s:.2g} tokens/s for a new session;")


async def test_of_servers_that_come_at_once_the_range_holds_the_truth_from_the_first_moment(swarm: Swarm) -> None:
    swarm.network._shape = LinkShape(delay_s=DELAY_S)
    await asyncio.gather(*(swarm.serve(span, speed=SPEED) for span in SPANS))
    ready = [await joined(node) for node in swarm.nodes]
    first = Forecast((await status(swarm)).expected)
    await asyncio.sleep(SOON_S)
    later = Forecast((await status(swarm)).expected)
    truth = await measured(swarm)
    assert all(holds(forecast, truth) for forecast in (*ready, first, later)), (ready, first, later, truth)
    assert later.step is not None
    assert later.step.unmeasured == 0
