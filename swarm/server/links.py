"""Streams between neighbours: hellos coming in, and our own going out to the next server."""

from __future__ import annotations

import asyncio
import hmac

from swarm.core.errors import BusyError, NetworkError, ProtocolViolation
from swarm.core.ids import PeerId, SessionKey
from swarm.core.records import Announcement
from swarm.server.config import ServerConfig
from swarm.server.session import ServerSession
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.wire.messages import LANES, Hello, Lane, LinkLost
from swarm.wire.session import Channel, Role


class Rendezvous:
    """The table of live sessions, and the hellos that came before their OPEN."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._sessions: dict[SessionKey, ServerSession] = {}
        self._waiting: dict[SessionKey, asyncio.Event] = {}
        self._waiting_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> tuple[ServerSession, ...]:
        return tuple(self._sessions.values())

    def of_client(self, client: PeerId) -> int:
        """Live sessions of one peer id."""
        return sum(1 for key in self._sessions if key.client == client)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def add(self, session: ServerSession) -> None:
        """Register an accepted session and wake hellos that wait for it."""
        self._sessions[session.key] = session
        if session.key in self._waiting:
            self._waiting[session.key].set()

    def remove(self, session: ServerSession) -> None:
        self._sessions.pop(session.key, None)

    async def meet(self, hello: Hello, pusher: PeerId) -> ServerSession:
        """The session a hello belongs to; waits a bounded time for its OPEN.

        Raises ``ProtocolViolation`` if no OPEN comes, or if the secret, the pushing peer or the lane is not the one
        the session's client named.
        """
        key = SessionKey(PeerId(hello.client), hello.session, hello.stage)
        session = self._sessions.get(key) or await self._await_open(key)
        known = hmac.compare_digest(hello.secret, session.opened.secret_in)
        if not known or session.opened.upstream != pusher:
            raise ProtocolViolation("a hello that the session's client did not arrange", peer=pusher)
        if hello.lane in session.attached:
            raise ProtocolViolation("a second hello for one lane", peer=pusher)
        session.attached.add(hello.lane)
        return session

    async def _await_open(self, key: SessionKey) -> ServerSession:
        if self._waiting_count >= self._config.max_waiting_hellos:
            raise BusyError("too many hellos wait for their OPEN", retry_after_s=self._config.hello_wait_s)
        event = self._waiting.setdefault(key, asyncio.Event())
        self._waiting_count += 1
        try:
            async with asyncio.timeout(self._config.hello_wait_s):
                await event.wait()
        except TimeoutError as error:
            raise ProtocolViolation("a hello for a session that was never opened") from error
        finally:
            self._waiting_count -= 1
            if not event.is_set() or self._waiting_count == 0:
                self._waiting.pop(key, None)
        session = self._sessions.get(key)
        if session is None:
            raise ProtocolViolation("a hello for a session that has closed")
        return session


async def dial_downstream(
    session: ServerSession, following: Announcement, transport: Transport, timeout_s: float
) -> None:
    """Open both lanes to the next server and greet it. On failure the client is told which peer was lost."""
    opened = session.opened

    async def greet(lane: Lane) -> FrameStream:
        stream = await transport.dial(
            following.peer_id, Channel.LINK.protocol, addresses=following.addresses, timeout_s=timeout_s
        )
        link = FrameStream(stream, Channel.LINK, Role.DIALER)
        hello = Hello(session.key.client, opened.session, opened.stage + 1, opened.secret_out, lane)
        await link.send(hello)
        return link

    async def attach(lane: Lane) -> None:
        future = session.links[lane]
        try:
            link = await greet(lane)
        except NetworkError as error:
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as seen: a session that closes first never awaits it
            await session.report(LinkLost(following.peer, str(error)))
            return
        if future.done():
            await link.close()
            return
        future.set_result(link)
        await watch(session, link)

    await asyncio.gather(*(attach(lane) for lane in LANES))


async def watch(session: ServerSession, link: FrameStream) -> None:
    """Read an outbound link until it ends. Nothing but no-ops comes this way, so its end is the news."""
    try:
        while True:
            await link.receive()
    except (NetworkError, ProtocolViolation) as error:
        if not session.closed:
            await session.report(LinkLost(link.peer, str(error)))
    finally:
        await link.close()
