"""Servers that lie to a health page, or play with it, harm nobody: not the page, not what it shows of others."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from harness import Node, Swarm
from tiny_model import LAYERS
from trouble import PROMPT
from watching import kinds, named, only, seen, watching

from swarm.core.announcement import Coordinate, State
from swarm.core.ids import PeerId, chain_label
from swarm.core.metrics import MAX_RTT_PEERS
from swarm.core.record_base import MAX_SECONDS
from swarm.engine.speed import SpanSpeed
from swarm.health.state import SwarmState
from swarm.health.watching import asking
from swarm.health.watching.events import MANY
from swarm.health.watching.visiting import ANSWER_S
from swarm.health.web.patches import difference
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream
from swarm.wire.frames import encode_head
from swarm.wire.messages import Busy, Noop
from swarm.wire.session import Channel, Role
from swarm.wire.status import (
    BUCKETS_S,
    MAX_CHAINS,
    AskStatus,
    Histogram,
    LinkFigures,
    StageFigures,
    StatusReport,
    Totals,
)

SPEED = SpanSpeed(tau_s=0.004, fixed_s=0.01)
EVIL = "</script><img src=x onerror=alert(1)> $(rm -rf ~) `id` '; DROP"
HUGE = 2**62
COUNTS = tuple([HUGE] * (len(BUCKETS_S) + 1))
ABSURD = StatusReport(
    uptime_s=0.0,
    busy_share=1.0,
    totals=Totals(**dict.fromkeys(Totals.__struct_fields__, HUGE)),
    forward_s=Histogram(counts=COUNTS, sum_s=1e12),
    step_s=Histogram(counts=COUNTS, sum_s=0.0),
    decode_rows=HUGE,
    prefill_rows=HUGE,
    answers=HUGE,
)
Answer = Callable[[FrameStream, Stream], Awaitable[None]]


async def liar(swarm: Swarm, honest: Node, answer: Answer, **changes: Any) -> PeerId:
    """A server that announces what ``honest`` does, or with ``changes``, and answers the page by ``answer``."""
    identity = swarm.identity()
    transport = swarm.network.transport(identity)

    async def serve(stream: Stream) -> None:
        frames = FrameStream(stream, Channel.STATUS, Role.LISTENER)
        frames._machine.sent = lambda message: None  # type: ignore[method-assign,assignment]
        while isinstance((await frames.receive()).message, AskStatus):
            await answer(frames, stream)

    await transport.listen(Channel.STATUS.protocol, serve)
    announcement = swarm.announcement(transport, honest.engine, EVIL[:60], expires_s=swarm.clock.wall_s() + 500.0)
    changes = {"state": State.ONLINE} | changes
    await swarm.enlist(identity, msgspec.structs.replace(announcement, **changes), speed=SPEED)
    return identity.peer_id


def reporting(report: StatusReport) -> Answer:
    async def answer(frames: FrameStream, stream: Stream) -> None:
        await frames.send(report)

    return answer


def finite(state: SwarmState) -> bool:
    """JSON knows no NaN and no infinity."""
    text = msgspec.json.encode(state)
    return b"NaN" not in text and msgspec.json.decode(text, type=SwarmState) == state


def lie(session: bytes, **changes: Any) -> StageFigures:
    """A stage of somebody else's chain."""
    stage = StageFigures(
        label=chain_label(session), stage=1, start=1, end=3, decode_rows=HUGE, prefill_rows=HUGE,
        wait_s=3600.0, compute_s=3600.0, send_s=3600.0, period_s=0.0, age_s=0.0, open_s=1e9,
    )  # fmt: skip
    return msgspec.structs.replace(stage, **changes)


