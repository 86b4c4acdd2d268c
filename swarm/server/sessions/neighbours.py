"""The servers before and after a session's stage: the links from the one and to the other, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from swarm.runtime.tasks import Tasks
from swarm.server.sessions.downlink import Downlink
from swarm.transport.framing import FrameStream
from swarm.wire.fields import Lane
from swarm.wire.messages import Upstream

Tell = Callable[[str, str], Awaitable[None]]
"""Tells the client that a peer was lost, and why."""


class Neighbours:
    """Who pushes rows here, and to whom they go. The client hears of each loss once, and again if a heal left it.

    ``generation`` is the one in which the client arranged the links from ``upstream``; it is ``client`` itself where
    the chain begins.
    """

    def __init__(self, client: str, upstream: Upstream, generation: int, tell: Tell) -> None:
        self.upstream = upstream
        self.generation = generation
        self.attached: dict[Lane, FrameStream] = {}
        self.downlink: Downlink | None = None
        self._client = client
        self._tell = tell
        self._upstream_lost = ""
        self._leading: asyncio.Task[None] | None = None

    @property
    def from_client(self) -> bool:
        """True if the client itself pushes rows here."""
        return self.upstream.peer == self._client

    def lead_to(self, downlink: Downlink, tasks: Tasks) -> None:
        """From now on rows go to this next server; the links to the one before are closed."""
        if self._leading is not None:
            self._leading.cancel()
        self.downlink = downlink
        self._leading = tasks.spawn(downlink.run(partial(self._downlink_lost, downlink)), name="lead on")

    def be_fed_by(self, upstream: Upstream, generation: int, tasks: Tasks) -> None:
        """From now on rows come from ``upstream``; the links from the one before are closed."""
        for link in self.attached.values():
            tasks.spawn(link.close(), name="close a replaced link")
        self.attached = {}
        self.upstream, self.generation, self._upstream_lost = upstream, generation, ""

    async def upstream_lost(self, link: FrameStream, reason: str) -> None:
        """A link from the server before is gone, unless it was closed because that server has been replaced."""
        if link in self.attached.values() and not self._upstream_lost:
            self._upstream_lost = reason
            await self._tell(self.upstream.peer, reason)

    async def remind(self, *, before: bool, after: bool) -> None:
        """Tell the client again if the server before or after was lost: in a new generation the old word is void."""
        if before and self._upstream_lost:
            await self._tell(self.upstream.peer, self._upstream_lost)
        if after and self.downlink is not None:
            await self.downlink.remind(self._tell)

    async def close(self) -> None:
        """Close the links from the server before; those to the next one end with their task."""
        for link in self.attached.values():
            await link.close()

    async def _downlink_lost(self, downlink: Downlink, reason: str) -> None:
        if self.downlink is downlink:
            await self._tell(downlink.peer, reason)
