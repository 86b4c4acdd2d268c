"""A server that tells how it is over STATUS streams, and whoever asks it, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from virtual_time import LoopClock

from swarm.core.errors import BusyError, PeerLostError
from swarm.core.keys import Identity
from swarm.server.reports.figures import Figures
from swarm.server.reports.telling import (
    Telling,
)
from swarm.transport.framing import FrameStream
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.transport.protocol import Stream
from swarm.transport.status import StatusLine
from swarm.wire.frames import encode_head
from swarm.wire.messages import Message
from swarm.wire.session import Channel, Role
from swarm.wire.status import MAX_LINKS, AskStatus, LinkFigures, StatusReport

SERVER = Identity(bytes([255]) * 32).peer_id
ASK = encode_head(AskStatus())
LINKS = tuple(LinkFigures("\u2603" * 64, 1.0, 1.0, 1.0) for _ in range(MAX_LINKS))
"""Make a report large."""


class Scene:
    """A server that tells how it is, and as many askers as are made."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.server = self.network.transport(SERVER)
        self.figures = Figures(self.now_s)
        self.telling = Telling(self._report, self.clock)
        self.made = 0
        self.links: tuple[LinkFigures, ...] = ()
        self._askers = 0

    def _report(self) -> StatusReport:
        self.made += 1
        return self.figures.report(self.now_s, receipts=0, sent_bytes=0, links=self.links)

    def asker(self, place: str = "") -> MemoryTransport:
        self._askers += 1
        identity = Identity(self._askers.to_bytes(32, "big"))
        if place:
            self.network.places[identity.peer_id] = place
        return self.network.transport(identity)

    async def listen(self) -> None:
        await self.server.listen(Channel.STATUS.protocol, self.telling.serve)

    async def line(self, asker: MemoryTransport | None = None) -> StatusLine:
        return await StatusLine.open(asker or self.asker(), SERVER)

    async def frames(self, asker: MemoryTransport | None = None) -> FrameStream:
        """A stream of somebody who need not keep to any rule."""
        stream = await (asker or self.asker()).dial(SERVER, Channel.STATUS.protocol)
        return FrameStream(stream, Channel.STATUS, Role.DIALER)

    async def hostile(self, answer: Callable[[FrameStream], Awaitable[None]]) -> None:
        """Put another in the server's place, which answers every question by ``answer``."""

        async def serve(stream: Stream) -> None:
            frames = FrameStream(stream, Channel.STATUS, Role.LISTENER)
            frames._machine.sent = lambda message: None  # type: ignore[method-assign,assignment]
            assert isinstance((await frames.receive()).message, AskStatus)
            await answer(frames)

        await self.server.listen(Channel.STATUS.protocol, serve)

    async def end(self) -> None:
        """Everything down, no task and no stream left."""
        await self.network.close()
        await asyncio.sleep(0.01)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others
        assert not self.network._streams
        assert not self.telling._open

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()


async def answers(line: StatusLine, seconds: float, gap_s: float) -> tuple[int, int]:
    """``(answers, refusals for asking too early)`` of a line that asks every ``gap_s``."""
    clock, told, waits_s = LoopClock(), 0, []
    until_s = clock.monotonic_s() + seconds
    while clock.monotonic_s() < until_s:
        try:
            await line.ask()
            told += 1
        except BusyError as error:
            waits_s.append(error.retry_after_s)
        await clock.sleep(gap_s)
    assert all(wait_s > 0 for wait_s in waits_s)
    return told, len(waits_s)


async def heard(frames: FrameStream) -> list[Message]:
    """Everything until the stream ends."""
    messages = []
    try:
        while True:
            messages.append((await frames.receive()).message)
    except PeerLostError:
        return messages
    finally:
        await frames.close()
