"""Frames over a stream: two ends talk over an in-test pipe of bytes."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from swarm.core.errors import MisuseError, PeerLostError, PeerUnreachableError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.transport.framing import FrameStream
from swarm.wire.frames import encode_head
from swarm.wire.messages import Accept, Busy, Close, Hello, Noop, Open, Result, Step, Upstream
from swarm.wire.session import Channel, Phase, Role

OPEN = Open(
    1, "m@r#0123456789abcdef", b"s" * 16, 0, 0, 1, True, True, 1, "", "raw", Upstream("up", b"i" * 16), None,
    b"n" * 16, b"c" * 32,
)  # fmt: skip
HELLO = Hello("client", b"s" * 16, 0, b"x" * 16, 0)
STEP = Step(0, 0, 0, 0, 1, 1)


class Pipe:
    """One end of a byte stream; what is written lies in the other end's reader at once."""

    def __init__(self, peer: str) -> None:
        self.peer = PeerId(peer)
        self.reader = asyncio.StreamReader(limit=2**20)
        self.other: Pipe
        self.largest_read = 0
        self.writes = 0

    async def read_exactly(self, count: int) -> bytes:
        self.largest_read = max(self.largest_read, count)
        try:
            return await self.reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise PeerLostError("stream ended", peer=self.peer) from error

    async def write(self, *parts: bytes | memoryview) -> None:
        if self.other.reader.at_eof():
            raise PeerLostError("stream ended", peer=self.peer)
        self.writes += 1
        for part in parts:
            await asyncio.sleep(0)  # another sender may try to get in between
            self.other.reader.feed_data(bytes(part))

    async def close(self) -> None:
        self.reader.feed_eof()
        self.other.reader.feed_eof()


def pipe() -> tuple[Pipe, Pipe]:
    dialer, listener = Pipe("listener-peer"), Pipe("dialer-peer")
    dialer.other, listener.other = listener, dialer
    return dialer, listener


def ends(channel: Channel = Channel.CONTROL) -> tuple[FrameStream, FrameStream]:
    dialer, listener = pipe()
    return FrameStream(dialer, channel, Role.DIALER), FrameStream(listener, channel, Role.LISTENER)


async def opened() -> tuple[FrameStream, FrameStream]:
    client, server = ends()
    await client.send(OPEN)
    await server.receive()
    await server.send(Accept(0, 0, 0))
    await client.receive()
    return client, server


def raw(channel: Channel, data: bytes, **options: int) -> tuple[FrameStream, Pipe]:
    """A listener, and what a hostile dialer has written to it."""
    _, listener = pipe()
    listener.reader.feed_data(data)
    return FrameStream(listener, channel, Role.LISTENER, **options), listener


async def test_a_session_from_open_to_close() -> None:
    client, server = ends()
    assert (client.peer, server.peer) == ("listener-peer", "dialer-peer")
    await client.send(OPEN)
    frame = await server.receive()
    assert frame.message == OPEN
    assert frame.payload == b""
    await server.send(Accept(1, 2, 3))
    assert (await client.receive_within(5, "answer to OPEN")).message == Accept(1, 2, 3)
    await server.send(Result(0, 0, 0, 1, rows=1), b"abc", memoryview(b"def"))
    assert (await client.receive()).payload == b"abcdef"
    await client.send(Close())
    assert (await server.receive()).message == Close()
    assert client.phase is server.phase is Phase.CLOSED


async def test_payload_views_of_any_shape_are_counted_in_bytes() -> None:
    client, server = await opened()
    values = np.arange(12, dtype="<f4").reshape(3, 4)
    empty = np.zeros((0, 4), "<f4")
    await server.send(Result(0, 0, 0, 3, rows=3), empty.data, values.data, b"")
    assert (await client.receive()).payload == values.tobytes()


async def test_frames_of_several_senders_do_not_mix() -> None:
    dialer, listener = ends(Channel.LINK)
    await dialer.send(HELLO)
    await listener.receive()
    payloads = [bytes([number]) * 1000 for number in range(20)]
    await asyncio.gather(*(dialer.send(STEP, one[:500], one[500:]) for one in payloads))
    assert sorted([(await listener.receive()).payload for _ in payloads]) == payloads


async def test_a_forbidden_send_is_ours_and_writes_nothing() -> None:
    dialer, listener = pipe()
    client = FrameStream(dialer, Channel.CONTROL, Role.DIALER)
    for message in (Noop(), Close(), STEP, Accept(0, 0, 0)):
        with pytest.raises(MisuseError, match="cannot send"):
            await client.send(message)
    with pytest.raises(MisuseError, match="no payload"):
        await client.send(OPEN, b"payload")
    assert dialer.writes == 0
    await client.send(OPEN)
    assert dialer.writes == 1
    assert listener.writes == 0


async def test_sending_after_the_peer_closed_is_nobodys_misuse() -> None:
    """The server's result and the client's CLOSE cross: the server lost its peer, it did nothing wrong."""
    client, server = await opened()
    await client.send(Close())
    await server.receive()
    with pytest.raises(PeerLostError, match="has closed") as caught:
        await server.send(Result(0, 0, 0, 1))
    assert caught.value.peer == server.peer
    with pytest.raises(MisuseError, match="closed"):
        await client.send(Noop())


async def test_what_crosses_the_close_is_dropped_and_the_stream_stays_in_step() -> None:
    client, server = await opened()
    await client.send(Close())
    await server.send(Result(0, 0, 0, 1, rows=1), b"x" * 200_000)
    await server.send(Noop())
    await server.close()
    with pytest.raises(PeerLostError):
        await client.receive()


