"""Clients that send bytes, no-ops or beats that nobody can use: the server stays up and keeps nothing of theirs."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest
from fakes import (
    IDS,
    FakeClient,
    ended,
    step,
)
from harness import Node, Swarm

from swarm.core.errors import PeerLostError
from swarm.core.limits import MAX_FRAME_BYTES
from swarm.server.sessions.serving import PACE_S
from swarm.transport.framing import FrameStream
from swarm.transport.pulse import ECHO_IDLE_S, PULSE_PROTOCOL
from swarm.wire.frames import encode_head
from swarm.wire.messages import (
    Accept,
    Failed,
    Noop,
)
from swarm.wire.session import Channel

MALFORMED = {
    "zeros": bytes(64),
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "absurd body": struct.pack(">IH", 2**32 - 1, 100),
    "one over the limit": struct.pack(">IH", MAX_FRAME_BYTES + 1, 100),
    "absurd header": struct.pack(">IH", 70_000, 65_535),
    "header longer than body": struct.pack(">IH", 10, 100),
    "unknown tag": struct.pack(">IH", 2 + 2, 2) + msgspec.msgpack.encode([99]),
    "nested without end": struct.pack(">IH", 2 + 2000, 2000) + b"\x91" * 2000,
    "a map": struct.pack(">IH", 2 + 1, 1) + b"\x80",
}


@pytest.mark.parametrize("channel", [Channel.CONTROL, Channel.LINK, Channel.FETCH])
@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_instead_of_an_opening(
    swarm: Swarm, node: Node, client: FakeClient, channel: Channel, name: str
) -> None:
    stream = await client.raw(node, channel)
    await stream.write(MALFORMED[name])
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    await swarm.check_free()
    await swarm.answers()


@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_on_an_open_link_ends_that_session_alone(
    swarm: Swarm, node: Node, client: FakeClient, name: str
) -> None:
    other = swarm.client().session()
    await other.generate("bystander", max_new_tokens=2, ignore_eos=True)
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    stream = await client.raw(node, Channel.LINK)
    greeting = client.greeting()
    await stream.write(encode_head(greeting))
    await stream.write(MALFORMED[name])
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "client"
    await swarm.quiet()
    assert len(node.server.table) == 1
    result = await other.generate(" goes on", max_new_tokens=2, ignore_eos=True)
    assert len(result.token_ids) == 2
    await other.close()


@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_on_an_open_control_stream_ends_that_session(
    swarm: Swarm, node: Node, client: FakeClient, name: str
) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    await stream.write(encode_head(client.opening(node)))
    await swarm.quiet()
    assert len(node.server.table) == 1
    await stream.write(MALFORMED[name])
    await swarm.check_free()
    await swarm.answers()


async def test_a_control_stream_that_says_nothing_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(node.server.config.open_timeout_s)


async def test_half_an_open_is_waited_for_and_no_longer(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    data = encode_head(client.opening(node))
    await stream.write(data[:-10])
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    await swarm.check_free()


async def test_a_second_open_on_one_stream(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    await stream.write(encode_head(client.opening(node)) * 2)
    await swarm.check_free()
    await swarm.answers()


async def test_a_frame_larger_than_any_step_of_the_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """64 reserved tokens take a few KiB a step: the announced megabytes are refused before they come."""
    control, _ = await client.open(node)
    stream = await client.raw(node, Channel.LINK)
    await stream.write(encode_head(client.greeting()))
    await stream.write(encode_head(step(), 1024 * 1024))
    last = await ended(control)
    assert isinstance(last, Failed)
    assert "frame of" in last.reason


async def test_no_ops_are_read_slowly_and_do_not_keep_a_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    began_s = swarm.clock.monotonic_s()
    for _ in range(200):
        await link.send(Noop())
        await control.send(Noop())
    assert (await client.ask(control, link, IDS)).kv_length == 3
    assert swarm.clock.monotonic_s() - began_s >= 200 * PACE_S
    began_s = swarm.clock.monotonic_s()
    noops = asyncio.create_task(every_second(link))
    last = await ended(control)
    noops.cancel()
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    assert swarm.clock.monotonic_s() - began_s < node.server.config.idle_timeout_s + 5.0


async def test_a_pulse_without_a_beat_is_given_up(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Streams cost a stranger nothing; thousands of silent ones would leave no room for anybody else's."""
    stream = await client.transport.dial(node.peer, PULSE_PROTOCOL)
    await stream.write(b"beat")
    assert await stream.read_exactly(4) == b"beat"
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(PeerLostError):
        await stream.read_exactly(4)
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(ECHO_IDLE_S, abs=1.0)


async def every_second(link: FrameStream) -> None:
    while True:
        await link.send(Noop())
        await asyncio.sleep(1.0)
