"""STATUS streams: how this server is, told to anybody who asks, not too often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError, PeerError, PeerUnreachableError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.scheduling.shedding import MANY_NAMES, Allowance
from swarm.transport.addresses import household
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream
from swarm.wire.messages import Busy, Message, Refused
from swarm.wire.session import Channel, Role
from swarm.wire.status import AskStatus, StatusReport

log = logging.getLogger(__name__)

FRESH_S = 0.5
"""A report is made at most so often, and whoever asks meanwhile gets the last one."""
ANSWERS_PER_S = 1.0
"""For one peer."""
BURST = 2
"""At once, since a request that is sent once a second does not come once a second."""
ANSWERS_PER_S_PER_ADDRESS = 16.0
"""For one IP address (a /64 in IPv6), since peer ids cost nothing."""
ANSWERS_PER_S_IN_ALL = 64.0
"""A report of many chains is 8 KB: all the curious of the world together take 4 Mbit/s of this machine's line."""
MAX_STREAMS = 128
MAX_STREAMS_PER_PEER = 4
MAX_STREAMS_PER_ADDRESS = 32
MAX_REQUEST_BYTES = 256
IDLE_S = 60.0
"""How long a stream may wait for the next request."""
SILENT_S = 20.0
"""Where there is no more room, one that asked nothing for so long leaves its place to who comes."""
SEND_S = 10.0
"""How long an answer may wait to be taken."""
MAX_IMPATIENCE = 5
"""So many requests in a row before their time end a stream."""
PACE_S = 0.1
"""After a request that came too early the next one of its stream waits this long."""
SHUT_OUT_S = 10.0
"""So long nobody listens to a peer that asked on and on."""
BUSY_S = 5.0
"""When to ask again where there are too many streams."""


class Telling:
    """Answers STATUS streams with what ``report`` says, or with a refusal if nothing is to be told (None)."""

    def __init__(self, report: Callable[[], StatusReport] | None, clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._open: dict[Stream, float] = {}
        """And when each asked last, or came."""
        self._each = Allowance(ANSWERS_PER_S, BURST)
        self._each_place = Allowance(ANSWERS_PER_S_PER_ADDRESS, int(ANSWERS_PER_S_PER_ADDRESS))
        self._all = Allowance(ANSWERS_PER_S_IN_ALL, int(ANSWERS_PER_S_IN_ALL))
        self._shut_until_s: dict[PeerId, float] = {}
        self._made: tuple[float, StatusReport] | None = None
        self._closed = False

    async def serve(self, stream: Stream) -> None:
        """One stream, until its asker ends it, is silent for ``IDLE_S`` or asks on and on too early, or ``close``."""
        if self._closed or self._is_shut_out(stream.peer) or self._is_greedy(stream, 2):
            return
        silent = self._silent() if len(self._open) >= MAX_STREAMS else None
        busy = self._is_greedy(stream, 1) or (len(self._open) >= MAX_STREAMS and silent is None)
        if busy and len(self._open) >= 2 * MAX_STREAMS:
            return  # too many even to be told that they are
        self._open[stream] = self._clock.monotonic_s()
        try:
            if silent is not None and not busy:
                del self._open[silent]
                await silent.close()
            await self._answer_all(stream, busy=busy)
        except (NetworkError, PeerError) as error:
            log.debug("status stream from %s ended: %s", stream.peer[-8:], error)
        finally:
            self._open.pop(stream, None)

    async def close(self) -> None:
        """End every stream, and take none any more: whoever watches this server sees it go."""
        self._closed = True
        await asyncio.gather(*(stream.close() for stream in self._open))

    def _is_greedy(self, stream: Stream, factor: int) -> bool:
        """True if its peer, or its address, has ``factor`` times the streams that one may have."""
        place = household(stream.address)
        if place and sum(household(other.address) == place for other in self._open) >= factor * MAX_STREAMS_PER_ADDRESS:
            return True
        return sum(other.peer == stream.peer for other in self._open) >= factor * MAX_STREAMS_PER_PEER

    def _silent(self) -> Stream | None:
        """Which stream asked nothing for longest, if that is long enough."""
        stream, asked_s = min(self._open.items(), key=lambda item: item[1])
        return stream if self._clock.monotonic_s() - asked_s >= SILENT_S else None

    def _is_shut_out(self, peer: PeerId) -> bool:
        return self._shut_until_s.get(peer, 0.0) > self._clock.monotonic_s()

    async def _answer_all(self, stream: Stream, *, busy: bool) -> None:
        asked = FrameStream(stream, Channel.STATUS, Role.LISTENER, max_frame_bytes=MAX_REQUEST_BYTES)
        impatience = 0
        while impatience < MAX_IMPATIENCE:
            request = (await asked.receive_within(IDLE_S, "question how this server is")).message
            if not isinstance(request, AskStatus):
                raise ProtocolViolation("a status stream carries one question", peer=stream.peer)
            if stream in self._open:
                self._open[stream] = self._clock.monotonic_s()
            if self._report is None:
                await _send(asked, Refused("statistics are off"))
                return
            if busy:
                await _send(asked, Busy(BUSY_S, "too many streams ask how this server is"))
                return
            if (wait_s := self._wait_s(stream)) > 0:
                impatience += 1
                await _send(asked, Busy(wait_s, "asked too often"))
                await self._clock.sleep(PACE_S)
            else:
                impatience = 0
                await _send(asked, self._latest(self._report))
        self._shut_out(stream.peer)

    def _wait_s(self, stream: Stream) -> float:
        """0 if there is an answer now, else how long to wait for one."""
        now_s, place = self._clock.monotonic_s(), household(stream.address)
        wait_s = self._each.take(stream.peer, now_s)
        if wait_s <= 0 and place:
            wait_s = self._each_place.take(place, now_s)
        return wait_s if wait_s > 0 else self._all.take("all", now_s)

    def _shut_out(self, peer: PeerId) -> None:
        now_s = self._clock.monotonic_s()
        if len(self._shut_until_s) >= MANY_NAMES:
            self._shut_until_s = {name: until_s for name, until_s in self._shut_until_s.items() if until_s > now_s}
        self._shut_until_s[peer] = now_s + SHUT_OUT_S

    def _latest(self, make: Callable[[], StatusReport]) -> StatusReport:
        now_s = self._clock.monotonic_s()
        if self._made is None or now_s - self._made[0] >= FRESH_S:
            self._made = now_s, make()
        return self._made[1]


async def _send(asked: FrameStream, message: Message) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await asked.send(message)
    except TimeoutError as error:
        raise PeerUnreachableError(f"peer {asked.peer[-8:]} does not take the answer it asked for") from error
