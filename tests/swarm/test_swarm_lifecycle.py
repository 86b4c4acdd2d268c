"""Servers that start, work, fail, drain and leave; sessions that idle or end while something runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fakes import FakeClient, heard, step
from harness import Node, Swarm, until

from swarm.core.errors import GenerationInterruptedError, NoRouteError, PeerLostError
from swarm.server.config import ServerConfig
from swarm.wire.messages import Busy, Close
from swarm.wire.payload import pack_ids

OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 500, "ignore_eos": True}
IDS = [10, 20, 30]


class Brake:
    """Holds a server's compute thread inside a forward until released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.released.wait(30.0)


@pytest.fixture
def brake() -> Iterator[Brake]:
    built = Brake()
    yield built
    built.released.set()


async def held_up(swarm: Swarm, brake: Brake, config: ServerConfig | None = None) -> tuple[Node, FakeClient, Any]:
    """A server whose engine stands still inside a session's forward, its client, and the control stream."""
    [node] = await swarm.serve("0:5", config=config)
    client = FakeClient(swarm)
    control, link = await client.session(node)
    node.engine.before = brake  # type: ignore[attr-defined]
    await link.send(step(rows=3), pack_ids(IDS))
    await until(brake.entered.is_set)
    return node, client, control


# -- a session that ends while its forward runs ----------------------------------------------------------------


async def test_kv_is_freed_only_after_the_forward_that_uses_it(swarm: Swarm, brake: Brake) -> None:
    node, client, control = await held_up(swarm, brake)
    await control.send(Close())
    await until(lambda: len(node.server.table) == 0)
    assert node.engine.free_tokens == 4096 - 64, "the forward still writes there"
    brake.released.set()
    await swarm.check_free()
    assert node.engine.free_tokens == 4096, "and exactly once"
    await client.close()


async def test_a_server_may_leave_while_a_forward_runs(swarm: Swarm, brake: Brake) -> None:
    node, client, _ = await held_up(swarm, brake)
    timer = threading.Timer(0.05, brake.released.set)  # the loop is blocked while it waits for the thread
    timer.start()
    await node.server.leave()
    timer.join()
    assert node.engine.free_tokens == 4096
    await client.close()


