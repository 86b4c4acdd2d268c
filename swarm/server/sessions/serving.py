"""Sessions as streams: one control stream from the client, two links from whoever pushes rows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from swarm.core.errors import BusyError, CapacityError, NetworkError, PeerError, ProtocolViolation, SwarmError
from swarm.runtime.tasks import Tasks
from swarm.server.config import ServerConfig
from swarm.server.queueing.batcher import as_swarm_error
from swarm.server.record.fetching import Fetching
from swarm.server.record.signing import Desk
from swarm.server.reports.vitals import Vitals
from swarm.server.sessions.downlink import Dialer, Downlink
from swarm.server.sessions.idleness import Idleness
from swarm.server.sessions.pacing import PACE_EVERY_S
from swarm.server.sessions.passage import Passage
from swarm.server.sessions.reception import Reception
from swarm.server.sessions.relinking import Relinker
from swarm.server.sessions.session import ServerSession
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream
from swarm.wire.evidence import Countersign, Settle
from swarm.wire.fields import Lane
from swarm.wire.messages import Busy, Close, Failed, Hello, Message, Noop, Open, Refused, Relink
from swarm.wire.session import Channel, Role

log = logging.getLogger(__name__)

MAX_CONTROL_FRAME_BYTES = 64 * 1024
PACE_S = 0.01
"""After a frame that asks for nothing the next one of its stream waits this long: a flood of no-ops stays cheap."""


class Serving:
    """Serves control streams and links. ``changed`` is told whenever a session opens or closes."""

    def __init__(
        self,
        config: ServerConfig,
        vitals: Vitals,
        dialer: Dialer,
        changed: Callable[[], None],
        desk: Desk | None = None,
    ) -> None:
        self.reception = Reception(config, vitals, dialer, desk)
        self.idleness = Idleness(config, vitals.clock)
        self.fetching = Fetching(self.reception.shelf, vitals.table, vitals.clock)
        self._relinker = Relinker(config, self.reception, vitals.table, vitals.clock)
        self._config = config
        self._vitals = vitals
        self._changed = changed

    # -- the client -----------------------------------------------------------------------------------------

    async def serve_control(self, stream: Stream) -> None:
        """A client's control stream, from OPEN to the end of the session."""
        control = FrameStream(
            stream, Channel.CONTROL, Role.LISTENER, max_frame_bytes=MAX_CONTROL_FRAME_BYTES, uplink=self._vitals.uplink
        )
        try:
            await self._serve_open(control, await self._opening(control))
        except (NetworkError, PeerError) as error:
            log.debug("control stream from %s ended: %s", control.peer[-8:], error)

    async def _opening(self, control: FrameStream) -> Open:
        with self.reception.gate.knock(control.peer):
            opened = (await control.receive_within(self._config.open_timeout_s, "OPEN")).message
        if not isinstance(opened, Open):
            raise ProtocolViolation("a control stream must begin with OPEN", peer=control.peer)
        return opened

    async def _serve_open(self, control: FrameStream, opened: Open) -> None:
        try:
            session, downlink = self.reception.admit(control, opened)
        except BusyError as error:
            self._vitals.figures.refused += 1
            await control.send(Busy(error.retry_after_s, str(error)))
            return
        except (CapacityError, PeerError) as error:
            self._vitals.figures.refused += 1
            await control.send(Refused(str(error)))
            return
        try:
            async with self._registered(session, downlink):
                await control.send(self.reception.accept())
                if not await self._closed_by_client(session):
                    self._vitals.batcher.forget(session)
                    await session.say_goodbye()
        finally:
            session.gone.set()

    async def _closed_by_client(self, session: ServerSession) -> bool:
        """Wait until the session is over: True if its client closed it, False if we end it.

        Raises as ``receive`` does if the client goes away or breaks the protocol.
        """
        listening = asyncio.create_task(self._listen(session))
        try:
            over: set[asyncio.Future[Any]] = {listening, session.ended}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if session.ended.done():
                return False
            listening.result()
            return True
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, session: ServerSession) -> None:
        """Do what the client says until it closes the session; its no-ops are no use of it."""
        clock = self._vitals.clock
        while not isinstance(message := (await session.control.receive()).message, Close):
            try:
                await self._obey(session, message)
            except ProtocolViolation as error:
                log.warning("session %s: %s", session.key, error)
                session.end(Failed("client", str(error)))
                return
            if not isinstance(message, Noop):
                self.idleness.touch(session, clock.monotonic_s())

    async def _obey(self, session: ServerSession, message: Message) -> None:
        notary = session.kept.notary
        if isinstance(message, Relink):
            await self._relinker.relink(session, message)
        elif isinstance(message, Settle | Countersign) and notary is None:
            raise ProtocolViolation(f"{type(message).__name__} where no receipts are signed")
        elif isinstance(message, Settle) and notary is not None:
            await notary.settle(message.keep)
        elif isinstance(message, Countersign) and notary is not None:
            notary.countersigned(message)
        else:
            await self._vitals.clock.sleep(PACE_S)

    @asynccontextmanager
    async def _registered(self, session: ServerSession, downlink: Downlink | None) -> AsyncIterator[None]:
        """The session's whole life: in the table, its tasks running; on the way out everything is given back."""
        vitals = self._vitals
        vitals.table.add(session)
        self.reception.gate.entered(session)
        self._changed()
        now_s = vitals.clock.monotonic_s()
        self.idleness.touch(session, now_s)
        vitals.figures.opened(session, session.opened, now_s)
        tasks = Tasks(partial(_session_broke, session))
        session.start(tasks, partial(self._left, session), partial(vitals.batcher.notify, session))
        tasks.spawn(self._keep_pace(session), name="pace")
        if downlink is not None:
            session.lead_to(downlink)
        try:
            yield
        finally:
            session.closed = True
            self.reception.shelf.expect(session.key)
            vitals.table.remove(session)
            self.reception.gate.left(session)
            self.idleness.forget(session)
            vitals.figures.closed(session, vitals.clock.monotonic_s())
            vitals.batcher.forget(session)
            if not len(vitals.table):
                vitals.meter.rest()
            self._changed()
            await tasks.close()
            self.reception.shelf.put(session.key, session.opened.commitment, session.kept)
            await session.neighbours.close()

    def _left(self, session: ServerSession, job: Passage) -> None:
        """A step has left: there may be room for another."""
        figures, now_s, decode = self._vitals.figures, self._vitals.clock.monotonic_s(), job.is_decode
        session.paces.left(now_s - job.arrived_s, decode=decode)
        if not decode or job.begins_answer:
            figures.passed(session)
        if decode:
            arrived_s, compute_s, computed_s = job.arrived_s, job.compute_s, job.computed_s
            figures.left(session, now_s, arrived_s=arrived_s, compute_s=compute_s, computed_s=computed_s)
        self._vitals.batcher.notify(session)

    async def _keep_pace(self, session: ServerSession) -> None:
        """Tell the client every second how long its steps take, also while one is stuck in the engine."""
        clock = self._vitals.clock
        while True:
            await clock.sleep(PACE_EVERY_S)
            oldest = session.oldest
            held_s = None if oldest is None else clock.monotonic_s() - oldest.arrived_s
            pace = session.paces.pace(held_s)
            if pace is not None:
                await session.report(pace)

    # -- the server before ----------------------------------------------------------------------------------

    async def serve_link(self, stream: Stream) -> None:
        """A link from whoever pushes rows, from its hello on."""
        link = FrameStream(stream, Channel.LINK, Role.LISTENER)
        try:
            hello = (await link.receive_within(self._config.hello_wait_s, "hello")).message
            if not isinstance(hello, Hello):
                raise ProtocolViolation("a link must begin with a hello", peer=link.peer)
            session = await self._vitals.table.meet(hello, link)
        except SwarmError as error:
            log.info("refused a link from %s: %s", link.peer[-8:], error)
            return
        try:
            await self._take_steps(session, link, hello.lane)
        except ProtocolViolation as error:
            if session.neighbours.attached.get(hello.lane) is link:
                log.warning("session %s: %s", session.key, error)
                session.fail(error)
        except NetworkError as error:
            await session.neighbours.upstream_lost(link, str(error))

    async def _take_steps(self, session: ServerSession, link: FrameStream, lane: Lane) -> None:
        """Read steps until the session closes, or goes on with links from another server."""
        clock = self._vitals.clock
        while not session.closed:
            frame = await link.receive()
            if session.neighbours.attached.get(lane) is not link:
                return
            now_s = clock.monotonic_s()
            if session.offer(frame, lane, now_s):
                self.idleness.touch(session, now_s)
                self._vitals.batcher.notify(session)
                await session.room()
            else:
                await clock.sleep(PACE_S)


def _session_broke(session: ServerSession, _: str, error: Exception) -> None:
    wrapped = as_swarm_error(error, "the server broke")
    log.warning("session %s failed: %s", session.key, wrapped)
    log.debug("where it failed", exc_info=error)
    session.fail(wrapped)
