"""Short visits to a peer's pulse, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.memory import LinkShape, MemoryNetwork
from swarm.transport.pinger import MAX_VISITS, Pinger
from swarm.transport.protocol import Stream
from swarm.transport.pulse import BEAT, PULSE_PROTOCOL, PulseKeeper

HERE, THERE, NOBODY = (Identity(bytes([n] * 32)) for n in (1, 2, 3))


class Setting:
    """One who pings; the other answers once its keeper serves."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(self.clock)
        self.there = self.network.transport(THERE)
        self.keeper = PulseKeeper(self.there, self.clock)
        self.pinger = Pinger(self.network.transport(HERE), self.clock, answer_s=0.2)

    async def rtt_s(self, peer: PeerId = THERE.peer_id) -> float | None:
        return await self.clock.run(self.pinger.rtt_s(peer, ()))


@pytest_asyncio.fixture
async def setting() -> AsyncIterator[Setting]:
    built = Setting()
    yield built
    await built.keeper.close()
    await built.network.close()


async def test_a_visit_measures_the_round_trip_and_leaves_nothing_behind(setting: Setting) -> None:
    await setting.keeper.serve()
    setting.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.03))
    assert await setting.rtt_s() == pytest.approx(0.06)
    await setting.clock.advance(1.0)
    assert not setting.network._streams


async def test_the_shortest_of_three_counts(setting: Setting) -> None:
    await setting.keeper.serve()
    setting.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.03, jitter_s=0.5))
    measured = [await setting.rtt_s() for _ in range(20)]
    setting.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.03))
    assert all(rtt_s is not None and 0.06 <= rtt_s < 1.06 for rtt_s in measured)
    # The mean of one round trip would be 0.56 s, that of the shortest of three is well below.
    assert sum(rtt_s or 0.0 for rtt_s in measured) / len(measured) < 0.45


async def test_the_pause_of_the_other_end_is_not_measured(setting: Setting) -> None:
    await setting.keeper.serve()
    assert await setting.rtt_s() == pytest.approx(0.0, abs=1e-9)


async def test_who_is_not_there_or_serves_no_beats_or_is_frozen_has_no_round_trip(setting: Setting) -> None:
    assert await setting.rtt_s(NOBODY.peer_id) is None
    assert await setting.rtt_s() is None, "it answers no beats"
    await setting.keeper.serve()
    setting.network.freeze(THERE.peer_id)
    assert await setting.rtt_s() is None
    setting.network.thaw(THERE.peer_id)
    assert await setting.rtt_s() is not None


async def test_who_takes_beats_and_does_not_answer_is_left(setting: Setting) -> None:
    async def mute(stream: Stream) -> None:
        while True:
            await stream.read_exactly(BEAT.size)

    await setting.there.listen(PULSE_PROTOCOL, mute)
    assert await setting.pinger.rtt_s(THERE.peer_id, ()) is None
    await setting.clock.settle()
    assert not setting.network._streams


async def test_an_answer_that_came_before_the_question_is_none(setting: Setting) -> None:
    async def eager(stream: Stream) -> None:
        await stream.write(b"".join(BEAT.pack(number) for number in range(64)))
        await stream.read_exactly(BEAT.size * 64)

    await setting.there.listen(PULSE_PROTOCOL, eager)
    assert await setting.rtt_s() is None


async def test_visits_at_once_are_few(setting: Setting) -> None:
    open_now, most = 0, 0

    async def slow(stream: Stream) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        try:
            while True:
                beat = await stream.read_exactly(BEAT.size)
                await setting.clock.sleep(0.05)
                await stream.write(beat)
        finally:
            open_now -= 1

    await setting.there.listen(PULSE_PROTOCOL, slow)
    visits = asyncio.gather(*(setting.pinger.rtt_s(THERE.peer_id, ()) for _ in range(3 * MAX_VISITS)))

    async def everybody() -> list[float | None]:
        return list(await visits)

    assert await setting.clock.run(everybody()) == pytest.approx([0.05] * 3 * MAX_VISITS)
    assert most == MAX_VISITS
