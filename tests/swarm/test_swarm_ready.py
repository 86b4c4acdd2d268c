"""What a server in a swarm says of it, and of itself: READY, and the line while nothing happens."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from harness import Swarm

from swarm.cli.hosting.probe import ProbeReport
from swarm.cli.hosting.ready import PING_S, alone_step_s, ready_event, worth
from swarm.cli.hosting.serving_line import SAMPLE_S, ServingLine
from swarm.cli.output.console import JsonConsole
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.capacity import Room
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.engine.work import SpanInfo

DELAY_S = 0.02
SPEED = SpanSpeed(tau_s=0.01, fixed_s=0.005, step_s=(0.035, 0.04, 0.05, 0.07), prefill_tokens_per_s=1000.0)
ROOM = Room(capacity_layers=5, layer_bytes=1000, numerics=Numerics("float32"), power_layers_per_s=100.0, head_layers=2)


async def test_ready_says_what_the_server_adds(swarm: Swarm) -> None:
    [head] = await swarm.serve("0:3", speed=SPEED)
    [tail] = await swarm.serve("3:5", speed=SPEED)
    swarm.delay(DELAY_S)
    found, adds = await worth(tail.server, ROOM)
    assert {one.peer for one in found} == {head.peer, tail.peer}
    assert adds.without.tokens_per_s is None
    assert adds.without.why == "no server holds layers 3 to 4"
    # The way there and back, each a measured round trip's half, and both servers' steps; two uplinks were never used.
    least_s = 2 * DELAY_S + 5 * SPEED.tau_s + 2 * SPEED.fixed_s
    assert adds.joined.tokens_per_s == pytest.approx(1 / least_s, rel=0.1)
    assert adds.joined.step is not None
    assert (adds.joined.step.unmeasured, adds.joined.step.uplinks) == (0, 1)
    assert adds.alone_tokens_per_s == pytest.approx(1 / (SPEED.fixed_s + 5 * SPEED.tau_s))
    assert adds.faster_alone
    text, fields = ready_event(tail.engine.info, "toy", ProbeReport(0.1, 0.05), found, adds)
    assert text.startswith("READY  serving layers 3:5 of toy; prefill 100 ms, decode step 50 ms; 2 servers")
    assert json.loads(json.dumps(fields))["faster_alone"] is True


async def test_a_server_that_does_not_answer_holds_ready_up_for_a_moment_only(swarm: Swarm) -> None:
    [head] = await swarm.serve("0:3", speed=SPEED)
    [tail] = await swarm.serve("3:5", speed=SPEED)
    swarm.network.freeze(head.peer)
    began_s = swarm.clock.monotonic_s()
    _, adds = await worth(tail.server, None)
    swarm.network.thaw(head.peer)
    assert swarm.clock.monotonic_s() - began_s <= PING_S + 0.1
    assert (adds.fits, adds.alone_tokens_per_s) == (False, None)
    assert adds.joined.step is not None
    assert adds.joined.step.unmeasured == 2
    assert adds.joined.step.vague


def info(*, head: bool) -> SpanInfo:
    span = Span(3, 5)
    return SpanInfo(
        span=span, layer_count=5, hidden_size=32, vocab_size=64, context_tokens=64, embeddings=False, head=head,
        dtype="float32", quantization="none", device="cpu", kv_bytes_per_token=1, memory_bytes=1,
    )  # fmt: skip


def test_alone_the_head_counts_where_the_measured_span_had_none() -> None:
    assert alone_step_s(SPEED, info(head=True), ROOM) == pytest.approx(0.005 + 5 * 0.01)
    assert alone_step_s(SPEED, info(head=False), ROOM) == pytest.approx(0.005 + 7 * 0.01)
    assert alone_step_s(UNMEASURED, info(head=True), ROOM) is None


async def test_the_line_follows_what_the_server_does(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5", speed=SPEED)
    out, resting = io.StringIO(), [""]
    console = JsonConsole(out)
    console.status_every_s = 8.0
    line = ServingLine(node.server, console, lambda: resting[0], "20 Mbit/s of upload")
    running = asyncio.create_task(line.run())
    stream = await swarm.client().stream("talk", max_new_tokens=200, ignore_eos=True)
    until_s = swarm.clock.monotonic_s() + 3 * SAMPLE_S
    while swarm.clock.monotonic_s() < until_s:
        await stream.next_piece()
    fields = line._look()
    assert (fields["sessions"], fields["servers"]) == (1, 1)
    # A step takes 55 ms of the server, and nothing of the network.
    assert fields["decode_tokens_per_s"] == pytest.approx(1 / 0.055, rel=0.2)
    assert 0 < float(str(fields["kv_used_share"])) < 1
    await stream.aclose()
    resting[0] = "owner"
    await swarm.clock.sleep(4.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told = [json.loads(row) for row in out.getvalue().splitlines()]
    assert [event["event"] for event in told] == ["status"]
    assert (told[0]["resting"], told[0]["sessions"], told[0]["limits"]) == ("owner", 0, "20 Mbit/s of upload")
