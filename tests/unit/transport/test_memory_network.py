"""What the in-memory network adds to the transport contract: time, shape, failure and lies, all deterministic."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from swarm.core.errors import MisuseError, PeerLostError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.handlers import HandlerTasks
from swarm.transport.memory import LinkShape, MemoryNetwork, MemoryStream, MemoryTransport
from swarm.transport.protocol import Stream

A, B, C = (Identity(bytes([n]) * 32).peer_id for n in (1, 2, 3))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def network(clock: VirtualClock) -> AsyncIterator[MemoryNetwork]:
    network = MemoryNetwork(clock, seed=7)
    yield network
    await network.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def pair(network: MemoryNetwork) -> tuple[MemoryStream, Stream]:
    """A stream from A to B and its far end; the handler at B holds it open."""
    a, b = network.transport(A), network.transport(B)
    ends: asyncio.Queue[Stream] = asyncio.Queue()

    async def hold(stream: Stream) -> None:
        ends.put_nowait(stream)
        await asyncio.Event().wait()

    await b.listen("/t/1", hold)
    near = await network.clock.run(a.dial(B, "/t/1"))  # type: ignore[attr-defined]
    return near, await ends.get()


async def test_bytes_take_the_links_delay_and_a_dial_one_round_trip(
    network: MemoryNetwork, clock: VirtualClock
) -> None:
    network.shape(A, B, LinkShape(delay_s=0.03), LinkShape(delay_s=0.01))
    near, far = await pair(network)
    assert clock.monotonic_s() == pytest.approx(0.04)
    await near.write(b"x")
    assert await clock.run(far.read_exactly(1)) == b"x"
    assert clock.monotonic_s() == pytest.approx(0.07)
    await far.write(b"y")
    assert await clock.run(near.read_exactly(1)) == b"y"
    assert clock.monotonic_s() == pytest.approx(0.08)


async def test_bandwidth_is_shared_by_all_streams_of_a_link(network: MemoryNetwork, clock: VirtualClock) -> None:
    near, far = await pair(network)
    network.shape(A, B, LinkShape(delay_s=1.0, bits_per_s=8000))
    other = await clock.run(network._transports[A].dial(B, "/t/1"))
    start_s = clock.monotonic_s()
    await other.write(b"\0" * 1000)
    await near.write(b"\0" * 500)
    await clock.run(far.read_exactly(500))
    assert clock.monotonic_s() - start_s == pytest.approx(1.0 + 1.5)


async def test_jitter_keeps_the_order_and_depends_on_the_seed_only() -> None:
    async def arrivals(seed: int) -> list[float]:
        clock = VirtualClock()
        network = MemoryNetwork(clock, seed, shape=LinkShape(delay_s=0.1, jitter_s=0.2))
        near, far = await pair(network)
        start_s, times = clock.monotonic_s(), []
        for number in range(10):
            await near.write(bytes([number]))
        for number in range(10):
            assert await clock.run(far.read_exactly(1)) == bytes([number])
            times.append(clock.monotonic_s() - start_s)
        await network.close()
        return times

    first = await arrivals(1)
    assert first == await arrivals(1) != await arrivals(2)
    assert first == sorted(first)
    assert 0.1 <= first[0] < first[-1] <= 0.3


async def test_the_writer_waits_when_its_bytes_are_not_read(clock: VirtualClock) -> None:
    network = MemoryNetwork(clock, buffer_bytes=1000)
    near, far = await pair(network)
    await near.write(b"\0" * 1000)
    writing = asyncio.create_task(near.write(b"\1" * 500))
    await clock.settle()
    assert not writing.done()
    await far.read_exactly(499)
    await clock.settle()
    assert not writing.done()
    await far.read_exactly(1)
    await clock.settle()
    assert writing.done()
    assert await far.read_exactly(1000) == b"\0" * 500 + b"\1" * 500
    blocked = asyncio.create_task(near.write(b"\2" * 2000))
    await clock.settle()
    await far.close()
    with pytest.raises(PeerLostError):
        await blocked
    await network.close()


async def test_a_close_lets_what_is_in_flight_arrive(network: MemoryNetwork, clock: VirtualClock) -> None:
    network.shape(A, B, LinkShape(delay_s=0.5))
    near, far = await pair(network)
    await near.write(b"last words")
    await near.close()
    assert await clock.run(far.read_exactly(10)) == b"last words"
    with pytest.raises(PeerLostError):
        await clock.run(far.read_exactly(1))


async def test_a_cut_breaks_both_ends_until_mended(network: MemoryNetwork, clock: VirtualClock) -> None:
    network.shape(A, B, LinkShape(delay_s=0.5))
    near, far = await pair(network)
    await near.write(b"in flight")
    network.cut(B, A)
    for end in (near, far):
        with pytest.raises(PeerLostError):
            await end.read_exactly(1)
        with pytest.raises(PeerLostError):
            await end.write(b"x")
    with pytest.raises(PeerUnreachableError, match="refused"):
        await network._transports[A].dial(B, "/t/1")
    network.mend(A, B)
    again = await clock.run(network._transports[A].dial(B, "/t/1"))
    await again.write(b"x")


async def test_a_killed_peer_is_an_end_for_the_others_and_may_come_back(network: MemoryNetwork) -> None:
    near, _ = await pair(network)
    reading = asyncio.create_task(near.read_exactly(1))
    await asyncio.sleep(0)
    await network.kill(B)
    with pytest.raises(PeerLostError) as caught:
        await reading
    assert caught.value.peer == B
    with pytest.raises(PeerUnreachableError):
        await network._transports[A].dial(B, "/t/1")
    with pytest.raises(MisuseError, match="already"):
        network.transport(A)
    assert network.transport(Identity(bytes([2]) * 32)).peer_id == B


async def test_a_frozen_peer_is_silent_and_thaws_with_everything(network: MemoryNetwork, clock: VirtualClock) -> None:
    near, far = await pair(network)
    network.freeze(B)
    await near.write(b"to you")
    await far.write(b"from you")
    reads = [asyncio.create_task(far.read_exactly(6)), asyncio.create_task(near.read_exactly(8))]
    await clock.advance(3600)
    assert not any(read.done() for read in reads)
    with pytest.raises(PeerUnreachableError, match="did not answer in 2 s"):
        await clock.run(network._transports[A].dial(B, "/t/1", timeout_s=2))
    assert clock.monotonic_s() == 3602
    network.thaw(B)
    await clock.settle()
    assert [read.result() for read in reads] == [b"to you", b"from you"]


async def test_a_dial_slower_than_its_timeout_fails_at_the_timeout(network: MemoryNetwork, clock: VirtualClock) -> None:
    network.shape(A, B, LinkShape(delay_s=3))
    a, b = network.transport(A), network.transport(B)

    async def never(stream: Stream) -> None:
        raise AssertionError

    await b.listen("/t/1", never)
    with pytest.raises(PeerUnreachableError, match="5 s"):
        await clock.run(a.dial(B, "/t/1", timeout_s=5))
    assert clock.monotonic_s() == 5


async def test_a_tap_sees_alters_swallows_and_breaks(network: MemoryNetwork, clock: VirtualClock) -> None:
    near, far = await pair(network)
    seen: list[tuple[PeerId, PeerId, str, bytes]] = []

    def corrupt(source: PeerId, target: PeerId, protocol: str, data: bytes) -> bytes:
        seen.append((source, target, protocol, data))
        if data == b"swallow":
            return b""
        if data == b"break":
            raise ValueError("a tap that raises")
        return data.replace(b"1", b"2") if source == A else data

    remove = network.tap(corrupt)
    await near.write(b"swallow")
    await near.write(b"1", memoryview(b"11"))
    await far.write(b"1")
    assert await far.read_exactly(3) == b"222"
    assert await near.read_exactly(1) == b"1"
    assert seen[1:] == [(A, B, "/t/1", b"111"), (B, A, "/t/1", b"1")]
    remove()
    remove()
    await near.write(b"1")
    assert await far.read_exactly(1) == b"1"
    network.tap(corrupt)
    with pytest.raises(PeerLostError):
        await near.write(b"break")
    with pytest.raises(PeerLostError):
        await far.read_exactly(1)


async def test_links_break_at_random_by_the_seed() -> None:
    async def writes_before_a_break(seed: int) -> int:
        network = MemoryNetwork(VirtualClock(), seed, shape=LinkShape(break_rate=0.1))
        near, _ = await pair(network)
        count = 0
        try:
            while count < 1000:
                await near.write(b"x")
                count += 1
        except PeerLostError:
            pass
        await network.close()
        return count

    counts = [await writes_before_a_break(seed) for seed in range(30)]
    assert counts == [await writes_before_a_break(seed) for seed in range(30)]
    assert 3 < sum(counts) / 30 < 30  # the mean of a geometric distribution is 9


def grab(tasks: HandlerTasks, peer: PeerId) -> int:
    """Open streams that stay until ``peer`` is turned away; how many it got."""
    network, got = MemoryNetwork(VirtualClock()), 0

    async def hold(stream: Stream) -> None:
        await asyncio.Event().wait()

    while tasks.admits(peer):
        tasks.start("/t/1", hold, network._pair(peer, A, "/t/1")[1])
        got += 1
    return got


async def test_an_unbounded_caller_is_turned_away() -> None:
    tasks = HandlerTasks(max_streams=64, max_per_peer=2)
    assert grab(tasks, B) == 2
    assert not tasks.admits(B)
    assert tasks.admits(C)
    await tasks.close()
    assert len(tasks) == 0
    assert not tasks.admits(C)


async def test_where_a_few_grab_all_they_can_a_newcomer_finds_room_and_the_bound_holds() -> None:
    tasks = HandlerTasks(max_streams=400, max_per_peer=50)
    strangers = [PeerId(f"stranger {n}") for n in range(12)]
    assert [grab(tasks, stranger) for stranger in strangers[:3]] == [45, 40, 35]
    for stranger in strangers[3:]:
        grab(tasks, stranger)
    assert grab(tasks, C) >= 10
    for n in range(1000):
        grab(tasks, PeerId(f"another {n}"))
    assert len(tasks) == 400
    assert not tasks.admits(B)
    await tasks.close()


async def test_places_come_free_when_streams_end(network: MemoryNetwork) -> None:
    a, b = network.transport(A), network.transport(B)
    b._tasks = HandlerTasks(max_per_peer=1)

    async def once(stream: Stream) -> None:
        await stream.read_exactly(1)

    await b.listen("/t/1", once)
    first = await a.dial(B, "/t/1")
    turned_away = await a.dial(B, "/t/1")
    with pytest.raises(PeerLostError):
        await turned_away.read_exactly(1)
    await first.write(b"x")
    with pytest.raises(PeerLostError):
        await first.read_exactly(1)
    third = await a.dial(B, "/t/1")
    await asyncio.sleep(0)
    await third.write(b"x")


async def test_a_handler_may_close_its_own_transport(network: MemoryNetwork) -> None:
    a, b = network.transport(A), network.transport(B)

    async def suicide(stream: Stream) -> None:
        await b.close()

    await b.listen("/t/1", suicide)
    stream = await a.dial(B, "/t/1")
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert isinstance(b, MemoryTransport)


async def test_a_dial_that_fails_and_is_cancelled_at_once_leaves_nothing_behind(network: MemoryNetwork) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    dial = asyncio.create_task(network.transport(A).dial(B, "/t/1"))
    await asyncio.sleep(0)
    dial.cancel()
    await asyncio.wait([dial])
    assert dial.cancelled()
    del dial
    gc.collect()
    assert complaints == []
