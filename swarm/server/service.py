"""The server: admits sessions, meets links, computes, announces, and leaves in good order."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace

from swarm.core.announcement import Announcement, State
from swarm.core.clock import Clock
from swarm.core.errors import IdentityInUseError, NetworkError, SwarmError
from swarm.core.ids import ModelId
from swarm.engine.executor import SpanEngine
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.runtime.tasks import Tasks
from swarm.scheduling.coordinates import START
from swarm.server.config import ServerConfig
from swarm.server.queueing.batcher import Batcher, as_swarm_error
from swarm.server.record.signing import Desk
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.figures import Figures
from swarm.server.reports.meter import Meter
from swarm.server.reports.reporting import Reporting, successors_of
from swarm.server.reports.telling import Telling
from swarm.server.reports.vitals import Vitals
from swarm.server.reports.ways import Ways
from swarm.server.self_watch import SelfWatch, SelfWatchParts
from swarm.server.sessions.downlink import Dialer
from swarm.server.sessions.links import Rendezvous
from swarm.server.sessions.serving import Serving
from swarm.server.sessions.session import GOODBYE_S
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.transport.uplink import UplinkMeter
from swarm.verification.verdicts.calibration import Calibration
from swarm.wire.messages import Failed
from swarm.wire.session import Channel
from swarm.wire.status import StatusReport

log = logging.getLogger(__name__)

PUBLISH_S = 5.0
LAST_WORD_S = 1.5
"""For the last announcement: where nobody takes it, silence says the same ten seconds later."""


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What a server is made of. ``speed`` is what a probe of the engine found, ``capacity_layers`` how many layers of
    its model the machine could hold (0: what it holds). Receipts name ``calibration``, if there is one, and hold
    sketches."""

    transport: Transport
    engine: SpanEngine
    announcer: Announcer
    clock: Clock
    speed: SpanSpeed = UNMEASURED
    capacity_layers: int = 0
    calibration: Calibration | None = None


