"""The way to the next server of a session: two lanes, and a beat beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from swarm.core.announcement import Announcement
from swarm.core.errors import NetworkError, PeerLostError, SwarmError
from swarm.core.ids import PeerId
from swarm.runtime.tasks import Tasks
from swarm.server.record.replay_log import Encoding
from swarm.server.reports.ways import Ways
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.transport.pulse import Hold, PulseKeeper
from swarm.wire.fields import LANES, Lane
from swarm.wire.messages import Hello, Replay, Step
from swarm.wire.session import Channel, Role

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Dialer:
    """How to open links; ``pulse`` keeps a beat beside them, ``ways`` measures what they carry."""

    transport: Transport
    timeout_s: float
    pulse: PulseKeeper
    ways: Ways


class Downlink:
    """Links to one next server, whom ``hello`` (of any lane) greets. Once lost they stay lost: the client decides.

    ``encoding`` is what that server reads.
    """

    def __init__(self, following: Announcement, hello: Hello, encoding: Encoding, dialer: Dialer) -> None:
        self.encoding = encoding
        self.lost = ""
        """Why nothing gets there any more, or empty."""
        self._following = following
        self._hello = hello
        self._dialer = dialer
        loop = asyncio.get_running_loop()
        self._links: dict[Lane, asyncio.Future[FrameStream]] = {lane: loop.create_future() for lane in LANES}
        self._broken = asyncio.Event()
        self._hold: Hold | None = None
        self._silence = ""
        self._silent = asyncio.Event()

    @property
    def peer(self) -> PeerId:
        return self._following.peer_id

    async def send(self, lane: Lane, message: Step | Replay, *payload: bytes | memoryview) -> None:
        """Send once the lane is open; ``NetworkError`` if the link is lost."""
        future = self._links[lane]
        # Shielded: a sender that is cancelled must not take the lane away from the others.
        link = future.result() if future.done() else await asyncio.shield(future)
        try:
            await link.send(message, *payload)
        except NetworkError as error:
            self.lose(str(error))
            raise

    def lose(self, reason: str) -> None:
        """Nothing gets there any more; the first reason counts."""
        if self.lost:
            return
        self.lost = reason or "lost"
        self._broken.set()
        for future in self._links.values():
            if not future.done():
                future.set_exception(PeerLostError(self.lost, peer=self.peer))
                future.exception()  # marks it as seen: perhaps nobody sends any more

    async def run(self, tell: Callable[[str], Awaitable[None]]) -> None:
        """Dial, then watch and keep a beat until the link is lost, which ``tell`` is told with the reason.

        Cancelled, it closes the links and says nothing. A silence is told too, once, and ends nothing.
        """
        async with Tasks(self._broke) as work:
            for lane in LANES:
                work.spawn(self._open(lane), name="dial the next server")
            work.spawn(self._tell_silence(tell), name="report a silence")
            try:
                await self._broken.wait()
                await tell(self.lost)
            finally:
                self.lose("the session has ended, or goes on to another server")
                if self._hold is not None:
                    self._dialer.pulse.release(self._hold)

    async def remind(self, tell: Callable[[str, str], Awaitable[None]]) -> None:
        """Say again that the link is lost, if it is, and that its peer is silent as soon as that is known anew."""
        if self.lost:
            await tell(self.peer, self.lost)
        elif self._hold is not None:
            self._dialer.pulse.release(self._hold)
            self._hold = None
            self._beat()

    async def _open(self, lane: Lane) -> None:
        """Dial and greet, then read until the end: nothing but no-ops comes this way, so its end is the news."""
        dialer, following = self._dialer, self._following
        stream = await dialer.transport.dial(
            following.peer_id, Channel.LINK.protocol, addresses=following.addresses, timeout_s=dialer.timeout_s
        )
        link = FrameStream(stream, Channel.LINK, Role.DIALER, uplink=dialer.ways.meter(self.peer))
        try:
            await link.send(msgspec.structs.replace(self._hello, lane=lane))
            if not self.lost:
                self._links[lane].set_result(link)
                self._beat()
            while True:
                await link.receive()
        finally:
            await link.close()

    def _broke(self, what: str, error: Exception) -> None:
        if not isinstance(error, SwarmError):
            log.warning("failed to %s: %s", what, error, exc_info=error)
        self.lose(str(error))

    def _beat(self) -> None:
        if self._hold is None:
            self._hold = self._dialer.pulse.hold(self.peer, self._following.addresses, self._fell_silent)

    def _fell_silent(self, reason: str) -> None:
        self._silence = reason
        self._silent.set()

    async def _tell_silence(self, tell: Callable[[str], Awaitable[None]]) -> None:
        while True:
            await self._silent.wait()
            self._silent.clear()
            await tell(self._silence)