async def test_dropped_payloads_are_read_in_small_pieces() -> None:
    client, server = await opened()
    await client.send(Close())
    for _ in range(2):
        await server.send(Result(0, 0, 0, 1, rows=1), b"x" * 200_000)
    await server.close()
    with pytest.raises(PeerLostError):
        await client.receive()
    assert isinstance(client._stream, Pipe)
    assert client._stream.largest_read <= 64 * 1024


async def test_dropping_goes_on_where_a_cancelled_receive_left_it() -> None:
    dialer, listener = pipe()
    client, server = (
        FrameStream(dialer, Channel.CONTROL, Role.DIALER),
        FrameStream(listener, Channel.CONTROL, Role.LISTENER),
    )
    await client.send(OPEN)
    await client.send(Close())
    await server.receive()
    head = encode_head(Busy(1.0, "")) + encode_head(Result(0, 0, 0, 1), 100_000)
    dialer.reader.feed_data(head + b"x" * 70_000)
    waiting = asyncio.ensure_future(client.receive())
    for _ in range(5):
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    dialer.reader.feed_data(b"x" * 30_000 + encode_head(Noop()) + b"\xff" * 6)
    dialer.reader.feed_eof()
    with pytest.raises(ProtocolViolation, match="header of 65535"):  # it sees exactly where the next frame begins
        await client.receive()


@pytest.mark.parametrize("size", [0, 1, 5, 6, 7, 20])
async def test_a_stream_that_ends_early_is_lost(size: int) -> None:
    stream, listener = raw(Channel.CONTROL, encode_head(OPEN)[:size])
    listener.reader.feed_eof()
    with pytest.raises(PeerLostError):
        await stream.receive()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        bytes.fromhex("00000004 0002 91 63"),
        encode_head(Noop()),
        encode_head(STEP),
        encode_head(Accept(0, 0, 0)),
        bytes.fromhex("00001004 0002 91 0b") + b"payload",
    ],
    ids=["garbage", "http", "zeros", "unknown tag", "no-op first", "step first", "answer first", "no-op with payload"],
)
async def test_bad_bytes_are_a_violation_that_names_the_peer(data: bytes) -> None:
    stream, _ = raw(Channel.CONTROL, data)
    with pytest.raises(ProtocolViolation, match=r"^peer ler-peer: ") as caught:
        await stream.receive()
    assert caught.value.peer == "dialer-peer"


async def test_a_payload_the_protocol_does_not_allow_now_is_never_read() -> None:
    """A stranger's STEP of 60 MiB before any HELLO costs us its header, no more."""
    head = encode_head(STEP, 60 * 2**20)
    stream, listener = raw(Channel.LINK, head)
    with pytest.raises(ProtocolViolation, match="Step is not allowed"):
        await stream.receive()
    assert listener.largest_read < len(head)


async def test_a_stream_may_have_a_tighter_limit() -> None:
    data = encode_head(HELLO) + encode_head(STEP, 1000)
    stream, listener = raw(Channel.LINK, data, max_frame_bytes=500)
    assert (await stream.receive()).message == HELLO
    with pytest.raises(ProtocolViolation, match="limit 500"):
        await stream.receive()
    assert listener.largest_read < 500


@pytest.mark.parametrize("cut", [3, 6, 10, 20, 50])
async def test_a_cancelled_receive_goes_on_where_it_was(cut: int) -> None:
    _, listener = pipe()
    stream = FrameStream(listener, Channel.LINK, Role.LISTENER)
    data = encode_head(HELLO) + encode_head(STEP, 40) + b"p" * 40 + encode_head(Noop())
    listener.reader.feed_data(data[: len(encode_head(HELLO)) + cut])
    assert (await stream.receive()).message == HELLO
    for _ in range(2):
        waiting = asyncio.ensure_future(stream.receive())
        for _ in range(5):  # more turns than it takes to read all there is
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    listener.reader.feed_data(data[len(encode_head(HELLO)) + cut :])
    frame = await stream.receive()
    assert (frame.message, frame.payload) == (STEP, b"p" * 40)
    assert (await stream.receive()).message == Noop()


async def test_silence_is_an_unreachable_peer_and_says_what_was_missing() -> None:
    client, server = ends()
    await client.send(OPEN)
    with pytest.raises(PeerUnreachableError, match="sent no answer to OPEN within 0 s"):
        await client.receive_within(0, "answer to OPEN")
    await server.receive()
    await server.send(Busy(1.5, "full"))
    assert (await client.receive_within(5, "answer to OPEN")).message == Busy(1.5, "full")


async def test_closing_is_told_to_the_other_end() -> None:
    client, server = await opened()
    await client.close()
    await client.close()
    with pytest.raises(PeerLostError):
        await server.receive()
    with pytest.raises(PeerLostError):
        await client.send(Noop())


async def test_frames_that_lie_ready_leave_others_their_turn() -> None:
    """Reading what has come never waits by itself, and a flood would stop everything else in the loop."""
    left, right = pipe()
    dialer, listener = FrameStream(left, Channel.LINK, Role.DIALER), FrameStream(right, Channel.LINK, Role.LISTENER)
    await dialer.send(HELLO)
    right.reader.feed_data(encode_head(Noop()) * 1000)
    turns, reading = 0, True

    async def other() -> None:
        nonlocal turns
        while reading:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    for _ in range(1001):
        await listener.receive()
    reading = False
    await task
    assert turns >= 50
