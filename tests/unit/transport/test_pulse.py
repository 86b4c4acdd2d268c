"""The beat between two peers, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.core.errors import PeerLostError
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.memory import LinkShape, MemoryNetwork
from swarm.transport.protocol import Stream
from swarm.transport.pulse import (
    ECHO_PAUSE_S,
    INTERVAL_S,
    LINGER_S,
    MAX_ECHOES_PER_PEER,
    PULSE_PROTOCOL,
    SILENCE_S,
    PulseKeeper,
)

HERE, THERE, STRANGER = (Identity(bytes([n] * 32)) for n in (1, 2, 3))


class Pair:
    """Two nodes that answer beats, and what the first was told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.network = MemoryNetwork(self.clock)
        self.keepers = [PulseKeeper(self.network.transport(who), self.clock) for who in (HERE, THERE)]
        self.told: list[str] = []

    async def __aenter__(self) -> Pair:
        for keeper in self.keepers:
            await keeper.serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        for keeper in self.keepers:
            await keeper.close()
        await self.network.close()

    @property
    def here(self) -> PulseKeeper:
        return self.keepers[0]


async def test_an_answering_peer_is_never_called_silent_and_its_rtt_is_measured() -> None:
    async with Pair() as pair:
        pair.network.shape(HERE.peer_id, THERE.peer_id, LinkShape(delay_s=0.025))
        pair.here.hold(THERE.peer_id, (), pair.told.append)
        await pair.clock.advance(60.0)
        assert pair.told == []
        assert pair.here.rtt_s(THERE.peer_id) == pytest.approx(0.05)


async def test_a_frozen_peer_is_called_silent_once_after_two_seconds() -> None:
    async with Pair() as pair:
        pair.here.hold(THERE.peer_id, (), pair.told.append)
        await pair.clock.advance(1.0)
        pair.network.freeze(THERE.peer_id)
        await pair.clock.advance(SILENCE_S - 2 * INTERVAL_S)
        assert pair.told == []
        await pair.clock.advance(4 * INTERVAL_S)
        assert len(pair.told) == 1
        await pair.clock.advance(60.0)
        assert len(pair.told) == 1
        pair.network.thaw(THERE.peer_id)


async def test_a_stall_shorter_than_the_limit_accuses_nobody() -> None:
    async with Pair() as pair:
        pair.here.hold(THERE.peer_id, (), pair.told.append)
        for _ in range(5):
            await pair.clock.advance(3.0)
            pair.network.freeze(THERE.peer_id)
            await pair.clock.advance(1.0)
            pair.network.thaw(THERE.peer_id)
        await pair.clock.advance(3.0)
        assert pair.told == []


async def test_the_beat_survives_a_broken_stream_and_dials_again() -> None:
    async with Pair() as pair:
        pair.here.hold(THERE.peer_id, (), pair.told.append)
        await pair.clock.advance(1.0)
        pair.network.cut(HERE.peer_id, THERE.peer_id)
        await pair.clock.advance(5.0)
        pair.network.mend(HERE.peer_id, THERE.peer_id)
        await pair.clock.advance(5.0)
        pair.network.freeze(THERE.peer_id)
        await pair.clock.advance(SILENCE_S + 4 * INTERVAL_S)
        assert len(pair.told) == 1, "the second stream watches as the first did"
        pair.network.thaw(THERE.peer_id)


async def test_the_beat_ends_a_while_after_the_last_release() -> None:
    async with Pair() as pair:
        beats = []
        pair.network.tap(lambda source, target, protocol, data: beats.append(source) or data)
        holds = [pair.here.hold(THERE.peer_id, (), pair.told.append) for _ in range(2)]
        await pair.clock.advance(1.0)
        pair.here.release(holds[0])
        await pair.clock.advance(3 * LINGER_S)
        assert beats, "one hold is enough"
        pair.here.release(holds[1])
        await pair.clock.advance(2 * LINGER_S)
        beats.clear()
        await pair.clock.advance(LINGER_S)
        assert beats == []
        assert pair.here.rtt_s(THERE.peer_id) is None


