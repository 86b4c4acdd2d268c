"""Which ways a server tells of: those that have a beat, latest first, and never more than a fixed number."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.server.reports.ways import MAX_WAYS, Ways
from swarm.transport.memory import LinkShape, MemoryNetwork
from swarm.transport.pulse import PulseKeeper
from swarm.transport.uplink import BUFFER_BYTES, UplinkMeter
from swarm.wire.status import MAX_LINKS, LinkFigures


class Place:
    """A node with a pulse, and others that answer it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(self.clock, shape=LinkShape(delay_s=0.02))
        self.pulse = PulseKeeper(self.network.transport(Identity(bytes(31) + b"\xff")), self.clock)
        self.uplink = UplinkMeter(self.clock)
        self.ways = Ways(self.pulse, self.uplink)

    async def other(self, number: int) -> PeerId:
        identity = Identity(number.to_bytes(32, "big"))
        await PulseKeeper(self.network.transport(identity), self.clock).serve()
        return identity.peer_id

    def beat(self, peer: PeerId) -> None:
        self.pulse.hold(peer, (), lambda reason: None)


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    await made.pulse.close()
    await made.network.close()


async def test_a_way_is_told_of_while_it_has_a_beat(place: Place) -> None:
    near, far = await place.other(1), await place.other(2)
    place.ways.meter(near)
    place.ways.meter(far)
    assert place.ways.figures() == ()
    place.beat(near)
    place.beat(far)
    assert place.ways.figures() == tuple(LinkFigures(peer, None, None, None) for peer in (far, near))
    await place.clock.advance(5.0)
    place.ways.meter(near)
    latest, _ = place.ways.figures()
    assert latest.peer == near
    assert latest.rtt_s == pytest.approx(0.04)
    assert latest.noop_age_s is not None
    assert latest.noop_age_s <= 0.15


async def test_a_beat_to_somebody_whom_no_link_leads_to_is_not_told(place: Place) -> None:
    place.beat(await place.other(1))
    assert place.ways.figures() == ()


async def test_goodput_is_that_of_one_way(place: Place) -> None:
    near, far = await place.other(1), await place.other(2)
    for peer, seconds in ((near, 1.0), (far, 4.0)):
        place.beat(peer)
        await place.clock.advance(1.0)
        with place.ways.meter(peer).sending(BUFFER_BYTES + 1_000_000):
            await place.clock.advance(seconds)
    assert {way.peer: way.goodput_mbps for way in place.ways.figures()} == pytest.approx({near: 8.0, far: 2.0})
    assert place.uplink.sent_bytes == 2 * (BUFFER_BYTES + 1_000_000)


async def test_of_many_ways_the_latest_are_remembered(place: Place) -> None:
    peers = [PeerId(f"peer {number}") for number in range(2 * MAX_WAYS)]
    for peer in peers:
        place.ways.meter(peer)
        place.beat(peer)
    assert len(place.ways._meters) == MAX_WAYS
    assert [way.peer for way in place.ways.figures()] == peers[: -MAX_LINKS - 1 : -1]