async def test_absurd_figures_and_an_evil_name_change_nothing_about_the_others(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    session = swarm.client().session()
    await session.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    [of_session] = {key.session for node in nodes for key in node.server.table._sessions}
    stolen = lie(of_session), lie(of_session, start=0, end=LAYERS)
    own = [lie(of_session, label=bytes([n]) * 8, end=4096, age_s=1e9) for n in range(MAX_CHAINS - len(stolen))]
    links = tuple(LinkFigures(peer, 0.0, None, 1e9) for peer in ("nobody", nodes[0].peer, nodes[0].peer, "\u202e" * 20))
    report = msgspec.structs.replace(ABSURD, chains=(*stolen, *own), links=links)
    async with watching(swarm) as watch:
        before = watch.state()
        place = Coordinate(-MAX_SECONDS, MAX_SECONDS, 0.0, 0.0)
        peer = await liar(swarm, nodes[1], reporting(report), coordinate=place, started_s=0.0)
        state = await seen(watch, lambda state: any(server.peer == peer for server in only(state).servers), 5.0)
        await asyncio.sleep(10.0)
        state = watch.state()
        assert finite(state)
        model = only(state)
        assert named(state, peer).name == EVIL[:60]
        assert named(state, peer).stats is not None
        for node in nodes:
            assert named(state, node.peer).condition == "serving"
            assert named(state, node.peer).stats == named(before, node.peer).stats or named(state, node.peer).stats
        [chain] = model.chains
        assert chain.complete
        assert [stage.peer for stage in chain.stages] == [node.peer for node in nodes], "who came first keeps his place"
        assert model.usable
        assert kinds(state) == ["joined"]
        assert len(model.links) <= len(model.servers) * MAX_RTT_PEERS
        assert all(link.rtt_s >= 0 for link in model.links)
        assert {link.target for link in model.links} <= {server.peer for server in model.servers}
        for advice in model.advice:
            assert 0 <= advice.start < advice.end <= LAYERS
            assert shlex.split(advice.command)[:3] == ["python", "-m", "swarm.server"]
    await session.close()


async def silent(frames: FrameStream, stream: Stream) -> None:
    await asyncio.sleep(10 * ANSWER_S)


async def garbage(frames: FrameStream, stream: Stream) -> None:
    await stream.write(b"\xff" * 64)


async def another(frames: FrameStream, stream: Stream) -> None:
    await frames.send(Noop())


async def hanging_up(frames: FrameStream, stream: Stream) -> None:
    await stream.close()


async def for_ever_busy(frames: FrameStream, stream: Stream) -> None:
    await frames.send(Busy(300.0, EVIL))


async def unasked(frames: FrameStream, stream: Stream) -> None:
    await stream.write(*[encode_head(ABSURD)] * 50)


@pytest.mark.parametrize(
    ("answer", "reached", "note"),
    [
        (silent, False, "unreachable"),
        (garbage, True, "invalid"),
        (another, True, "invalid"),
        (unasked, True, None),
        (hanging_up, True, "busy"),
        (for_ever_busy, True, "busy"),
    ],
)
async def test_a_server_that_answers_nothing_of_use_is_told_apart(
    swarm: Swarm, answer: Answer, reached: bool, note: str | None
) -> None:
    nodes = await swarm.serve(speed=SPEED)
    async with watching(swarm, settled=False) as watch:
        peer = await liar(swarm, nodes[1], answer)
        await asyncio.sleep(40.0)
        state = watch.state()
        server = named(state, peer)
        assert server.reached is reached
        if note is not None:
            assert (server.stats, server.stats_note) == (None, note)
        assert server.condition == ("serving" if reached else "silent")
        assert only(state).usable
        assert {named(state, node.peer).condition for node in nodes} == {"serving"}
        assert finite(state)


async def test_one_that_comes_and_goes_all_the_time_fills_no_log(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    heals = iter(range(1, 10**6))

    async def answer(frames: FrameStream, stream: Stream) -> None:
        totals = Totals(heals=next(heals))
        await frames.send(msgspec.structs.replace(ABSURD, uptime_s=float(totals.heals), totals=totals))

    async with watching(swarm) as watch:
        peer = await liar(swarm, nodes[1], answer)
        await asyncio.sleep(150.0)
        assert 1 < len(watch.events()) <= 21
        assert {event.peer for event in watch.events()} == {peer}


async def test_a_crowd_is_told_as_one(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        first = watch.state()
        for _ in range(4 * MANY):
            await liar(swarm, nodes[1], reporting(ABSURD))
        state = await seen(watch, lambda state: len(only(state).servers) == 3 + 4 * MANY, 20.0)
        await asyncio.sleep(30.0)
        state = watch.state()
        assert len(state.events) <= MANY
        patch = difference(first, state)
        assert len(patch.models) == 1
        [model] = [changed.model for changed in patch.models]
        assert len(model.servers) >= 4 * MANY


async def test_records_of_servers_that_were_never_seen_cover_no_hole(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more of them than the page can try: those it has not come to count no more than those that failed."""
    monkeypatch.setattr(asking, "MAX_ASKED", 6)
    monkeypatch.setattr(asking, "GUESTS", 1)
    nodes = await swarm.serve(speed=SPEED)
    made_up = 20
    async with watching(swarm) as watch:
        for _ in range(made_up):
            swarm.network.freeze(await liar(swarm, nodes[1], silent))
        await asyncio.sleep(asking.UNTRIED_S + 3.0)
        model = only(watch.state())
        assert model.usable
        assert {one.replicas for one in model.coverage} == {1}, "each layer has the one server that answers"
        await swarm.crash(nodes[1])
        state = await seen(watch, lambda state: not only(state).usable, 12.0)
        span = nodes[1].engine.info.span
        assert only(state).missing == [(span.start, span.end)]
        assert max(one.silent for one in only(state).coverage) == made_up + 1
        assert {named(state, node.peer).condition for node in (nodes[0], nodes[2])} == {"serving"}
        assert {event.peer for event in state.events if event.peer} == {nodes[1].peer}
