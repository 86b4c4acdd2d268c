"""The server: admits sessions, meets links, computes, announces, and leaves in good order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from swarm.core.announcement import Announcement, State
from swarm.core.clock import Clock
from swarm.core.errors import (
    BusyError,
    CapacityError,
    IdentityInUseError,
    NetworkError,
    PeerError,
    ProtocolViolation,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import SessionKey
from swarm.engine.executor import SpanEngine
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.runtime.tasks import Tasks
from swarm.scheduling.coordinates import START
from swarm.server.admission import check_following, check_open
from swarm.server.announcer import Announcer
from swarm.server.batcher import Batcher, as_swarm_error
from swarm.server.config import ServerConfig
from swarm.server.links import Dialer, Rendezvous, dial_downstream
from swarm.server.meter import Meter
from swarm.server.reporting import Reporting, successors_of
from swarm.server.session import GOODBYE_S, ServerSession
from swarm.server.vitals import Vitals
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream, Transport
from swarm.transport.pulse import Hold, PulseKeeper
from swarm.transport.uplink import UplinkMeter
from swarm.wire.messages import LANES, Busy, Close, Failed, Hello, LinkLost, Open, Refused
from swarm.wire.session import Channel, Role

log = logging.getLogger(__name__)

MAX_CONTROL_FRAME_BYTES = 64 * 1024
SWEEP_S = 1.0
PACE_S = 0.01
"""After a frame that asks for nothing the next one of its stream waits this long: a flood of no-ops stays cheap."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What a server is made of. ``speed`` is what a probe of the engine found, ``capacity_layers`` how many layers of
    its model the machine could hold (0: what it holds)."""

    transport: Transport
    engine: SpanEngine
    announcer: Announcer
    clock: Clock
    speed: SpanSpeed = UNMEASURED
    capacity_layers: int = 0


class Server:
    """Serves one span. ``start`` listens, ``announce`` shows it to the swarm, ``stop`` drains and leaves."""

    def __init__(self, parts: ServerParts, config: ServerConfig) -> None:
        self.parts = parts
        self.config = config
        meter = Meter(parts.speed)
        self.batcher = Batcher(parts.engine, meter, batch_tokens=config.batch_tokens)
        self.table = Rendezvous(config)
        self.pulse = PulseKeeper(parts.transport, parts.clock)
        self.uplink = UplinkMeter(parts.clock)
        successors = successors_of(parts.announcer, parts.transport, self.pulse, parts.clock, config)
        self.vitals = Vitals(
            announcer=parts.announcer,
            engine=parts.engine,
            batcher=self.batcher,
            table=self.table,
            meter=meter,
            uplink=self.uplink,
            successors=successors,
            clock=parts.clock,
            idle_check_s=config.idle_check_s,
        )
        self.reporting = Reporting(parts.announcer, self.vitals, successors, config)
        parts.announcer.amend(**self._described())
        self.draining = False
        self.fatal: asyncio.Future[SwarmError] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(self._broke)
        self._reports = Tasks(_report_failed)
        self._last_seen_s: dict[ServerSession, float] = {}

    # -- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for clients and neighbours and start computing."""
        await self.parts.transport.listen(Channel.CONTROL.protocol, self._serve_control)
        await self.parts.transport.listen(Channel.LINK.protocol, self._serve_link)
        await self.pulse.serve()
        self._computing = self._tasks.spawn(self.batcher.run(), name="batcher")
        self._tasks.spawn(self._sweep(), name="sweep")

    async def announce(self) -> Announcement:
        """Publish the announcement as online and keep it alive until ``stop``."""
        await self.parts.announcer.check_twin()
        announced = await self.appear()
        self._tasks.spawn(self.parts.announcer.run(self._lost_identity), name="announcer")
        return announced

    async def appear(self) -> Announcement:
        """Publish the announcement as online, and metrics from now on."""
        await self.reporting.start(self._broke)  # before anybody can find this server, so that it is found alive
        return await self.parts.announcer.publish(state=State.ONLINE, intent=None)

    def _described(self) -> dict[str, object]:
        """What the announcement says of the place and the machine."""
        return {
            "region": self.config.region,
            "power_layers_per_s": self.parts.speed.power_layers_per_s,
            "capacity_layers": self.parts.capacity_layers or len(self.parts.engine.info.span),
            "coordinate": self.parts.announcer.current.coordinate or START,
        }

    async def drain(self, within_s: float) -> bool:
        """Take no new sessions until ``draining`` is unset; False if some still run after ``within_s``."""
        self.draining = True
        deadline_s = self.parts.clock.monotonic_s() + within_s
        while len(self.table) and self.parts.clock.monotonic_s() < deadline_s:
            await self.parts.clock.sleep(0.05)
        return not len(self.table)

    async def vacate(self) -> None:
        """Drop the weights of a drained server, for another span to take their room: see ``occupy``."""
        await self.reporting.stop()
        self._computing.cancel()
        await asyncio.gather(self._computing, return_exceptions=True)
        self.parts.engine.unload()

    def occupy(self, engine: SpanEngine, speed: SpanSpeed) -> None:
        """Compute with ``engine`` from now on, and take sessions again; ``appear`` then says so."""
        self.parts = replace(self.parts, engine=engine, speed=speed)
        meter = Meter(speed)
        self.batcher = Batcher(engine, meter, batch_tokens=self.config.batch_tokens)
        self.vitals.engine, self.vitals.batcher, self.vitals.meter = engine, self.batcher, meter
        self._computing = self._tasks.spawn(self.batcher.run(), name="batcher")
        self.draining = False

    async def stop(self) -> None:
        """Announce draining, let running sessions finish within ``drain_timeout_s``, announce offline, stop.

        Cancelling it (a second Ctrl-C) skips the waiting; call ``leave`` then.
        """
        self.draining = True
        self.parts.announcer.amend(intent=None)
        await self._publish_quietly(State.DRAINING)
        await self.drain(self.config.drain_timeout_s)
        await self.leave()

    async def leave(self) -> None:
        """End what still runs, with a reason its clients can show, and take the announcement out of routing."""
        self.draining = True
        running = self.table.sessions
        for session in running:
            session.end(Failed("draining", "the server was stopped by its owner"))
        farewells = [asyncio.create_task(session.gone.wait()) for session in running]
        if farewells:
            _, late = await asyncio.wait(farewells, timeout=2 * GOODBYE_S)
            for farewell in late:
                farewell.cancel()
        await self.reporting.stop()  # nothing is heard of this server after its last word
        if not self._yields:
            await self._publish_quietly(State.OFFLINE)
        await self._tasks.close()
        await self.pulse.close()
        await self._reports.close()

    @property
    def _yields(self) -> bool:
        """True if the announcement under our key is now another process's, which is not ours to withdraw."""
        return self.fatal.done() and isinstance(self.fatal.result(), IdentityInUseError)

    async def _publish_quietly(self, state: State) -> None:
        try:
            async with asyncio.timeout(5.0):
                await self.parts.announcer.publish(state=state)
        except (NetworkError, TimeoutError) as error:
            log.warning("could not announce %s: %s", state.value, error)

    async def _lost_identity(self, error: IdentityInUseError) -> None:
        if not self.fatal.done():
            self.fatal.set_result(error)

    def _broke(self, _: str, error: Exception) -> None:
        if not self.fatal.done():
            self.fatal.set_result(as_swarm_error(error, "the server broke"))

    # -- sessions -------------------------------------------------------------------------------------------

    async def _serve_control(self, stream: Stream) -> None:
        control = FrameStream(
            stream, Channel.CONTROL, Role.LISTENER, max_frame_bytes=MAX_CONTROL_FRAME_BYTES, uplink=self.uplink
        )
        try:
            frame = await control.receive_within(self.config.open_timeout_s, "OPEN")
            if not isinstance(frame.message, Open):
                raise ProtocolViolation("a control stream must begin with OPEN", peer=control.peer)
            await self._serve_open(control, frame.message)
        except (NetworkError, PeerError) as error:
            log.debug("control stream from %s ended: %s", control.peer[-8:], error)

    async def _serve_open(self, control: FrameStream, opened: Open) -> None:
        try:
            session, following = self._admit(control, opened)
        except BusyError as error:
            await control.send(Busy(error.retry_after_s, str(error)))
            return
        except (CapacityError, PeerError) as error:
            await control.send(Refused(str(error)))
            return
        try:
            async with self._registered(session, following):
                await control.send(self.vitals.accept())
                if not await self._closed_by_client(session):
                    self.batcher.forget(session)
                    await session.say_goodbye()
        finally:
            session.gone.set()

    async def _closed_by_client(self, session: ServerSession) -> bool:
        """Wait until the session is over: True if its client closed it, False if we end it.

        Raises as ``receive`` does if the client goes away or breaks the protocol.
        """
        closing = asyncio.create_task(self._receive_close(session.control))
        try:
            over: set[asyncio.Future[Any]] = {closing, session.ended}
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            if session.ended.done():
                return False
            closing.result()
            return True
        finally:
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)

    async def _receive_close(self, control: FrameStream) -> None:
        """Read until the client closes the session; its no-ops are no use of it."""
        while not isinstance((await control.receive()).message, Close):
            await self.parts.clock.sleep(PACE_S)

    def _admit(self, control: FrameStream, opened: Open) -> tuple[ServerSession, Announcement | None]:
        """Reserve everything the session needs, or raise and reserve nothing."""
        info, client = self.parts.engine.info, control.peer
        if self.draining:
            raise BusyError("this server is leaving", retry_after_s=60.0)
        check_open(opened, info, self.parts.announcer.current)
        if len(self.table) >= self.config.max_sessions:
            raise BusyError(f"all {self.config.max_sessions} sessions are taken", retry_after_s=1.0)
        if self.table.of_client(client) >= self.config.max_sessions_per_client:
            raise BusyError(f"one client may hold {self.config.max_sessions_per_client} sessions", retry_after_s=1.0)
        key = SessionKey(client, opened.session, opened.stage)
        if key in self.table:
            raise RefusedError("this stage of this session is open already")
        following = None
        if opened.downstream is not None:
            announced, now_s = self.parts.announcer.current, self.parts.clock.wall_s()
            following = check_following(opened.downstream.record, opened, announced, now_s)
        slot = self.parts.engine.open(opened.kv_tokens)
        return ServerSession(key, opened, slot, info, control), following

    @asynccontextmanager
    async def _registered(self, session: ServerSession, following: Announcement | None) -> AsyncIterator[None]:
        """The session's whole life: in the table, its tasks running; on the way out everything is given back."""
        loop = asyncio.get_running_loop()
        session.links = {lane: loop.create_future() for lane in LANES}
        self.table.add(session)
        self.reporting.changed()
        self._touch(session)
        tasks = Tasks(partial(_session_broke, session))
        tasks.spawn(session.forward(self.batcher.notify), name="forward")
        if following is not None:
            session.name_downstream(following)
            tasks.spawn(self._lead_on(session, following), name="dial downstream")
        try:
            yield
        finally:
            session.closed = True
            self.table.remove(session)
            self._last_seen_s.pop(session, None)
            self.batcher.forget(session)
            if not len(self.table):
                self.vitals.meter.rest()
            self.reporting.changed()
            await tasks.close()
            await session.close_links()

    async def _lead_on(self, session: ServerSession, following: Announcement) -> None:
        """Dial the next server, and once that has worked keep a beat to it; until the session ends."""
        holds: list[Hold] = []

        def beat() -> None:
            if not holds:
                silent = self._silence_reporter(session, following)
                holds.append(self.pulse.hold(following.peer_id, following.addresses, silent))

        try:
            links = Dialer(self.parts.transport, self.config.dial_timeout_s, self.uplink)
            await dial_downstream(session, following, links, beat)
        finally:
            for hold in holds:
                self.pulse.release(hold)

    def _silence_reporter(self, session: ServerSession, following: Announcement) -> Callable[[str], None]:
        """What to do when the next server falls silent: tell the client, who decides."""

        def silent(reason: str) -> None:
            self._reports.spawn(session.report(LinkLost(following.peer, reason)), name="report a silence")

        return silent

    async def _serve_link(self, stream: Stream) -> None:
        link = FrameStream(stream, Channel.LINK, Role.LISTENER)
        try:
            hello = (await link.receive_within(self.config.hello_wait_s, "hello")).message
            if not isinstance(hello, Hello):
                raise ProtocolViolation("a link must begin with a hello", peer=link.peer)
            session = await self.table.meet(hello, link)
        except SwarmError as error:
            log.info("refused a link from %s: %s", link.peer[-8:], error)
            return
        try:
            while not session.closed:
                if session.offer(await link.receive(), hello.lane):
                    self._touch(session)
                    self.batcher.notify(session)
                    await session.room()
                else:
                    await self.parts.clock.sleep(PACE_S)
        except ProtocolViolation as error:
            log.warning("session %s: %s", session.key, error)
            session.fail(error)
        except NetworkError as error:
            if not session.closed:
                await session.report(LinkLost(link.peer, str(error)))

    # -- idleness -------------------------------------------------------------------------------------------

    def _touch(self, session: ServerSession) -> None:
        if not session.closed:
            self._last_seen_s[session] = self.parts.clock.monotonic_s()

    async def _sweep(self) -> None:
        """End sessions that nobody uses, so that their KV is free for others."""
        while True:
            await self.parts.clock.sleep(SWEEP_S)
            now_s = self.parts.clock.monotonic_s()
            for session, seen_s in list(self._last_seen_s.items()):
                if session.working:
                    self._touch(session)
                    continue
                # Only the head server hears from the client itself; further down the first step may take its time.
                unused = session.steps_taken == 0 and session.from_client
                limit_s = self.config.open_timeout_s if unused else self.config.idle_timeout_s
                if now_s - seen_s > limit_s:
                    session.end(Failed("idle", f"no step for {limit_s:g} s"))


def _session_broke(session: ServerSession, _: str, error: Exception) -> None:
    wrapped = as_swarm_error(error, "the server broke")
    log.warning("session %s failed: %s", session.key, wrapped)
    log.debug("where it failed", exc_info=error)
    session.fail(wrapped)


def _report_failed(_: str, error: Exception) -> None:
    log.debug("a client was not told of a silent server: %s", error)
