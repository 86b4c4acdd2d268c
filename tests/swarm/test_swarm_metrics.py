"""What a whole swarm says of itself in the directory, in virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest
from fakes import FakeClient
from harness import Node, Swarm

from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.engine.speed import SpanSpeed
from swarm.server.reports.meter import IDLE_AFTER_S, Meter
from swarm.wire.messages import Accept

SPEED = SpanSpeed(tau_s=0.01, fixed_s=0.02, step_s=(0.07, 0.08, 0.09, 0.1), prefill_tokens_per_s=100.0)


def probed(node: Node, speed: SpanSpeed = SPEED) -> Meter:
    """As if the node had been measured at its start. In virtual time its forwards take none."""
    meter = Meter(speed)
    node.server.vitals.meter = node.server.batcher._meter = meter
    return meter


async def seen(swarm: Swarm, node: Node) -> Metrics | None:
    """The node's metrics as every reader finds them."""
    reader = next(other for other in swarm.nodes if not other.directory._closed)
    listing = await reader.directory.server(swarm.files.model_id, node.peer)
    return None if listing is None else listing.metrics


async def test_a_server_is_found_alive_as_soon_as_it_is_found(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    metrics = await seen(swarm, node)
    assert metrics is not None
    assert (metrics.sessions, metrics.queued_steps, metrics.kv_free_tokens) == (0, 0, node.kv_tokens)
    await swarm.quiet()
    assert [entry.model for entry in await node.directory.models()] == [str(swarm.files.model_id)]


async def test_sessions_are_counted_while_they_last(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    session = swarm.client().session()
    await session.generate("x", max_new_tokens=2, ignore_eos=True)
    await asyncio.sleep(0.2)
    during = await seen(swarm, node)
    await session.close()
    await asyncio.sleep(0.2)
    after = await seen(swarm, node)
    assert during is not None
    assert after is not None
    assert (during.sessions, after.sessions) == (1, 0)
    assert during.kv_free_tokens < after.kv_free_tokens == node.kv_tokens


async def test_accept_tells_the_load_of_that_moment(swarm: Swarm, client: FakeClient, node: Node) -> None:
    meter = probed(node)
    _, first = await client.open(node)
    assert isinstance(first, Accept)
    assert (first.sessions, first.tau_s, first.fixed_s) == (1, SPEED.tau_s, SPEED.fixed_s)
    for _ in range(50):
        meter.computed([5], [0.5], 3 * 0.07, swarm.clock.monotonic_s())
    _, second = await client.open(node, session=b"2" * 16)
    assert isinstance(second, Accept)
    assert (second.sessions, second.tau_s) == (2, pytest.approx(3 * SPEED.tau_s))
    assert second.fixed_s == pytest.approx(3 * SPEED.fixed_s + 0.5)
    await asyncio.sleep(IDLE_AFTER_S + 0.1)
    _, third = await client.open(node, session=b"3" * 16)
    assert isinstance(third, Accept)
    assert (third.sessions, third.fixed_s) == (3, SPEED.fixed_s), "three are open, none does anything"


@pytest.mark.parametrize("busy", [False, True])
async def test_a_killed_server_is_not_live_after_ten_seconds(swarm: Swarm, busy: bool) -> None:
    first, second = await swarm.serve("0:5", "0:5")
    session = swarm.client().session()
    if busy:
        await session.generate("x", max_new_tokens=2, ignore_eos=True)
        [first] = [node for node in swarm.nodes if len(node.server.table)]
        [second] = [node for node in swarm.nodes if node is not first]
    assert await seen(swarm, first) is not None
    await swarm.crash(first)
    await asyncio.sleep(METRICS_LIFETIME_S)
    assert await seen(swarm, first) is None
    assert await seen(swarm, second) is not None
    await session.close()


async def test_after_its_last_word_nothing_is_heard_of_a_server(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    leaving, _ = await swarm.serve("0:5", "0:5")
    session = swarm.client().session()
    await session.generate("x", max_new_tokens=2, ignore_eos=True)
    written: list[str] = []
    publish = leaving.directory.publish

    async def noted(signed: bytes, record: object) -> None:
        written.append(type(record).__name__ + getattr(getattr(record, "state", None), "value", ""))
        await publish(signed, record)  # type: ignore[arg-type]

    monkeypatch.setattr(leaving.directory, "publish", noted)
    await leaving.server.leave()
    await asyncio.sleep(30.0)
    assert written[-1] == "Announcementoffline"
    assert await seen(swarm, leaving) is None
    await session.close()


async def test_neighbours_round_trips_are_measured_and_told(swarm: Swarm) -> None:
    swarm.delay(0.02)
    first, second, third = await swarm.serve("0:2", "2:5", "1:4")
    swarm.delay(0.02)
    await asyncio.sleep(60.0)
    metrics = await seen(swarm, first)
    assert metrics is not None
    assert metrics.rtt_s == {second.peer: pytest.approx(0.04), third.peer: pytest.approx(0.04)}
    last = await seen(swarm, second)
    assert last is not None
    assert last.rtt_s == {first.peer: pytest.approx(0.04), third.peer: pytest.approx(0.04)}, "those it can follow"
    assert first.server.parts.announcer.current.coordinate is not None


async def test_a_server_that_became_slow_says_so_although_nobody_uses_it_any_more(swarm: Swarm) -> None:
    """In doubt it computes a step alone; real time here, as the check measures the engine itself."""
    [node] = await swarm.serve("0:5")
    meter = probed(node, SpanSpeed(tau_s=1e-9))
    assert not meter.contradicted
    meter.computed([5], [0.0], 1.0, swarm.clock.monotonic_s())
    assert meter.contradicted
    began_s = time.perf_counter()
    node.server.reporting.changed()
    await asyncio.sleep(0.2)
    metrics = await seen(swarm, node)
    assert metrics is not None
    assert 1e-6 < metrics.tau_s <= (time.perf_counter() - began_s) / 5
    assert not meter.contradicted
    assert node.engine.free_tokens == node.kv_tokens