async def test_two_sessions_over_one_pair_share_one_stream() -> None:
    async with Pair() as pair:
        beats = []
        pair.network.tap(lambda source, target, protocol, data: beats.append(source) or data)
        for _ in range(50):
            pair.here.hold(THERE.peer_id, (), pair.told.append)
        await pair.clock.advance(1.0)
        assert 9 <= beats.count(HERE.peer_id) <= 12


async def test_a_flood_of_beats_is_answered_slowly() -> None:
    async with Pair() as pair:
        stream = await pair.network.transport(STRANGER).dial(THERE.peer_id, PULSE_PROTOCOL)
        echoes: list[str] = []
        pair.network.tap(lambda source, target, protocol, data: echoes.append(source) or data)
        await stream.write(bytes(4 * 1000))
        await pair.clock.advance(1.0)
        assert 50 <= echoes.count(THERE.peer_id) <= 1.0 / ECHO_PAUSE_S + 1


async def test_one_peer_gets_few_echoes_at_once_and_has_them_back() -> None:
    async with Pair() as pair:
        caller = pair.network.transport(STRANGER)
        streams = [await caller.dial(THERE.peer_id, PULSE_PROTOCOL) for _ in range(MAX_ECHOES_PER_PEER)]
        await pair.clock.settle()
        refused = await caller.dial(THERE.peer_id, PULSE_PROTOCOL)
        with pytest.raises(PeerLostError):
            await refused.read_exactly(4)
        await streams[0].close()
        await pair.clock.settle()
        another = await caller.dial(THERE.peer_id, PULSE_PROTOCOL)
        await another.write(b"beat")
        assert await another.read_exactly(4) == b"beat"


async def test_a_peer_that_cannot_be_dialled_is_not_hammered_and_not_waited_for() -> None:
    async with Pair() as pair:
        pair.network.cut(STRANGER.peer_id, THERE.peer_id)
        dials = []
        transport = pair.network.transport(STRANGER)
        dial = transport.dial

        async def counted(*args: Any, **options: Any) -> Stream:
            dials.append(pair.clock.monotonic_s())
            return await dial(*args, **options)

        transport.dial = counted  # type: ignore[method-assign, assignment]
        keeper = PulseKeeper(transport, pair.clock)
        hold = keeper.hold(THERE.peer_id, (), pair.told.append)
        await pair.clock.advance(60.0)
        assert 3 <= len(dials) <= 12
        keeper.release(hold)
        await pair.clock.advance(10.0)
        dials.clear()
        await pair.clock.advance(3 * LINGER_S)
        assert dials == []
        await keeper.close()


async def test_how_old_the_last_answer_is() -> None:
    """None before the first; it grows while a peer is frozen, also over a stream that broke."""
    async with Pair() as pair:
        here, there = pair.here, THERE.peer_id
        pair.network.shape(HERE.peer_id, there, LinkShape(delay_s=0.025))
        assert not here.beats(there)
        assert here.answer_age_s(there) is None
        hold = here.hold(there, (), pair.told.append)
        assert here.beats(there)
        assert here.answer_age_s(there) is None
        await pair.clock.advance(10.0)
        assert (here.answer_age_s(there) or 0.0) <= INTERVAL_S + 0.05
        pair.network.freeze(there)
        await pair.clock.advance(3.0)
        assert here.answer_age_s(there) == pytest.approx(3.0, abs=2 * INTERVAL_S)
        pair.network.cut(HERE.peer_id, there)
        pair.network.thaw(there)
        await pair.clock.advance(4.0)
        assert here.answer_age_s(there) == pytest.approx(7.0, abs=2 * INTERVAL_S)
        here.release(hold)
        await pair.clock.advance(3 * LINGER_S)
        assert not here.beats(there)
        assert here.answer_age_s(there) is None
