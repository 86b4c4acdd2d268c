"""What a server tells the swarm while it serves: its metrics, round trips to its neighbours, its model."""

from __future__ import annotations

from swarm.core.clock import Clock
from swarm.runtime.tasks import OnError, Tasks
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.metrics_reporter import MetricsReporter
from swarm.server.reports.metrics_rhythm import Rhythm
from swarm.server.reports.metrics_successors import Successors
from swarm.server.reports.model_lister import ModelLister
from swarm.server.reports.vitals import Vitals
from swarm.transport.pinger import Pinger
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper


class Reporting:
    """Owns the tasks that tell. ``start`` and ``stop`` may follow each other, as when a server changes its span."""

    def __init__(self, announcer: Announcer, vitals: Vitals, successors: Successors, config: ServerConfig) -> None:
        clock = vitals.clock
        self._metrics = MetricsReporter(announcer, clock, vitals, Rhythm(config))
        hidden_size = vitals.engine.info.hidden_size
        self._lister = ModelLister(announcer, clock, every_s=config.announce_every_s, hidden_size=hidden_size)
        self._successors = successors
        self._tasks: Tasks | None = None

    def changed(self) -> None:
        """A session has opened or closed."""
        self._metrics.changed()

    def hurry(self) -> None:
        """The network is back: tell everything anew, and soon."""
        self._metrics.changed()
        self._lister.hurry()
        self._successors.hurry()

    async def start(self, on_error: OnError) -> None:
        """Publish metrics once, then everything in its rhythm until ``stop``. Raises ``NetworkError``."""
        await self._metrics.publish()
        self._tasks = Tasks(on_error)
        self._tasks.spawn(self._metrics.run(), name="metrics")
        self._tasks.spawn(self._successors.run(self._metrics.changed), name="successors")
        self._tasks.spawn(self._lister.run(), name="model index")

    async def stop(self) -> None:
        """Say nothing more. Idempotent."""
        if self._tasks is not None:
            await self._tasks.close()
            self._tasks = None


def successors_of(
    announcer: Announcer, transport: Transport, pulse: PulseKeeper, clock: Clock, config: ServerConfig
) -> Successors:
    """Round trips of ``announcer``'s server: its sessions' own, else by short visits."""
    return Successors(announcer, Pinger(transport, clock).rtt_s, pulse.rtt_s, clock, every_s=config.ping_every_s)
