"""Links coming in: which session a hello belongs to, and how long one that comes early may wait."""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from dataclasses import dataclass, field

from swarm.core.errors import BusyError, ProtocolViolation
from swarm.core.ids import PeerId, SessionKey
from swarm.server.config import ServerConfig
from swarm.server.sessions.session import ServerSession
from swarm.transport.framing import FrameStream
from swarm.wire.messages import Hello


@dataclass(eq=False, slots=True)
class _Waiting:
    """A hello whose session is not open yet, or not yet in its generation."""

    pusher: PeerId
    generation: int
    session: asyncio.Future[ServerSession] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Rendezvous:
    """The table of live sessions, and the hellos that came before their OPEN."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._sessions: dict[SessionKey, ServerSession] = {}
        self._waiting: dict[SessionKey, list[_Waiting]] = {}
        self._waiting_by: Counter[PeerId] = Counter()
        self._arrived: dict[_Waiting, None] = {}  # in order of arrival

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> tuple[ServerSession, ...]:
        return tuple(self._sessions.values())

    @property
    def waiting_hellos(self) -> int:
        """Hellos whose OPEN, or RELINK, has not come yet."""
        return self._waiting_by.total()

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def add(self, session: ServerSession) -> None:
        """Register an accepted session and wake hellos that wait for it."""
        self._sessions[session.key] = session
        self.wake(session)

    def wake(self, session: ServerSession) -> None:
        """The session has reached a generation that hellos may wait for."""
        for waiting in self._waiting.get(session.key, ()):
            if waiting.generation <= session.generation and not waiting.session.done():
                waiting.session.set_result(session)

    def remove(self, session: ServerSession) -> None:
        self._sessions.pop(session.key, None)

    async def meet(self, hello: Hello, link: FrameStream) -> ServerSession:
        """Attach ``link`` to the session its hello names, and return that.

        Waits a bounded time for the OPEN, or for the RELINK of a later generation. Raises ``ProtocolViolation`` if
        none comes, or if the generation, the secret, the pushing peer or the lane is not the one the session's client
        named, ``BusyError`` if too many of this peer's hellos wait already, or too many in all and this peer has the
        most.
        """
        key = SessionKey(PeerId(hello.client), hello.session, hello.stage)
        session = self._sessions.get(key)
        if session is None or hello.generation > session.generation:
            session = await self._await(key, _Waiting(link.peer, hello.generation))
        near = session.neighbours
        known = hmac.compare_digest(hello.secret, near.upstream.secret)
        if not known or near.upstream.peer != link.peer or near.generation != hello.generation:
            raise ProtocolViolation("a hello that the session's client did not arrange", peer=link.peer)
        if hello.lane in near.attached:
            raise ProtocolViolation("a second hello for one lane", peer=link.peer)
        if session.closed:
            raise ProtocolViolation("a hello for a session that has closed", peer=link.peer)
        near.attached[hello.lane] = link
        link.limit_frames(session.max_step_frame_bytes)
        return session

    async def _await(self, key: SessionKey, waiting: _Waiting) -> ServerSession:
        config, pusher = self._config, waiting.pusher
        if self._waiting_by[pusher] >= config.max_waiting_hellos_per_peer:
            raise self._too_many()
        if self.waiting_hellos >= config.max_waiting_hellos:
            self._turn_away()
        self._waiting.setdefault(key, []).append(waiting)
        self._waiting_by[pusher] += 1
        self._arrived[waiting] = None
        try:
            async with asyncio.timeout(config.hello_wait_s):
                return await waiting.session
        except TimeoutError as error:
            raise ProtocolViolation("a hello for a session that was never opened", peer=pusher) from error
        finally:
            del self._arrived[waiting]
            self._waiting_by[pusher] -= 1
            if self._waiting_by[pusher] == 0:
                del self._waiting_by[pusher]
            self._waiting[key].remove(waiting)
            if not self._waiting[key]:
                del self._waiting[key]

    def _turn_away(self) -> None:
        """Make room for a hello: the oldest of whoever has the most has waited long enough."""
        busiest = max(self._waiting_by, key=self._waiting_by.__getitem__)
        for waiting in self._arrived:
            if waiting.pusher == busiest and not waiting.session.done():
                waiting.session.set_exception(self._too_many())
                return

    def _too_many(self) -> BusyError:
        return BusyError("too many hellos wait for their OPEN", retry_after_s=self._config.hello_wait_s)