async def test_other_sessions_go_on_while_one_is_closed(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    streams = [await model.stream(f"prompt {n}", **ENDLESS) for n in range(4)]
    for stream in streams:
        await stream.next_piece()
    for stream in streams[:3]:
        await stream.aclose()
    collected = [await streams[3].next_piece() for _ in range(20)]
    assert all(collected)
    await streams[3].aclose()
    await swarm.check_free()


# -- an engine that fails ---------------------------------------------------------------------------------------


async def test_a_failing_engine_is_told_and_hurts_nobody_else(swarm: Swarm) -> None:
    first, _ = await swarm.serve("0:3", "3:5")
    model = swarm.client()
    stream = await model.stream("x", **ENDLESS)
    await stream.next_piece()
    engine: Any = first.engine

    def explode() -> None:
        raise RuntimeError("CUDA out of memory, or so")

    engine.before = explode
    with pytest.raises(GenerationInterruptedError, match="out of memory") as caught:
        [piece async for piece in stream]
    assert first.short in str(caught.value)
    engine.before = None
    await swarm.check_free()
    await swarm.answers()
    assert not first.server.fatal.done()


async def test_rows_that_the_wire_cannot_carry_are_told(swarm: Swarm) -> None:
    """A server whose weights give NaN: int8 has no form for it, so the step cannot be sent on, and must not be lost."""
    first, _ = await swarm.serve("0:3", "3:5")
    engine: Any = first.engine

    def poison(outputs: list[Any]) -> None:
        for output in outputs:
            output.hidden = b"\xff" * len(output.hidden)

    engine.after = poison
    for codec, words in (("int8", "not finite"), ("raw", "finite")):
        with pytest.raises(PeerLostError, match=words) as caught:
            await asyncio.wait_for(swarm.client(codec=codec, heal_timeout_s=1.0).generate("x", **OPTIONS), 10.0)
        if codec == "int8":
            assert first.short in str(caught.value)
    engine.after = None
    await swarm.check_free()
    await swarm.answers()


async def test_a_batch_that_fails_together_but_not_alone(swarm: Swarm) -> None:
    """The first packed forward fails for whatever reason: each session is run by itself before anyone is blamed."""
    [node] = await swarm.serve("0:5")
    engine: Any = node.engine
    failures = iter([True])

    def explode_once() -> None:
        if len(node.server.batcher._ready) == 0 and next(failures, False):
            raise RuntimeError("once")

    clients = [FakeClient(swarm) for _ in range(3)]
    sessions = [await client.session(node) for client in clients]
    for _, link in sessions:
        await link.send(step(rows=3), pack_ids(IDS))
    engine.before = explode_once
    replies = [(await control.receive()).message for control, _ in sessions]
    assert {reply.tokens for reply in replies} == {tuple(swarm.reference.greedy(IDS, 1, eos_token_id=None))}
    for client in clients:
        await client.close()


# -- idleness -----------------------------------------------------------------------------------------------------


async def test_an_idle_session_is_closed_everywhere_and_opens_again_by_itself(swarm: Swarm) -> None:
    nodes = await swarm.serve()
    session = swarm.client().session()
    first = await session.generate("before lunch", **OPTIONS)
    await asyncio.sleep(290.0)
    assert all(len(node.server.table) == 1 for node in nodes)
    await asyncio.sleep(15.0)
    await swarm.check_free()
    second = await session.generate(" and after", **OPTIONS)
    ids = [*swarm.reference.tokenizer.encode("before lunch"), *first.token_ids]
    ids += swarm.reference.tokenizer.encode(" and after")
    assert list(second.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    await session.close()


async def test_a_long_forward_is_not_idleness(swarm: Swarm, brake: Brake) -> None:
    _, client, control = await held_up(swarm, brake, ServerConfig(idle_timeout_s=5.0))
    loop: Any = asyncio.get_running_loop()
    loop.now_s += 60.0  # the thread stands still, so virtual time does; an hour-long forward would not
    await until(lambda: True)
    brake.released.set()
    assert (await heard(control)).kv_length == 3
    await client.close()


async def test_use_keeps_a_session_alive(swarm: Swarm) -> None:
    await swarm.serve()
    session = swarm.client().session()
    for _ in range(4):
        await session.generate("x", max_new_tokens=1, ignore_eos=True)
        await asyncio.sleep(200.0)
    assert all(len(node.server.table) == 1 for node in swarm.nodes)
    await session.close()


# -- leaving --------------------------------------------------------------------------------------------------------


async def test_a_draining_server_refuses_and_lets_the_running_session_finish(swarm: Swarm) -> None:
    first, second = await swarm.serve("0:3", "3:5")
    model = swarm.client()
    swarm.delay(0.02)
    stream = await model.stream("x", max_new_tokens=30, ignore_eos=True)
    await stream.next_piece()
    stopping = asyncio.create_task(second.server.stop())
    await swarm.quiet()
    client = FakeClient(swarm)
    _, reply = await client.open(second)
    assert isinstance(reply, Busy)
    assert "leaving" in reply.reason
    assert len(second.server.table) == 1
    with pytest.raises(NoRouteError, match="draining"):
        await swarm.client(busy_timeout_s=0.0).generate("y", **OPTIONS)
    pieces = [piece async for piece in stream]
    assert pieces
    assert list(stream.result.token_ids) == swarm.reference.greedy("x", 30, eos_token_id=None)
    await stopping
    with pytest.raises(NoRouteError, match="layers 3 to 4"):
        await swarm.client().generate("y", **OPTIONS)
    assert first.idle
    await client.close()


async def test_draining_has_an_end(swarm: Swarm) -> None:
    config = ServerConfig(drain_timeout_s=30.0)
    [node] = await swarm.serve("0:5", config=config)
    session = swarm.client().session()
    await session.generate("kept open, unused", **OPTIONS)
    began_s = swarm.clock.monotonic_s()
    await node.server.stop()
    assert 30.0 <= swarm.clock.monotonic_s() - began_s < 32.0
    await swarm.check_free()
    await session.close()


async def test_a_server_that_leaves_says_why(swarm: Swarm) -> None:
    _, second, _ = await swarm.serve()
    stream = await swarm.client().stream("x", **ENDLESS)
    await stream.next_piece()
    await second.server.leave()
    with pytest.raises(GenerationInterruptedError, match="stopped by its owner") as caught:
        [piece async for piece in stream]
    assert second.short in str(caught.value)
    cause = caught.value.__cause__
    assert isinstance(cause, PeerLostError)
    assert cause.peer == second.peer
    await swarm.check_free()


async def test_a_server_leaves_in_time_though_a_client_reads_nothing(swarm: Swarm) -> None:
    swarm.small_buffers(100)
    [node] = await swarm.serve("0:5")
    client = FakeClient(swarm)
    _, link = await client.session(node)
    for seq in range(8):
        await link.send(step(seq=seq, keep=seq), pack_ids([7]))
    await swarm.quiet()
    began_s = swarm.clock.monotonic_s()
    await node.server.leave()
    assert swarm.clock.monotonic_s() - began_s < 5.0
    assert node.idle
    await client.close()


async def test_a_server_that_comes_back_is_used_again(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5")
    model = swarm.client()
    await model.generate("x", **OPTIONS)
    await node.server.leave()
    await node.transport.close()
    with pytest.raises(NoRouteError):
        await model.generate("x", **OPTIONS)
    await swarm.serve("0:5")
    assert (await model.generate("x", **OPTIONS)).token_ids


async def test_servers_stay_listed_for_hours(swarm: Swarm) -> None:
    await swarm.serve()
    await asyncio.sleep(1800.0)
    await swarm.answers()
