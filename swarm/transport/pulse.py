"""A small no-op between two peers every 100 ms, both ways, while any session runs over the pair.

It does three things: TCP's congestion window stays open (a factor of three for a 16 KB message on a 50 ms link), a peer
that froze or was cut off shows although its connection looks alive, and every answer measures the round trip.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.core.limits import PROTOCOL_MAJOR
from swarm.core.smoothing import smoothed
from swarm.transport.protocol import Stream, Transport

PULSE_PROTOCOL = f"swarm.pulse.{PROTOCOL_MAJOR}"
INTERVAL_S = 0.1
SILENCE_S = 1.8
"""With the moment a client waits for better evidence a silence is acted on within 2 s."""
LINGER_S = 10.0
"""How long a pair's beat goes on after its last session, since the next one often comes soon."""
REDIAL_S = 1.0
MAX_REDIAL_S = 8.0
"""The pause before another dial doubles up to this, so that a dead address is not hammered."""
ECHO_PAUSE_S = 0.01
"""After each echo: a flood of beats costs a hundred answers a second."""
ECHO_IDLE_S = 30.0
"""A stream without a beat for this long is given up."""
MAX_ECHOES_PER_PEER = 8
"""Beats of one peer id that are answered at once; a peer needs one."""
RTT_WEIGHT = 0.2
"""Weight of the newest measurement in the smoothed RTT."""

BEAT = struct.Struct(">I")

OnSilent = Callable[[str], None]
"""Called once with a reason when a held peer has not answered for ``SILENCE_S``."""


@dataclass(eq=False, slots=True)
class Hold:
    """One session's interest in a peer."""

    peer: PeerId
    on_silent: OnSilent
    told: bool = False


@dataclass(eq=False, slots=True)
class _Pair:
    """The beat to one peer: who holds it, and what has been heard."""

    peer: PeerId
    addresses: tuple[str, ...]
    holds: set[Hold] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    sent: int = 0
    heard: int = 0
    heard_s: float | None = None
    sent_s: dict[int, float] = field(default_factory=dict)
    rtt_s: float | None = None
    idle_s: float = 0.0


class PulseKeeper:
    """Beats to every held peer, and answers other peers' beats.

    Silence is counted in own beats that went unanswered, not in time that passed: so a stall of this process, in which
    nothing is sent, accuses nobody.
    """

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._pairs: dict[PeerId, _Pair] = {}
        self._echoes: Counter[PeerId] = Counter()

    async def serve(self) -> None:
        """Answer other peers' beats from now on."""
        await self._transport.listen(PULSE_PROTOCOL, self._echo)

    def hold(self, peer: PeerId, addresses: Sequence[str], on_silent: OnSilent) -> Hold:
        """Keep a beat to ``peer`` going until ``release``. Returns at once; the stream opens in the background."""
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = _Pair(peer, tuple(addresses))
        hold = Hold(peer, on_silent)
        pair.holds.add(hold)
        if pair.task is None:
            pair.task = asyncio.create_task(self._run(pair), name=f"pulse {peer[-8:]}")
        return hold

    def release(self, hold: Hold) -> None:
        """Give up one hold; the beat ends ``LINGER_S`` after the last. Idempotent."""
        pair = self._pairs.get(hold.peer)
        if pair is not None:
            pair.holds.discard(hold)

    def rtt_s(self, peer: PeerId) -> float | None:
        """Smoothed round trip to a peer with a beat, in seconds; None before the first answer."""
        pair = self._pairs.get(peer)
        return None if pair is None else pair.rtt_s

    def beats(self, peer: PeerId) -> bool:
        """True while a beat goes to ``peer``, or is tried."""
        return peer in self._pairs

    def answer_age_s(self, peer: PeerId) -> float | None:
        """How long ago a peer with a beat answered last, in seconds; None before the first answer."""
        pair = self._pairs.get(peer)
        if pair is None or pair.heard_s is None:
            return None
        return self._clock.monotonic_s() - pair.heard_s

    async def close(self) -> None:
        """End every beat. Idempotent."""
        tasks = [pair.task for pair in self._pairs.values() if pair.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pairs.clear()

    async def _run(self, pair: _Pair) -> None:
        """Dial, beat, and when the stream breaks dial again, for as long as somebody holds the peer."""
        redial_s, linger_s = REDIAL_S, 0.0
        while pair.holds or pair.idle_s < linger_s:
            try:
                stream = await self._transport.dial(pair.peer, PULSE_PROTOCOL, addresses=pair.addresses)
            except NetworkError:
                await self._pause(pair, redial_s)
                redial_s = min(2 * redial_s, MAX_REDIAL_S)
                continue
            redial_s, linger_s = REDIAL_S, LINGER_S
            pair.sent = pair.heard = 0
            pair.sent_s.clear()
            listener = asyncio.create_task(self._listen(pair, stream))
            try:
                await self._beat(pair, stream)
            except NetworkError:
                await self._pause(pair, REDIAL_S)
            finally:
                listener.cancel()
                await asyncio.gather(listener, return_exceptions=True)
                await stream.close()
        if self._pairs.get(pair.peer) is pair:
            del self._pairs[pair.peer]

    async def _beat(self, pair: _Pair, stream: Stream) -> None:
        while pair.holds or pair.idle_s < LINGER_S:
            pair.sent += 1
            pair.sent_s[pair.sent] = self._clock.monotonic_s()
            await stream.write(BEAT.pack(pair.sent))
            await self._pause(pair, INTERVAL_S)
            if pair.sent - pair.heard >= SILENCE_S / INTERVAL_S:
                self._tell(pair)

    async def _listen(self, pair: _Pair, stream: Stream) -> None:
        while True:
            (number,) = BEAT.unpack(await stream.read_exactly(BEAT.size))
            began_s = pair.sent_s.pop(number, None)
            if began_s is None:
                continue  # an answer to nothing we sent says nothing
            pair.heard = max(pair.heard, number)
            pair.heard_s = self._clock.monotonic_s()
            rtt_s = pair.heard_s - began_s
            pair.rtt_s = smoothed(pair.rtt_s, rtt_s, RTT_WEIGHT)

    async def _pause(self, pair: _Pair, seconds: float) -> None:
        await self._clock.sleep(seconds)
        pair.idle_s = 0.0 if pair.holds else pair.idle_s + seconds

    def _tell(self, pair: _Pair) -> None:
        for number in [number for number in pair.sent_s if number < pair.sent - 2 * SILENCE_S / INTERVAL_S]:
            del pair.sent_s[number]
        for hold in list(pair.holds):
            if not hold.told:
                hold.told = True
                hold.on_silent(f"peer {pair.peer[-8:]} has been silent for {SILENCE_S:g} s")

    async def _echo(self, stream: Stream) -> None:
        """Send beats back until the stream ends or none comes any more."""
        if self._echoes[stream.peer] >= MAX_ECHOES_PER_PEER:
            return
        self._echoes[stream.peer] += 1
        try:
            while True:
                async with asyncio.timeout(ECHO_IDLE_S):
                    await stream.write(await stream.read_exactly(BEAT.size))
                await self._clock.sleep(ECHO_PAUSE_S)
        except TimeoutError:
            return
        finally:
            self._echoes[stream.peer] -= 1
            if not self._echoes[stream.peer]:
                del self._echoes[stream.peer]
