"""What the servers of a whole swarm tell of themselves: one chain as all of them see it, and nothing of its client."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeClient, heard, step
from harness import SPANS, Node, Recorder, Swarm
from tiny_model import LAYERS
from trouble import HOP_S, NEW_TOKENS, PROMPT, ask, greedy

from swarm.core.errors import PeerLostError, RefusedError
from swarm.core.ids import chain_label
from swarm.core.spans import Span
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.engine.weights import LoadOptions
from swarm.server.config import ServerConfig
from swarm.transport.memory import MemoryTransport
from swarm.transport.status import StatusLine, ask_status
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.frames import encode_head
from swarm.wire.messages import Busy, Close, Result
from swarm.wire.status import WINDOW_S, StageFigures, StatusReport
from swarm.wire.tensors import encode_tensor

SPEED = SpanSpeed(tau_s=0.004, fixed_s=0.01)


def watcher(swarm: Swarm) -> MemoryTransport:
    return swarm.network.transport(swarm.identity())


async def reports(swarm: Swarm) -> list[StatusReport]:
    """What every server says, in the order in which they were started."""
    asker = watcher(swarm)
    return [await ask_status(asker, node.peer, addresses=node.transport.addresses) for node in swarm.nodes]


async def test_three_servers_tell_of_one_chain(swarm: Swarm) -> None:
    """The stages' times and the way around the ring are the time between two tokens, and the rows are the client's."""
    await swarm.serve(*SPANS, speed=SPEED)
    session = swarm.client().session()
    swarm.delay(HOP_S)
    result = await session.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    assert list(result.token_ids) == greedy(swarm)
    keys = {key for node in swarm.nodes for key in node.server.table._sessions}
    [session_bytes] = {key.session for key in keys}
    told = await reports(swarm)
    stages: list[StageFigures] = []
    for node, report in zip(swarm.nodes, told, strict=True):
        [stage] = report.chains
        stages.append(stage)
        assert stage.label == chain_label(session_bytes)
        span = node.engine.info.span
        assert (stage.start, stage.end) == (span.start, span.end)
        assert stage.prefill_rows == report.prefill_rows == result.prompt_tokens
        assert stage.decode_rows == report.decode_rows == NEW_TOKENS - 1
        assert report.step_s.total == report.forward_s.total == NEW_TOKENS - 1
        assert stage.compute_s == pytest.approx(SPEED.fixed_s + len(span) * SPEED.tau_s, rel=1e-3)
        assert stage.wait_s == pytest.approx(0.0, abs=1e-3)
        assert stage.send_s == pytest.approx(0.0, abs=1e-3)
        assert 0 < report.busy_share < 1
        assert report.totals.sessions == 1
        assert report.totals.receipts > 0
        assert report.totals.sent_bytes > 0
    assert [report.answers for report in told] == [0, 0, NEW_TOKENS]
    assert {stage.stage for stage in stages} == {0, 1, 2}
    here_s = sum((s.wait_s or 0) + (s.compute_s or 0) + (s.send_s or 0) for s in stages)
    hops = len(SPANS) + 1
    for stage in stages:
        assert stage.period_s == pytest.approx(here_s + hops * HOP_S, rel=0.02)
    await session.close()


async def test_links_are_those_to_next_servers_and_as_fresh_as_their_beat(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    client = swarm.client()
    session = client.session()
    swarm.delay(HOP_S)
    await session.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    await asyncio.sleep(1.0)
    told = await reports(swarm)
    assert [[link.peer for link in report.links] for report in told] == [[nodes[1].peer], [nodes[2].peer], []]
    for report in told[:2]:
        [link] = report.links
        assert link.rtt_s == pytest.approx(2 * HOP_S, rel=0.1)
        assert link.noop_age_s is not None
        assert link.noop_age_s < 0.25
    swarm.network.freeze(nodes[2].peer)
    await asyncio.sleep(1.4)
    asker = watcher(swarm)
    [link] = (await ask_status(asker, nodes[1].peer)).links
    assert link.noop_age_s is not None
    assert link.noop_age_s > 1.2, "nobody has answered since"
    swarm.network.thaw(nodes[2].peer)
    await asyncio.sleep(0.5)
    await session.close()
    await asyncio.sleep(20.0)
    assert [report.links for report in await reports(swarm)] == [(), (), ()]


@pytest.mark.parametrize("head", ["remote", "local"])
async def test_nothing_of_a_client_is_in_a_report(swarm: Swarm, head: str) -> None:
    nodes = await swarm.serve(*SPANS)
    client = swarm.client(head)
    session = client.session()
    result = await session.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    keys = [key for node in nodes for key in node.server.table._sessions]
    assert {key.client for key in keys} == {client.parts.transport.peer_id}
    told = await reports(swarm)
    for report in told:
        packed = encode_head(report)
        for secret in {key.session for key in keys}:
            assert secret not in packed
            assert secret.hex().encode() not in packed
        for text in (client.parts.transport.peer_id, PROMPT, PROMPT[:8], result.text[:8]):
            assert text.encode() not in packed
    assert [report.answers for report in told] == [0, 0, NEW_TOKENS], "whoever samples"
    await session.close()


async def test_a_heal_is_told_by_whoever_took_over(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, SPANS[1])

    async def kill(chain: list[Node]) -> None:
        await swarm.crash(chain[1])

    result = await ask(swarm, swarm.client(), kill)
    assert list(result.token_ids) == greedy(swarm)
    alive = [node for node in swarm.nodes if node.peer not in {stage.peer for stage in result.heals[0].lost}]
    asker = watcher(swarm)
    told = [await ask_status(asker, node.peer) for node in alive]
    assert sum(report.totals.heals for report in told) == len(result.heals) == 1
    assert len({stage.label for report in told for stage in report.chains}) == 1
    [newcomer] = [report for report in told if report.totals.heals]
    assert newcomer.totals.prefill_rows >= len(PROMPT), "it computed the lost rows again"


async def test_a_chain_is_told_of_for_a_minute_after_its_end(swarm: Swarm) -> None:
    await swarm.serve("0:5")
    await swarm.answers()
    await asyncio.sleep(WINDOW_S - 5.0)
    [ended] = (await reports(swarm))[0].chains
    assert ended.age_s > WINDOW_S - 6.0
    await asyncio.sleep(10.0)
    [report] = await reports(swarm)
    assert (report.chains, report.decode_rows, report.busy_share) == ((), 0, 0.0)
    assert report.totals.sessions == 1


async def test_who_is_turned_away_is_counted(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(max_sessions=1))
    await client.open(node)
    assert isinstance((await client.open(node, session=b"2" * 16))[1], Busy)
    [report] = await reports(swarm)
    assert (report.totals.sessions, report.totals.refused) == (1, 1)


async def test_figures_go_on_when_a_server_moves(swarm: Swarm) -> None:
    """Another engine, and nothing is counted twice or forgotten."""
    [node] = await swarm.serve("0:5")
    await swarm.answers(new_tokens=4)
    before = node.server.status()
    assert await node.server.drain(1.0)
    swarm._engines._keys[id(node.engine._engine)] = ("moved",)  # type: ignore[attr-defined]
    await node.server.vacate()
    weights = LoadOptions(device="cpu", dtype="float32")
    engine = swarm._engines.borrow(Span(0, LAYERS), kv_tokens=node.kv_tokens, weights=weights)
    node.engine = Recorder(engine, node.rows)  # type: ignore[assignment]
    node.server.occupy(node.engine, UNMEASURED)
    await node.server.appear()
    await swarm.answers(new_tokens=6)
    after = node.server.status()
    assert after.totals.sessions == before.totals.sessions + 1 == 2
    assert (before.totals.answers, after.totals.answers) == (4, 10)
    assert (before.decode_rows, after.decode_rows) == (3, 8)
    assert after.forward_s.total == 8
    assert after.uptime_s >= before.uptime_s


async def test_statistics_are_off_for_who_wants_it_so(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(stats=False))
    with pytest.raises(RefusedError, match="statistics are off"):
        await ask_status(watcher(swarm), node.peer)
    await swarm.answers()


async def test_whoever_watches_hears_at_once_that_a_server_left(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    line = await StatusLine.open(watcher(swarm), node.peer)
    await line.ask()
    began_s = swarm.clock.monotonic_s()
    watching = asyncio.create_task(line.ended())
    await node.server.stop()
    assert isinstance(await watching, PeerLostError)
    assert swarm.clock.monotonic_s() - began_s < 1.0
    await line.close()


async def test_rows_wanted_of_other_layers_or_in_bulk_are_no_tokens(swarm: Swarm, client: FakeClient) -> None:
    """As a server's own probe and an auditor want them."""
    [middle, last] = await swarm.serve("1:3", "3:5")
    rows = encode_tensor(bytes(4 * 20 * 32), "raw", "float32", 32)
    for node, answers in ((middle, 0), (last, 1)):
        control, _ = await client.open(node, head=False)
        link = await client.link(node, lane=PREFILL_LANE)
        await link.send(step(rows=20, want=20, ids=False), rows)
        assert isinstance(await heard(control), Result)
        assert node.server.status().totals.answers == answers
        await control.send(Close())
