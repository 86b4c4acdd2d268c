"""More clients than a server can carry, in virtual time: who gets how much, who is turned away, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from fakes import FakeClient, heard, refused, step
from harness import Node, Swarm

from swarm.engine.speed import SpanSpeed
from swarm.scheduling.fair_queue import STRETCH, UNMEASURED_ROWS, shared_rows
from swarm.scheduling.shedding import FEWEST, MARGIN, MOST_WAIT_S
from swarm.server.config import ServerConfig
from swarm.server.queueing.turnaround import NEW_S
from swarm.transport.framing import FrameStream
from swarm.transport.memory import LinkShape
from swarm.wire.fields import DECODE_LANE, PREFILL_LANE, Lane
from swarm.wire.messages import Accept, Busy, Close, Failed, Refused, Result
from swarm.wire.payload import pack_ids

LONE_S = 0.050
ROW_S = 0.005
NETWORK_S = 0.2
SPEED = SpanSpeed(
    tau_s=LONE_S / 5,
    step_s=(LONE_S, LONE_S + ROW_S, LONE_S + 3 * ROW_S, LONE_S + 7 * ROW_S),
    prefill_tokens_per_s=1 / ROW_S,
)
"""A server whose forward of n rows takes 45 ms and five more a row."""
OPEN = ServerConfig(max_sessions=128, max_sessions_per_client=128, open_burst_per_client=1000)


async def slow_node(swarm: Swarm, config: ServerConfig = OPEN, *, told: bool = True) -> Node:
    """A server for the whole model that takes its time for every row; ``told``: it knows its speed."""
    [node] = await swarm.serve("0:5", config=config, kv_tokens=100_000, speed=SPEED)
    engine: Any = node.engine
    engine.takes_s = 0.0
    run, batcher = engine.run, node.server.batcher
    apart, took_s = batcher.apart, [0.0]

    def noted(batch: Sequence[Any]) -> Any:
        took_s[0] = LONE_S + ROW_S * (sum(work.rows for work in batch) - 1)
        return run(batch)

    async def slowly(work: Any) -> Any:
        result = await apart(work)
        await asyncio.sleep(took_s[0])  # and not in the thread: whoever comes meanwhile is heard
        return result

    engine.run, batcher.apart = noted, slowly  # type: ignore[method-assign]
    if not told:
        node.server.vitals.meter._speed = SpanSpeed(tau_s=SPEED.tau_s)
    return node


class Talker:
    """One session that asks for the next token as soon as the last has come."""

    def __init__(self, client: FakeClient, node: Node, number: int) -> None:
        self.client = client
        self.node = node
        self.number = number
        self.session = number.to_bytes(16, "big")
        self.at_s: list[float] = []
        self.control: FrameStream | None = None
        self.busy: Busy | None = None

    async def talk(self, rows: int = 1, lane: Lane = DECODE_LANE, **opening: Any) -> None:
        """Go on until the KV is full, then from the start; or note that the server is busy."""
        control, reply = await self.client.open(self.node, session=self.session, kv_tokens=600, **opening)
        if isinstance(reply, Busy):
            self.busy = reply
            return
        assert isinstance(reply, Accept), reply
        self.control = control
        link = await self.client.link(self.node, session=self.session, lane=lane)
        for epoch in count():
            for seq in range(600 // rows):
                await link.send(step(epoch=epoch, seq=seq, keep=rows * seq, rows=rows), pack_ids([7] * rows))
                reply = await heard(control)
                assert isinstance(reply, Result), reply
                self.at_s.append(asyncio.get_running_loop().time())

    async def hang_up(self) -> None:
        if self.control is not None:
            await self.control.send(Close())

    def rate(self, from_s: float, to_s: float) -> float:
        return sum(from_s < at_s <= to_s for at_s in self.at_s) / (to_s - from_s)


async def rates(talkers: Sequence[Talker], seconds: float = 4.0) -> list[float]:
    """Tokens per second of each, once they have settled."""
    return await measured(talkers, [talker.talk() for talker in talkers], seconds)


async def measured(
    talkers: Sequence[Talker], talks: Sequence[Coroutine[Any, Any, None]], seconds: float
) -> list[float]:
    tasks = [asyncio.create_task(talk) for talk in talks]
    now_s = asyncio.get_running_loop().time()
    await asyncio.sleep(1.0 + seconds)
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, asyncio.CancelledError), ended
    for talker in talkers:
        await talker.hang_up()
    await asyncio.sleep(2.0)  # the forward they are in ends
    return [talker.rate(now_s + 1.0, now_s + 1.0 + seconds) for talker in talkers]


# -- sharing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network_s", "kept"), [(0.0, 0.25), (0.2, 0.625)])
async def test_one_session_against_fifty_of_another_client(swarm: Swarm, network_s: float, kept: float) -> None:
    """While both are there no forward is longer than twice a lone step; the one waits for one and is in the next.

    ``kept`` of its rate alone: a quarter if it is away for no time at all, more the longer it is (here four steps).
    """
    node = await slow_node(swarm, replace(OPEN, beyond_knee=True))
    many, one = FakeClient(swarm), FakeClient(swarm)
    for client in (many, one):
        swarm.network.shape(client.peer, node.peer, LinkShape(delay_s=network_s / 2))
    beside, *crowd = await rates([Talker(one, node, 0), *(Talker(many, node, number) for number in range(1, 51))])
    rows = shared_rows(SPEED.step_s, 512)
    forward_s = LONE_S + (rows - 1) * ROW_S
    assert forward_s <= STRETCH * LONE_S
    alone = 1 / (network_s + LONE_S)
    assert beside == pytest.approx(kept * alone, rel=0.1)
    assert beside >= max(crowd)
    assert sum(crowd) >= 0.9 * (rows - 1) / forward_s, "and the rest is not wasted"
    assert max(crowd) <= 1.4 * min(crowd), "shared evenly between them"
    for client in (many, one):
        await client.close()


async def test_unmeasured_servers_share_too(swarm: Swarm) -> None:
    node = await slow_node(swarm, told=False)
    many, one = FakeClient(swarm), FakeClient(swarm)
    beside, *_ = await rates([Talker(one, node, 0), *(Talker(many, node, number) for number in range(1, 51))], 2.0)
    assert beside >= 0.9 / (2 * (LONE_S + UNMEASURED_ROWS * ROW_S))
    for client in (many, one):
        await client.close()


async def test_batch_work_leaves_interactive_work_its_eight_ninths(swarm: Swarm) -> None:
    """Of one client, where more sessions want the engine than a forward holds."""
    node = await slow_node(swarm, replace(OPEN, beyond_knee=True, batch_tokens=9))
    client = FakeClient(swarm)
    talkers = [Talker(client, node, number) for number in range(40)]
    tasks = [talker.talk(priority="batch" if talker.number % 2 else "interactive") for talker in talkers]
    got = await measured(talkers, tasks, 3.0)
    urgent, patient = sum(got[::2]), sum(got[1::2])
    assert urgent / patient == pytest.approx(8.0, rel=0.15)
    await client.close()


async def test_a_long_prompt_does_not_hold_up_anothers_answer(swarm: Swarm) -> None:
    """Chunks of 128 rows, each as long as thirteen steps, from four sessions: half of the engine is the reader's."""
    node = await slow_node(swarm, replace(OPEN, beyond_knee=True))
    reader, asker = FakeClient(swarm), FakeClient(swarm)
    reading = Talker(reader, node, 0)
    askers = [Talker(asker, node, number) for number in range(1, 5)]
    tasks = [reading.talk(), *(each.talk(rows=128, lane=PREFILL_LANE) for each in askers)]
    read, *asked = await measured([reading, *askers], tasks, 10.0)
    assert read == pytest.approx(0.5 / LONE_S, rel=0.15)
    assert sum(asked) == pytest.approx(0.5 / (128 * ROW_S), rel=0.3)
    await reader.close()
    await asker.close()


