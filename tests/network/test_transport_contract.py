"""What every transport promises, asked of the in-memory twin and of real libp2p daemons with the same functions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from swarm.core.errors import MisuseError, PeerLostError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import SystemClock
from swarm.transport.capped import CappedTransport, UplinkCap
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.memory import MemoryNetwork
from swarm.transport.protocol import Stream, Transport

Make = Callable[[], Awaitable[Transport]]

PATIENCE_S = 20.0


@pytest.fixture(params=["memory", "capped", "libp2p"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    network = MemoryNetwork(SystemClock())
    made: list[Transport] = []

    async def create() -> Transport:
        if request.param == "memory":
            made.append(network.transport(Identity(os.urandom(32))))
        elif request.param == "capped":
            node = network.transport(Identity(os.urandom(32)))
            made.append(CappedTransport(node, UplinkCap(200.0, SystemClock())))
        else:
            made.append(await Libp2pTransport.create(None))
        return made[-1]

    yield create
    for transport in made:
        await transport.close()
    await network.close()


async def echo(stream: Stream) -> None:
    while True:
        count = int.from_bytes(await stream.read_exactly(4), "big")
        await stream.write(count.to_bytes(4, "big"), await stream.read_exactly(count))


async def ask(stream: Stream, data: bytes) -> bytes:
    await stream.write(len(data).to_bytes(4, "big"), data)
    return await stream.read_exactly(int.from_bytes(await stream.read_exactly(4), "big"))


async def dial(source: Transport, target: Transport, protocol: str = "/test/1") -> Stream:
    return await source.dial(target.peer_id, protocol, addresses=target.addresses)


async def test_parts_arrive_in_order_both_ways(make: Make) -> None:
    server, client = await make(), await make()
    await server.listen("/test/1", echo)
    stream = await dial(client, server)
    for size in (0, 1, 1024, 300_000, 8 << 20):
        data = os.urandom(size)
        assert await ask(stream, data) == data
    await stream.write(b"\0\0", memoryview(b"\0\5"), b"", memoryview(bytearray(b"he")), b"llo")
    assert await stream.read_exactly(9) == b"\0\0\0\5hello"


async def test_both_ends_know_each_other(make: Make) -> None:
    server, client = await make(), await make()
    seen: asyncio.Queue[PeerId] = asyncio.Queue()

    async def handler(stream: Stream) -> None:
        seen.put_nowait(stream.peer)

    await server.listen("/test/1", handler)
    stream = await dial(client, server)
    assert stream.peer == server.peer_id
    assert await seen.get() == client.peer_id


async def test_a_handler_that_returns_closes_its_stream(make: Make) -> None:
    server, client = await make(), await make()

    async def handler(stream: Stream) -> None:
        await stream.write(b"bye")

    await server.listen("/test/1", handler)
    stream = await dial(client, server)
    assert await stream.read_exactly(3) == b"bye"
    with pytest.raises(PeerLostError) as caught:
        await stream.read_exactly(1)
    assert caught.value.peer == server.peer_id


async def test_what_was_written_before_a_close_arrives_and_then_both_directions_fail(make: Make) -> None:
    server, client = await make(), await make()
    streams: asyncio.Queue[Stream] = asyncio.Queue()
    done = asyncio.Event()

    async def handler(stream: Stream) -> None:
        streams.put_nowait(stream)
        await done.wait()

    await server.listen("/test/1", handler)
    near = await dial(client, server)
    far = await streams.get()
    await near.write(b"x" * 100_000)
    await near.close()
    await near.close()
    assert await far.read_exactly(100_000) == b"x" * 100_000
    with pytest.raises(PeerLostError):
        await far.read_exactly(1)
    with pytest.raises(PeerLostError):
        await far.write(b"anybody?")
    with pytest.raises(PeerLostError, match="closed here"):
        await near.write(b"more")
    with pytest.raises(PeerLostError, match="closed here"):
        await near.read_exactly(1)
    done.set()


async def test_closing_wakes_a_reader_at_the_same_end(make: Make) -> None:
    server, client = await make(), await make()
    await server.listen("/test/1", echo)
    stream = await dial(client, server)
    reading = asyncio.create_task(stream.read_exactly(1))
    await asyncio.sleep(0)
    await stream.close()
    with pytest.raises(PeerLostError, match="closed here"):
        await reading


async def test_a_cancelled_read_takes_nothing(make: Make) -> None:
    server, client = await make(), await make()
    await server.listen("/test/1", echo)
    stream = await dial(client, server)
    assert await ask(stream, b"warm") == b"warm"
    await stream.write(b"\0\0\0\4", b"ab")
    reading = asyncio.create_task(stream.read_exactly(8))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.write(b"cd")
    assert await stream.read_exactly(8) == b"\0\0\0\4abcd"


async def test_a_reader_that_does_not_read_stops_the_writer(make: Make) -> None:
    server, client = await make(), await make()
    go_on, sent, limit = asyncio.Event(), 0, 64 << 20
    received: asyncio.Queue[int] = asyncio.Queue()

    async def handler(stream: Stream) -> None:
        await go_on.wait()
        while True:
            received.put_nowait(len(await stream.read_exactly(65536)))

    async def pour(stream: Stream) -> None:
        nonlocal sent
        while sent < limit:
            sent += 65536
            async with asyncio.timeout(0.3):
                await stream.write(b"\0" * 65536)

    await server.listen("/test/1", handler)
    stream = await dial(client, server)
    with pytest.raises(TimeoutError):
        await pour(stream)
    assert sent < limit
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await stream.write(b"\0" * 65536)
        assert sum([await received.get() for _ in range(sent // 65536 + 1)]) == sent + 65536


async def test_64_streams_at_once(make: Make) -> None:
    server, client = await make(), await make()
    await server.listen("/test/1", echo)

    async def talk(number: int) -> None:
        stream = await dial(client, server)
        for turn in range(5):
            data = bytes([number]) * (1000 * turn + number)
            assert await ask(stream, data) == data
        await stream.close()

    await asyncio.gather(*(talk(number) for number in range(64)))


async def test_a_failing_handler_loses_its_own_stream_only(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    server, client = await make(), await make()

    async def fail(stream: Stream) -> None:
        raise ValueError("a bug of ours")

    await server.listen("/test/1", echo)
    await server.listen("/fail/1", fail)
    good = await dial(client, server)
    for _ in range(3):
        bad = await dial(client, server, "/fail/1")
        with pytest.raises(PeerLostError):
            await bad.read_exactly(1)
        await bad.close()
    assert await ask(good, b"still here") == b"still here"
    assert "a bug of ours" in caplog.text


async def test_dials_that_cannot_work_say_why(make: Make) -> None:
    server, client = await make(), await make()
    await server.listen("/test/1", echo)
    stranger = Identity(os.urandom(32)).peer_id
    with pytest.raises(PeerUnreachableError, match="itself"):
        await client.dial(client.peer_id, "/test/1", addresses=client.addresses)
    with pytest.raises(PeerUnreachableError, match=stranger):
        await client.dial(stranger, "/test/1", addresses=server.addresses)
    with pytest.raises(PeerUnreachableError, match=stranger):
        await client.dial(stranger, "/test/1")
    with pytest.raises(PeerUnreachableError, match=r"not supported.*/other/1"):
        await dial(client, server, "/other/1")
    with pytest.raises(PeerUnreachableError):
        await (await make()).dial(server.peer_id, "/test/1", addresses=["/ip4/127.0.0.1/tcp/1"])


async def test_a_protocol_has_one_handler(make: Make) -> None:
    server = await make()
    await server.listen("/test/1", echo)
    with pytest.raises(MisuseError, match="/test/1"):
        await server.listen("/test/1", echo)


async def test_closing_a_transport_ends_its_handlers_and_its_peers_streams(make: Make) -> None:
    server, client = await make(), await make()
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(stream: Stream) -> None:
        started.set()
        try:
            await stream.read_exactly(1)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await server.listen("/test/1", handler)
    stream = await dial(client, server)
    await started.wait()
    await server.close()
    await server.close()
    assert cancelled.is_set()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerLostError):
            await stream.read_exactly(1)
        with pytest.raises(PeerUnreachableError):
            await dial(client, server)
    await client.close()
    with pytest.raises(PeerUnreachableError, match="closed"):
        await dial(client, server)
