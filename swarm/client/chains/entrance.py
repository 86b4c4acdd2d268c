"""The client's own links to the first server of a chain, one for each lane."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarm.client.chains.diagnosis import LINK, Loss
from swarm.client.chains.member import Ears, Member, SessionParts, dial
from swarm.core.errors import NetworkError, PeerLostError, SwarmError
from swarm.transport.framing import FrameStream
from swarm.wire.fields import LANES, Lane
from swarm.wire.messages import Hello, Replay, Step
from swarm.wire.session import Channel


class Entrance:
    """Both lanes to ``member``, greeted in ``generation``."""

    def __init__(self, member: Member, ears: Ears) -> None:
        self.member = member
        self.broken = False
        self._ears = ears
        self._links: dict[Lane, FrameStream] = {}
        self._watchers: list[asyncio.Task[None]] = []

    async def open(self, parts: SessionParts, generation: int, dial_s: float) -> None:
        """Dial both lanes at once and say hello; ``close`` what is open already if this raises."""
        outcomes = await asyncio.gather(
            *(self._greet(parts, generation, lane, dial_s) for lane in LANES), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        self._watchers = [asyncio.create_task(self._watch(link), name="link") for link in self._links.values()]

    async def send(self, message: Step | Replay, payload: Sequence[bytes | memoryview], lane: Lane) -> None:
        """Push rows in. That the link is broken is told to ``ears`` and not to the caller."""
        try:
            await self._links[lane].send(message, *payload)
        except NetworkError as error:
            self._lose(str(error))

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self.broken = True
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _greet(self, parts: SessionParts, generation: int, lane: Lane, dial_s: float) -> None:
        link = await dial(parts.transport, self.member.stage, Channel.LINK, dial_s)
        self._links[lane] = link
        me, number, secret = parts.transport.peer_id, self.member.number, self.member.secret
        await link.send(Hello(me, parts.names.session, number, secret, lane, generation))

    async def _watch(self, link: FrameStream) -> None:
        """Nothing but no-ops comes this way, so its end is the news."""
        try:
            while True:
                await link.receive()
        except SwarmError as error:
            self._lose(f"server {self.member.stage.short} closed the link: {error}")

    def _lose(self, reason: str) -> None:
        if not self.broken:
            self.broken = True
            self._ears.on_loss(self.member, LINK, Loss("gone", PeerLostError(reason, peer=self.member.peer)))