class Server:
    """Serves one span. ``start`` listens, ``announce`` shows it to the swarm, ``stop`` drains and leaves."""

    def __init__(self, parts: ServerParts, config: ServerConfig) -> None:
        self.parts = parts
        self.config = config
        self.figures = Figures(parts.clock.monotonic_s())
        meter = Meter(parts.speed)
        self.batcher = self._batcher(parts.engine, meter)
        self.table = Rendezvous(config)
        self.pulse = PulseKeeper(parts.transport, parts.clock)
        self.uplink = UplinkMeter(parts.clock)
        self._ways = Ways(self.pulse, self.uplink)
        successors = successors_of(parts.announcer, parts.transport, self.pulse, parts.clock, config)
        self.vitals = Vitals(
            announcer=parts.announcer,
            engine=parts.engine,
            batcher=self.batcher,
            table=self.table,
            meter=meter,
            uplink=self.uplink,
            successors=successors,
            figures=self.figures,
            clock=parts.clock,
            idle_check_s=config.idle_check_s,
            uplink_limit_mbps=config.uplink_mbps,
        )
        self.reporting = Reporting(parts.announcer, self.vitals, successors, config)
        parts.announcer.amend(**self._described())
        dialer = Dialer(parts.transport, config.dial_timeout_s, self.pulse, self._ways)
        self._desk = self._set_up_desk()
        self._serving = Serving(config, self.vitals, dialer, self.reporting.changed, self._desk)
        self._telling = Telling(self.status if config.stats else None, parts.clock)
        self.fatal: asyncio.Future[SwarmError] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(self._broke)

    def _batcher(self, engine: SpanEngine, meter: Meter) -> Batcher:
        tokens, deadline_s = self.config.batch_tokens, self.config.queue_deadline_s
        return Batcher(engine, meter, self.figures, batch_tokens=tokens, queue_deadline_s=deadline_s)

    def _set_up_desk(self) -> Desk | None:
        parts, config = self.parts, self.config
        if not config.receipts:
            return None
        announcer, lifetime_s = parts.announcer, config.receipt_lifetime_s
        return Desk(announcer.identity, parts.clock, announcer.current, lifetime_s, parts.calibration)

    # -- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen for clients and neighbours and start computing."""
        await self.parts.transport.listen(Channel.CONTROL.protocol, self._serving.serve_control)
        await self.parts.transport.listen(Channel.LINK.protocol, self._serving.serve_link)
        await self.parts.transport.listen(Channel.FETCH.protocol, self._serving.fetching.serve)
        await self.parts.transport.listen(Channel.STATUS.protocol, self._telling.serve)
        await self.pulse.serve()
        self._computing = self._tasks.spawn(self.batcher.run(), name="batcher")
        self._tasks.spawn(self._serving.idleness.sweep(), name="sweep")
        self._tasks.spawn(self._serving.reception.shelf.sweep(), name="clear the shelf")

    async def announce(self) -> Announcement:
        """Publish the announcement as online and keep it alive until ``stop``."""
        await self.parts.announcer.check_twin()
        announced = await self.appear()
        self._tasks.spawn(self.parts.announcer.run(self._lost_identity), name="announcer")
        model = ModelId.parse(announced.model)
        watch = SelfWatchParts(self.parts.transport, self.parts.announcer.directory, self.parts.clock, model)
        self._tasks.spawn(SelfWatch(watch).run(), name="accusations of this server")
        return announced

    async def appear(self) -> Announcement:
        """Publish the announcement as online, and metrics from now on."""
        await self.reporting.start(self._broke)  # before anybody can find this server, so that it is found alive
        return await self.parts.announcer.publish(state=State.ONLINE, intent=None)

    def status(self) -> StatusReport:
        """How this server is, as whoever asks is told: since the process started, and over the last minute."""
        return self.figures.report(
            self.parts.clock.monotonic_s(),
            receipts=0 if self._desk is None else self._desk.signed,
            sent_bytes=self.uplink.sent_bytes,
            links=self._ways.figures(),
        )

    @property
    def countersigned(self) -> int:
        """Sessions whose client signed that it was served, since the process started."""
        return 0 if self._desk is None else self._desk.countersigned

    def hurry(self) -> None:
        """The network is back after an outage: announce and report at once, not when it is due."""
        self.parts.announcer.hurry()
        self.reporting.hurry()

    def _described(self) -> dict[str, object]:
        """What the announcement says of the place and the machine."""
        return {
            "region": self.config.region,
            "power_layers_per_s": self.parts.speed.power_layers_per_s,
            "capacity_layers": self.parts.capacity_layers or len(self.parts.engine.info.span),
            "coordinate": self.parts.announcer.current.coordinate or START,
        }

    @property
    def draining(self) -> bool:
        """True while no new sessions are taken."""
        return self._serving.reception.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self._serving.reception.draining = value

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
        self.batcher = self._batcher(engine, meter)
        self.vitals.engine, self.vitals.batcher, self.vitals.meter = engine, self.batcher, meter
        self._serving.reception.furnish()
        self._computing = self._tasks.spawn(self.batcher.run(), name="batcher")
        self.draining = False

    async def stop(self) -> None:
        """Announce draining, let running sessions finish within ``drain_timeout_s``, announce offline, stop.

        Cancelling it (a second Ctrl-C) skips the waiting; call ``leave`` then.
        """
        self.draining = True
        self.parts.announcer.amend(intent=None)
        if len(self.table):
            await self._publish_quietly(State.DRAINING)
            await self.drain(self.config.drain_timeout_s)
        await self.leave()

    async def rest(self) -> None:
        """Like ``stop``, but weights, announcement and identity stay, for ``wake`` to take sessions again.

        It is shown as draining all the while, and routed by nobody. Cancelling it skips nothing but the waiting.
        """
        self.draining = True
        self.parts.announcer.amend(intent=None)
        await self._publish_quietly(State.DRAINING)
        await self.drain(self.config.drain_timeout_s)
        await self._dismiss("the server was paused by its owner")

    async def wake(self) -> None:
        """Take sessions again. Where that cannot be announced now, the next announcement says it."""
        self.draining = False
        await self._publish_quietly(State.ONLINE)

    async def leave(self) -> None:
        """End what still runs, with a reason its clients can show, and take the announcement out of routing."""
        self.draining = True
        await self._dismiss("the server was stopped by its owner")
        await self.reporting.stop()  # nothing is heard of this server after its last word
        if not self._yields:
            await self._publish_quietly(State.OFFLINE, within_s=LAST_WORD_S)
        await self._telling.close()
        await self._tasks.close()
        await self.pulse.close()

    async def _dismiss(self, reason: str) -> None:
        """End every session."""
        running = self.table.sessions
        for session in running:
            session.end(Failed("draining", reason))
        farewells = [asyncio.create_task(session.gone.wait()) for session in running]
        if farewells:
            _, late = await asyncio.wait(farewells, timeout=2 * GOODBYE_S)
            for farewell in late:
                farewell.cancel()

    @property
    def _yields(self) -> bool:
        """True if the announcement under our key is now another process's, which is not ours to withdraw."""
        return self.fatal.done() and isinstance(self.fatal.result(), IdentityInUseError)

    async def _publish_quietly(self, state: State, *, within_s: float = PUBLISH_S) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.parts.announcer.publish(state=state)
        except (NetworkError, TimeoutError) as error:
            log.warning("could not announce %s: %s", state.value, error)

    async def _lost_identity(self, error: IdentityInUseError) -> None:
        if not self.fatal.done():
            self.fatal.set_result(error)

    def _broke(self, _: str, error: Exception) -> None:
        if not self.fatal.done():
            self.fatal.set_result(as_swarm_error(error, "the server broke"))
