"""The upload limit: the rate holds over any time, small frames pass large ones, and nobody starves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import PeerLostError
from swarm.core.ids import PeerId
from swarm.runtime.clock import VirtualClock
from swarm.transport.capped import (
    BUFFER_BYTES,
    BURST_S,
    PATIENT_SHARE,
    PIECE_S,
    CappedStream,
    UplinkCap,
    line_bytes,
)

CHUNK_BYTES = 500_000
"""A prefill chunk."""
ROW = b"r" * 2000
SOMEBODY = PeerId("somebody")


@dataclass
class Line:
    """What has left, when, in which order: every stream's inner end writes here."""

    clock: VirtualClock
    left: list[tuple[float, bytes]] = field(default_factory=list)
    lost: bool = False

    def stream(self, cap: UplinkCap) -> CappedStream:
        return CappedStream(_Inner(self), cap)

    @property
    def sent_bytes(self) -> int:
        return sum(line_bytes(len(data)) for _, data in self.left)

    def when_left(self, data: bytes) -> float:
        return next(when_s for when_s, piece in self.left if piece == data)


@dataclass
class _Inner:
    line: Line
    peer: PeerId = SOMEBODY
    address: str = ""
    closed: bool = False

    async def read_exactly(self, count: int) -> bytes:
        raise NotImplementedError

    async def write(self, *parts: bytes | memoryview) -> None:
        if self.line.lost:
            raise PeerLostError("gone", peer=self.peer)
        self.line.left.append((self.line.clock.monotonic_s(), b"".join(parts)))

    async def close(self) -> None:
        self.closed = True


def run(clock: VirtualClock, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(clock.run(work))


@settings(max_examples=50)
@given(
    st.sampled_from([0.5, 8.0, 80.0]),
    st.lists(
        st.tuples(st.floats(0, 0.3), st.integers(0, 2), st.sampled_from([100, 3000, 32_000, 50_000])),
        min_size=1,
        max_size=20,
    ),
)
def test_over_any_time_no_more_leaves_than_the_rate_allows(mbps: float, writes: list[tuple[float, int, int]]) -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(mbps, clock)

    async def work() -> None:
        streams = [line.stream(cap) for _ in range(3)]
        tasks = []
        for pause_s, index, size in writes:
            await clock.sleep(pause_s)
            tasks.append(asyncio.create_task(streams[index].write(bytes(size))))
        await asyncio.gather(*tasks)
        while any(stream._held for stream in streams):
            await clock.sleep(1.0)

    run(clock, work())
    assert sum(len(data) for _, data in line.left) == sum(size for _, _, size in writes)
    # What a line of this rate would still have to send: the same as a look at every stretch of time.
    backlog_bytes, before_s = 0.0, 0.0
    for at_s, data in line.left:
        backlog_bytes = max(0.0, backlog_bytes - 1e6 / 8 * mbps * (at_s - before_s)) + line_bytes(len(data))
        assert backlog_bytes <= 1e6 / 8 * mbps * BURST_S + line_bytes(cap.piece_bytes) + 1
        before_s = at_s


def test_the_line_is_used_and_a_row_passes_a_prefill() -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(8.0, clock)

    async def work() -> None:
        prefill, decode = line.stream(cap), line.stream(cap)
        filling = asyncio.create_task(prefill.write(*[bytes(CHUNK_BYTES)] * 4))
        await clock.sleep(0.5)
        for number in range(10):
            row = bytes([number]) + ROW
            asked_s = clock.monotonic_s()
            await decode.write(row)
            await clock.sleep(0.1)
            assert line.when_left(row) - asked_s <= 2 * PIECE_S
        await filling
        while prefill._held:
            await clock.sleep(0.1)

    run(clock, work())
    took_s = line.left[-1][0]
    assert line.sent_bytes / took_s == pytest.approx(1e6, rel=0.06)


def test_small_frames_that_could_use_it_all_leave_bulk_its_share() -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(1.0, clock)

    async def work() -> None:
        prefill, decode = line.stream(cap), line.stream(cap)
        flood = asyncio.create_task(pour(decode))
        filling = asyncio.create_task(prefill.write(bytes(CHUNK_BYTES)))
        await clock.sleep(5.0)
        for task in (filling, flood):
            task.cancel()
        await prefill.close()
        await decode.close()

    run(clock, work())
    meanwhile = [data for at_s, data in line.left if at_s <= 5.0]
    bulk = sum(len(data) for data in meanwhile if not data.strip(b"\0"))
    assert bulk / sum(map(len, meanwhile)) == pytest.approx(PATIENT_SHARE, abs=0.05)


async def pour(stream: CappedStream) -> None:
    """Never be the one that is waited for."""
    while True:
        await stream.write(ROW)


def test_a_writer_waits_while_too_much_is_held_back() -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(8.0, clock)

    async def work() -> None:
        stream = line.stream(cap)
        await stream.write(bytes(BUFFER_BYTES + 100_000))
        assert clock.monotonic_s() == pytest.approx(0.1, abs=0.06)
        await stream.close()

    run(clock, work())


def test_a_lost_peer_shows_at_the_next_write_and_nobody_waits_for_it() -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(1.0, clock)

    async def work() -> None:
        stream, other = line.stream(cap), line.stream(cap)
        line.lost = True
        with pytest.raises(PeerLostError):
            await stream.write(bytes(BUFFER_BYTES * 2))
        with pytest.raises(PeerLostError):
            await stream.write(b"more")
        line.lost = False
        await other.write(bytes(10_000))
        await clock.sleep(1.0)
        assert not other._held

    run(clock, work())


def test_last_words_leave_before_a_close() -> None:
    clock = VirtualClock()
    line, cap = Line(clock), UplinkCap(1.0, clock)

    async def work() -> None:
        prefill, control = line.stream(cap), line.stream(cap)
        await prefill.write(bytes(BUFFER_BYTES // 2))
        await control.write(b"goodbye")
        closing = asyncio.create_task(control.close())
        await clock.sleep(0.2)
        assert (await asyncio.wait([closing], timeout=1.0))[0]
        assert any(data == b"goodbye" for _, data in line.left)
        with pytest.raises(PeerLostError):
            await control.write(b"more")
        await prefill.close()

    run(clock, work())
