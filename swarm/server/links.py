"""Streams between neighbours: hellos coming in, and our own going out to the next server."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from swarm.core.announcement import Announcement
from swarm.core.errors import BusyError, MisuseError, NetworkError, ProtocolViolation
from swarm.core.ids import PeerId, SessionKey
from swarm.server.config import ServerConfig
from swarm.server.session import ServerSession
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.transport.uplink import UplinkMeter
from swarm.wire.messages import LANES, Hello, Lane, LinkLost
from swarm.wire.session import Channel, Role


class Rendezvous:
    """The table of live sessions, and the hellos that came before their OPEN."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._sessions: dict[SessionKey, ServerSession] = {}
        self._waiting: dict[SessionKey, list[asyncio.Future[ServerSession]]] = {}
        self._waiting_by: Counter[PeerId] = Counter()
        self._pushers: dict[asyncio.Future[ServerSession], PeerId] = {}  # of waiting hellos, in order of arrival

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> tuple[ServerSession, ...]:
        return tuple(self._sessions.values())

    @property
    def waiting_hellos(self) -> int:
        """Hellos whose OPEN has not come yet."""
        return self._waiting_by.total()

    def of_client(self, client: PeerId) -> int:
        """Live sessions of one peer id."""
        return sum(1 for key in self._sessions if key.client == client)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def add(self, session: ServerSession) -> None:
        """Register an accepted session and wake hellos that wait for it."""
        self._sessions[session.key] = session
        for waiting in self._waiting.pop(session.key, ()):
            if not waiting.done():
                waiting.set_result(session)

    def remove(self, session: ServerSession) -> None:
        self._sessions.pop(session.key, None)

    async def meet(self, hello: Hello, link: FrameStream) -> ServerSession:
        """Attach ``link`` to the session its hello names, and return that; waits a bounded time for the OPEN.

        Raises ``ProtocolViolation`` if no OPEN comes, or if the secret, the pushing peer or the lane is not the one
        the session's client named, ``BusyError`` if too many of this peer's hellos wait already, or too many
        in all and this peer has the most.
        """
        key = SessionKey(PeerId(hello.client), hello.session, hello.stage)
        session = self._sessions.get(key) or await self._await_open(key, link.peer)
        known = hmac.compare_digest(hello.secret, session.opened.upstream.secret)
        if not known or session.opened.upstream.peer != link.peer:
            raise ProtocolViolation("a hello that the session's client did not arrange", peer=link.peer)
        if hello.lane in session.attached:
            raise ProtocolViolation("a second hello for one lane", peer=link.peer)
        if session.closed:
            raise ProtocolViolation("a hello for a session that has closed", peer=link.peer)
        session.attached[hello.lane] = link
        link.limit_frames(session.max_step_frame_bytes)
        return session

    async def _await_open(self, key: SessionKey, pusher: PeerId) -> ServerSession:
        config = self._config
        if self._waiting_by[pusher] >= config.max_waiting_hellos_per_peer:
            raise self._too_many()
        if self.waiting_hellos >= config.max_waiting_hellos:
            self._turn_away()
        waiting: asyncio.Future[ServerSession] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(waiting)
        self._waiting_by[pusher] += 1
        self._pushers[waiting] = pusher
        try:
            async with asyncio.timeout(config.hello_wait_s):
                return await waiting
        except TimeoutError as error:
            raise ProtocolViolation("a hello for a session that was never opened", peer=pusher) from error
        finally:
            del self._pushers[waiting]
            self._waiting_by[pusher] -= 1
            if self._waiting_by[pusher] == 0:
                del self._waiting_by[pusher]
            self._give_up(key, waiting)

    def _turn_away(self) -> None:
        """Make room for a hello: the oldest of whoever has the most has waited long enough."""
        busiest = max(self._waiting_by, key=self._waiting_by.__getitem__)
        for waiting, pusher in self._pushers.items():
            if pusher == busiest and not waiting.done():
                waiting.set_exception(self._too_many())
                return

    def _too_many(self) -> BusyError:
        return BusyError("too many hellos wait for their OPEN", retry_after_s=self._config.hello_wait_s)

    def _give_up(self, key: SessionKey, waiting: asyncio.Future[ServerSession]) -> None:
        others = [other for other in self._waiting.get(key, ()) if other is not waiting]
        if others:
            self._waiting[key] = others
        else:
            self._waiting.pop(key, None)


@dataclass(frozen=True, slots=True)
class Dialer:
    """How to open links; ``uplink`` measures what they carry."""

    transport: Transport
    timeout_s: float
    uplink: UplinkMeter


async def dial_downstream(
    session: ServerSession, following: Announcement, dialer: Dialer, connected: Callable[[], None]
) -> None:
    """Open both lanes to the next server and greet it; ``connected`` is called after each.

    On failure the client is told which peer was lost.
    """
    opened, place = session.opened, session.opened.downstream
    if place is None:
        raise MisuseError("the last stage has no next server")

    async def greet(lane: Lane) -> FrameStream:
        stream = await dialer.transport.dial(
            following.peer_id, Channel.LINK.protocol, addresses=following.addresses, timeout_s=dialer.timeout_s
        )
        link = FrameStream(stream, Channel.LINK, Role.DIALER, uplink=dialer.uplink)
        try:
            await link.send(Hello(session.key.client, opened.session, place.stage, place.secret, lane))
        except BaseException:
            await link.close()
            raise
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
        connected()
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
