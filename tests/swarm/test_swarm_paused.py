"""A server whose owner pauses it: what runs goes on or elsewhere, nothing new comes, and it takes sessions again."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeClient
from harness import Swarm

from swarm.core.announcement import State
from swarm.core.errors import NoRouteError
from swarm.server.config import ServerConfig
from swarm.server.reports.vitals import told_uplink_mbps
from swarm.wire.messages import Busy

OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 40, "ignore_eos": True}


async def test_a_paused_server_is_used_by_nobody_until_it_wakes(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    [node] = await swarm.serve("3:5")
    engine = node.engine
    await node.server.rest()
    listing = await node.directory.server(swarm.files.model_id, node.peer)
    assert listing is not None, "it stays in sight"
    assert listing.announcement.state is State.DRAINING
    assert listing.metrics is not None
    with pytest.raises(NoRouteError):
        await swarm.client(busy_timeout_s=0.0).generate("x", **OPTIONS)
    client = FakeClient(swarm)
    _, answer = await client.open(node)
    assert isinstance(answer, Busy)
    await client.close()
    await node.server.wake()
    assert node.server.parts.engine is engine, "and nothing was loaded again"
    await swarm.answers()
    await swarm.check_free()


async def test_what_runs_may_finish_and_what_does_not_is_healed_elsewhere(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    [node] = await swarm.serve("3:5", config=ServerConfig(drain_timeout_s=5.0))
    expected = swarm.reference.greedy("talk", 40)
    model = swarm.client()
    stream = await model.stream("talk", **ENDLESS)
    await stream.next_piece()
    resting = asyncio.create_task(node.server.rest())
    await stream.next_piece()
    assert not resting.done()
    await swarm.serve("3:5")
    [piece async for piece in stream]
    assert list(stream.result.token_ids) == expected
    await resting
    assert not len(node.server.table)


async def test_a_pause_that_is_called_off_while_sessions_finish(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    stream = await swarm.client().stream("talk", **ENDLESS)
    await stream.next_piece()
    resting = asyncio.create_task(node.server.rest())
    await stream.next_piece()
    resting.cancel()
    await asyncio.gather(resting, return_exceptions=True)
    await node.server.wake()
    [piece async for piece in stream]
    assert not stream.result.heals
    await swarm.answers()


async def test_rows_are_counted_by_the_layers_they_went_through(swarm: Swarm) -> None:
    low, high = await swarm.serve("0:3", "3:5")
    model = swarm.client()
    result = await model.generate("count", **OPTIONS)
    await swarm.quiet()
    prompt, answers = result.prompt_tokens, len(result.token_ids)
    for node, layers in ((low, 3), (high, 2)):
        figures, totals = node.server.figures, node.server.status().totals
        assert (totals.prefill_rows, totals.decode_rows) == (prompt, answers - 1)
        assert figures.prefill_row_layers == layers * prompt
        assert figures.decode_row_layers == layers * (answers - 1)
        assert node.server.countersigned == 1


def test_a_limit_is_what_others_may_count_on() -> None:
    assert told_uplink_mbps(None, None) is None
    assert told_uplink_mbps(80.0, None) == 80.0
    assert told_uplink_mbps(80.0, 20.0) == 20.0
    assert told_uplink_mbps(8.0, 20.0) == 8.0
    assert told_uplink_mbps(None, 20.0) is None, "unmeasured it counts for less than that"
    assert told_uplink_mbps(None, 2.0) == 2.0
