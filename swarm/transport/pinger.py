"""The round trip to a peer with whom no session runs: a short visit to its pulse."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.transport.protocol import Stream, Transport
from swarm.transport.pulse import BEAT, ECHO_PAUSE_S, PULSE_PROTOCOL

PINGS = 3
"""Of one visit; the shortest counts, since whatever else happened in between only made it longer."""
DIAL_S = 5.0
ANSWER_S = 5.0
"""For all answers of one visit."""
MAX_VISITS = 8
"""At once; the next ones wait their turn."""

Ping = Callable[[PeerId, Sequence[str]], Awaitable[float | None]]
"""The round trip to a peer at addresses in seconds, None if it does not answer."""


class Pinger:
    """Measures round trips. Keeps nothing: who wants a history keeps it."""

    def __init__(
        self, transport: Transport, clock: Clock, *, dial_s: float = DIAL_S, answer_s: float = ANSWER_S
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._dial_s = dial_s
        self._answer_s = answer_s
        self._room = asyncio.Semaphore(MAX_VISITS)

    async def rtt_s(self, peer: PeerId, addresses: Sequence[str]) -> float | None:
        """The round trip to ``peer`` in seconds; None if it cannot be dialled or does not answer in time."""
        async with self._room:
            try:
                stream = await self._transport.dial(peer, PULSE_PROTOCOL, addresses=addresses, timeout_s=self._dial_s)
            except NetworkError:
                return None
            try:
                async with asyncio.timeout(self._answer_s):
                    return await self._shortest(stream)
            except (NetworkError, TimeoutError):
                return None
            finally:
                await stream.close()

    async def _shortest(self, stream: Stream) -> float | None:
        shortest_s: float | None = None
        for _ in range(PINGS):
            beat = BEAT.pack(secrets.randbits(32))  # which nobody can answer before it has come
            began_s = self._clock.monotonic_s()
            await stream.write(beat)
            if await stream.read_exactly(BEAT.size) != beat:
                return None  # an answer to nothing we sent says nothing
            took_s = self._clock.monotonic_s() - began_s
            shortest_s = took_s if shortest_s is None else min(shortest_s, took_s)
            await self._clock.sleep(2 * ECHO_PAUSE_S)  # the other end pauses after each answer
        return shortest_s