# -- turning away -------------------------------------------------------------------------------------------------


async def admitted(swarm: Swarm, node: Node, most: int) -> tuple[list[Talker], list[asyncio.Task[None]], Busy | None]:
    """Sessions that come one by one, each of a client of its own, until one is turned away; they go on talking."""
    talkers: list[Talker] = []
    tasks: list[asyncio.Task[None]] = []
    for _ in range(most):
        talker = Talker(FakeClient(swarm), node, 0)
        swarm.network.shape(talker.client.peer, node.peer, LinkShape(delay_s=NETWORK_S / 2))
        task = asyncio.create_task(talker.talk())
        await asyncio.sleep(4 * NETWORK_S)
        if talker.busy is not None:
            await talker.client.close()
            return talkers, tasks, talker.busy
        talkers.append(talker)
        tasks.append(task)
    return talkers, tasks, None


async def stop(talkers: Sequence[Talker], tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for talker in talkers:
        await talker.hang_up()
    await asyncio.sleep(2.0)
    for talker in talkers:
        await talker.client.close()


async def test_sessions_are_taken_to_the_knee_and_a_quarter_beyond(swarm: Swarm) -> None:
    """Then BUSY, at once; and those inside keep 80 % of what they have at the knee."""
    node = await slow_node(swarm, replace(OPEN, batch_tokens=8))
    knee = round((NETWORK_S + LONE_S) * 8 / (LONE_S + 7 * ROW_S))
    talkers, tasks, busy = await admitted(swarm, node, 3 * knee)
    assert busy is not None
    assert f"{len(talkers)} sessions keep this server busy" in busy.reason
    assert knee < len(talkers) <= MARGIN * knee
    beyond = await pace(talkers)
    await stop(talkers[knee:], tasks[knee:])
    assert beyond >= 0.8 * await pace(talkers[:knee])
    await stop(talkers[:knee], tasks[:knee])


async def pace(talkers: Sequence[Talker]) -> float:
    """Tokens per second of each in the mean, over the next seconds."""
    now_s = asyncio.get_running_loop().time()
    await asyncio.sleep(4.0)
    return sum(talker.rate(now_s, now_s + 4.0) for talker in talkers) / len(talkers)


async def test_silent_sessions_take_no_place(swarm: Swarm) -> None:
    """A server that is full of people who read, or are gone, computes for others."""
    node = await slow_node(swarm)
    client = FakeClient(swarm)
    replies = [(await client.open(node, session=number.to_bytes(16, "big")))[1] for number in range(8)]
    accepted = [isinstance(reply, Accept) for reply in replies]
    assert FEWEST <= sum(accepted) < 8, "new ones may begin at any moment"
    assert accepted == sorted(accepted, reverse=True)
    await asyncio.sleep(NEW_S)
    _, reply = await client.open(node, session=b"one more".ljust(16))
    assert isinstance(reply, Accept)
    await client.close()


async def test_the_time_to_wait_is_that_of_a_place(swarm: Swarm) -> None:
    """Sessions of four seconds, two at a time: one place every two seconds, and each who asks gets the next."""
    node = await slow_node(swarm, replace(OPEN, max_sessions=2))
    client = FakeClient(swarm)
    talkers = [Talker(client, node, number) for number in range(2)]
    await measured(talkers, [talker.talk() for talker in talkers], 3.0)
    for number in (2, 3):
        await client.session(node, session=number.to_bytes(16, "big"))
    waits_s = []
    for number in range(4, 24):
        _, reply = await client.open(node, session=number.to_bytes(16, "big"))
        assert isinstance(reply, Busy)
        assert "all 2 sessions are taken" in reply.reason
        waits_s.append(reply.retry_after_s)
    assert waits_s[:4] == pytest.approx([2.0, 4.0, 6.0, 8.0], rel=0.05)
    assert max(waits_s) <= MOST_WAIT_S
    await client.close()


async def test_beside_others_nobody_holds_most_of_the_kv(swarm: Swarm) -> None:
    node = await slow_node(swarm, replace(OPEN, beyond_knee=True))
    hog, other = FakeClient(swarm), FakeClient(swarm)
    for number in range(3):
        _, reply = await hog.open(node, session=number.to_bytes(16, "big"), kv_tokens=600)
        assert isinstance(reply, Accept)
    node.server.parts.announcer.amend(kv_tokens=3000)
    _, reply = await hog.open(node, session=b"alone it may have".ljust(16)[:16], kv_tokens=600)
    assert isinstance(reply, Accept)
    await other.session(node)
    _, reply = await hog.open(node, session=b"beside another".ljust(16), kv_tokens=600)
    assert isinstance(reply, Busy)
    assert "50% of 3000 KV tokens" in reply.reason
    _, reply = await other.open(node, session=b"of that other".ljust(16), kv_tokens=600)
    assert isinstance(reply, Accept)
    await hog.close()
    await other.close()


async def test_opens_have_a_rate(swarm: Swarm) -> None:
    """Whatever is in them; and nobody else's OPENs are slowed."""
    node = await slow_node(swarm, ServerConfig(opens_per_s_per_client=2.0, open_burst_per_client=3))
    hasty, calm = FakeClient(swarm), FakeClient(swarm)
    replies = [(await hasty.open(node, model="another"))[1] for _ in range(5)]
    assert [type(reply) for reply in replies] == [Refused] * 3 + [Busy] * 2
    assert 0 < replies[-1].retry_after_s <= 0.5
    await calm.session(node)
    await asyncio.sleep(replies[-1].retry_after_s)
    _, reply = await hasty.open(node)
    assert isinstance(reply, Accept)
    await hasty.close()
    await calm.close()


async def test_streams_without_open_are_few(swarm: Swarm) -> None:
    node = await slow_node(swarm, ServerConfig(max_unopened_per_client=3))
    client = FakeClient(swarm)
    waiting = [await client.control(node) for _ in range(3)]
    await swarm.quiet()
    assert await refused(await client.control(node))
    await waiting[0].send(client.opening(node))
    assert isinstance((await waiting[0].receive()).message, Accept)
    _, reply = await client.open(node, session=b"there is room".ljust(16))
    assert isinstance(reply, Accept)
    await client.close()


async def test_a_server_with_much_work_waiting_takes_no_more(swarm: Swarm) -> None:
    """A prompt of 600 rows at 200 rows a second: three seconds of work."""
    node = await slow_node(swarm, replace(OPEN, max_backlog_s=2.0))
    client = FakeClient(swarm)
    control, _ = await client.open(node, kv_tokens=640)
    link = await client.link(node, lane=PREFILL_LANE)
    for seq in range(5):
        await link.send(step(seq=seq, keep=128 * seq, rows=128, horizon=640), pack_ids([7] * 128))
    await asyncio.sleep(0.1)
    _, reply = await client.open(node, session=b"later".ljust(16))
    assert isinstance(reply, Busy)
    assert "s of work wait already" in reply.reason
    assert 2.0 < reply.retry_after_s <= 3.0
    await asyncio.sleep(2.0)
    _, reply = await client.open(node, session=b"later".ljust(16))
    assert isinstance(reply, Accept)
    await control.send(Close())
    await asyncio.sleep(2.0)
    await client.close()


async def test_a_step_does_not_wait_for_ever(swarm: Swarm) -> None:
    """Its session ends with the reason, and those whose turn came are not hurt."""
    node = await slow_node(swarm, replace(OPEN, queue_deadline_s=0.5, batch_tokens=1, beyond_knee=True))
    client = FakeClient(swarm)
    controls = []
    for number in range(14):
        name = number.to_bytes(16, "big")
        control, _ = await client.open(node, session=name)
        link = await client.link(node, session=name)
        await link.send(step(), pack_ids([7]))
        controls.append(control)
    words = [await last_word(control) for control in controls]
    kinds = [type(word) for word in words]
    assert kinds == [Result] * 11 + [Failed] * 3
    assert "a step waited 0.5 s for its turn" in words[-1].reason
    await client.close()


async def last_word(control: FrameStream) -> Any:
    """The result of a step, or why there is none."""
    return await heard(control)


async def test_peer_ids_cost_nothing_addresses_do(swarm: Swarm) -> None:
    """Many clients from one address count together; of this machine's own nobody knows whose they are."""
    node = await slow_node(swarm, ServerConfig(max_sessions_per_address=2, beyond_knee=True))

    async def opened(address: str, number: int) -> object:
        client = FakeClient(swarm)
        clients.append(client)
        swarm.network.places[client.peer] = address
        return (await client.open(node, session=number.to_bytes(16, "big")))[1]

    clients: list[FakeClient] = []
    same = [await opened(f"/ip4/203.0.113.7/tcp/{port}", port) for port in (1, 2, 3)]
    assert [type(reply) for reply in same] == [Accept, Accept, Busy]
    assert isinstance(same[-1], Busy)
    assert "one address may hold 2 sessions" in same[-1].reason
    for number, address in enumerate(["/ip4/203.0.113.8/tcp/1", *["/ip4/127.0.0.1/tcp/1"] * 3, *[""] * 3]):
        assert isinstance(await opened(address, number), Accept)
    for client in clients:
        await client.close()


# -- giving up ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves the stream", "is cancelled", "is killed"])
async def test_whoever_gives_up_frees_its_room_everywhere(swarm: Swarm, how: str) -> None:
    """Within three seconds, however slow the way."""
    nodes = await swarm.serve()
    model = swarm.client()
    swarm.delay(0.2)
    stream = await model.stream("x", max_new_tokens=500, ignore_eos=True)
    await stream.next_piece()
    assert not any(node.idle for node in nodes)
    if how == "leaves the stream":
        await stream.aclose()
    elif how == "is killed":
        await swarm.network.kill(model.parts.transport.peer_id)
    else:
        stream._task.cancel()
    await asyncio.sleep(3.0)
    assert all(node.idle for node in nodes)
    await stream.aclose()
