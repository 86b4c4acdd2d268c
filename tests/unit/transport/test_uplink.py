"""The uplink from real transfers, in virtual time: over shaped links, past slow readers, beside small talk."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.framing import FrameStream
from swarm.transport.memory import LinkShape, MemoryNetwork
from swarm.transport.protocol import Stream
from swarm.transport.uplink import BUFFER_BYTES, QUIET_S, UplinkMeter
from swarm.wire.fields import DECODE_LANE
from swarm.wire.messages import Hello, Step
from swarm.wire.session import Channel, Role

HERE, THERE = (Identity(bytes([n] * 32)) for n in (1, 2))
CHUNK_BYTES = 4 * 1024 * 1024
HELLO = Hello("client", b"s" * 16, 0, b"x" * 16, DECODE_LANE)


class Sender:
    """One node that pushes steps to another over ``streams`` links; the other reads as fast as they come."""

    def __init__(self, mbps: float | None) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(self.clock)
        bits_per_s = None if mbps is None else mbps * 1e6
        self.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.02, bits_per_s=bits_per_s))
        self.here = self.network.transport(HERE)
        self.meter = UplinkMeter(self.clock)
        self.sent = 0
        self.read_bytes_per_s: float | None = None

    async def __aenter__(self) -> Sender:
        await self.network.transport(THERE).listen("link", self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.network.close()

    async def connect(self) -> FrameStream:
        stream = await self.clock.run(self.here.dial(THERE.peer_id, "link"))
        link = FrameStream(stream, Channel.LINK, Role.DIALER, uplink=self.meter)
        await link.send(HELLO)
        return link

    async def _read(self, stream: Stream) -> None:
        while True:
            await stream.read_exactly(1024)
            if self.read_bytes_per_s is not None:
                await self.clock.sleep(1024 / self.read_bytes_per_s)

    async def push(self, link: FrameStream, byte_count: int) -> None:
        self.sent += 1
        await link.send(Step(0, 0, self.sent, 0, 1, 1), bytes(byte_count))

    async def burst(self, link: FrameStream, byte_count: int = CHUNK_BYTES) -> float | None:
        await self.clock.run(self.push(link, byte_count))
        await self.clock.advance(20 * QUIET_S)
        return self.meter.mbps


@pytest.mark.parametrize("mbps", [2.0, 20.0, 200.0])
async def test_a_chunk_over_a_slow_line_measures_it_and_never_flatters(mbps: float) -> None:
    async with Sender(mbps) as sender:
        link = await sender.connect()
        assert sender.meter.mbps is None
        measured = await sender.burst(link)
        assert measured is not None
        assert 0.75 * mbps <= measured <= mbps


async def test_decode_steps_and_free_lines_measure_nothing() -> None:
    async with Sender(20.0) as sender:
        link = await sender.connect()
        for _ in range(50):
            await sender.clock.run(sender.push(link, 16 * 1024))
            await sender.clock.advance(0.05)
        assert sender.meter.mbps is None
    async with Sender(None) as sender:
        link = await sender.connect()
        assert await sender.burst(link, BUFFER_BYTES // 4) is None


async def test_streams_that_share_the_line_are_measured_together() -> None:
    async with Sender(20.0) as sender:
        links = [await sender.connect() for _ in range(3)]

        async def all_at_once() -> None:
            await asyncio.gather(*(sender.push(link, CHUNK_BYTES // 2) for link in links))

        await sender.clock.run(all_at_once())
        assert sender.meter.mbps is not None
        assert 12.0 <= sender.meter.mbps <= 20.0, "each alone saw a third of it"


async def test_decode_steps_beside_a_chunk_do_not_hide_it() -> None:
    async with Sender(20.0) as sender:
        prefill, decode = await sender.connect(), await sender.connect()

        async def chatter() -> None:
            for _ in range(40):
                await sender.push(decode, 4 * 1024)
                await sender.clock.sleep(0.05)

        async def both() -> None:
            await asyncio.gather(sender.push(prefill, CHUNK_BYTES), chatter())

        await sender.clock.run(both())
        assert sender.meter.mbps is not None
        assert 15.0 <= sender.meter.mbps <= 20.0


async def test_a_reader_that_falls_behind_later_on_is_not_taken_for_the_line() -> None:
    """Receivers queue a few MiB before they make a sender wait: what comes after the first burst does not count."""
    async with Sender(20.0) as sender:
        link = await sender.connect()
        first = await sender.burst(link)
        sender.read_bytes_per_s = 50_000.0
        await sender.clock.run(sender.push(link, 64 * 1024))  # no quiet from here on
        for _ in range(5):
            await sender.clock.run(sender.push(link, 1024 * 1024))
        assert sender.meter.mbps == first


async def test_lower_values_lower_it_slowly_and_higher_ones_raise_it_at_once() -> None:
    async with Sender(20.0) as sender:
        link = await sender.connect()
        high = await sender.burst(link)
        sender.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.02, bits_per_s=2e6))
        lower = await sender.burst(link)
        assert high is not None
        assert lower is not None
        assert 0.85 * high < lower < high
        for _ in range(60):
            await sender.burst(link)
        assert sender.meter.mbps == pytest.approx(2.0, rel=0.25)
        sender.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.02, bits_per_s=20e6))
        assert await sender.burst(link) == pytest.approx(high, rel=0.05)


async def test_a_write_that_fails_measures_nothing() -> None:
    clock = VirtualClock()
    meter = UplinkMeter(clock)

    async def fail() -> None:
        with meter.sending(CHUNK_BYTES):
            await clock.advance(5.0)
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        await fail()
    assert meter.mbps is None
    await clock.advance(QUIET_S)
    with meter.sending(CHUNK_BYTES):
        await clock.advance(1.0)
    assert meter.mbps == pytest.approx(8e-6 * (CHUNK_BYTES - BUFFER_BYTES))


async def test_a_part_measures_what_goes_to_one_peer_and_the_whole_all_of_it() -> None:
    clock = VirtualClock()
    meter = UplinkMeter(clock)
    near, far = meter.part(), meter.part()
    for part, seconds in ((near, 1.0), (far, 4.0)):
        await clock.advance(QUIET_S)
        with part.sending(CHUNK_BYTES):
            await clock.advance(seconds)
    fast_mbps = 8e-6 * (CHUNK_BYTES - BUFFER_BYTES)
    assert near.mbps == pytest.approx(fast_mbps)
    assert far.mbps == pytest.approx(fast_mbps / 4)
    assert meter.mbps is not None
    assert far.mbps < meter.mbps <= near.mbps
    assert (near.sent_bytes, far.sent_bytes, meter.sent_bytes) == (CHUNK_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES)


async def test_bytes_that_were_sent_are_counted_with_their_frames_and_failed_ones_not() -> None:
    async with Sender(20.0) as sender:
        link = await sender.connect()
        before = sender.meter.sent_bytes
        await sender.clock.run(sender.push(link, 1000))
        assert 1000 < sender.meter.sent_bytes - before < 1100
        with pytest.raises(RuntimeError), sender.meter.sending(500):
            raise RuntimeError("gone")
        assert sender.meter.sent_bytes - before < 1100
