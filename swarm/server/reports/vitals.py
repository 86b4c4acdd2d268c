"""How a server is at this moment: the figures of its metrics records and of its ACCEPTs, from whoever measures them."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.metrics import Metrics
from swarm.engine.executor import SpanEngine
from swarm.engine.speed import step_alone_s
from swarm.scheduling.cluster import Defaults
from swarm.server.queueing.batcher import Batcher
from swarm.server.reports.announcer import Announcer
from swarm.server.reports.figures import Figures
from swarm.server.reports.meter import Load, Meter
from swarm.server.reports.metrics_successors import Successors
from swarm.server.sessions.links import Rendezvous
from swarm.transport.uplink import UplinkMeter
from swarm.wire.messages import Accept


@dataclass(slots=True, kw_only=True)
class Vitals:
    """``idle_check_s`` is how long the idle speed goes unchecked while it is worse than it was once."""

    announcer: Announcer
    engine: SpanEngine
    batcher: Batcher
    table: Rendezvous
    meter: Meter
    uplink: UplinkMeter
    successors: Successors
    figures: Figures
    clock: Clock
    idle_check_s: float
    uplink_limit_mbps: float | None = None
    _checked_s: float = float("-inf")

    def load(self) -> Load:
        """What a decode step takes now."""
        sessions, queued = len(self.table), self.batcher.queued_steps
        return self.meter.present(self.clock.monotonic_s(), sessions=sessions, queued_steps=queued)

    def accept(self) -> Accept:
        """The present load, as an accepted client is told."""
        load = self.load()
        return Accept(
            len(self.table),
            self.batcher.queued_steps,
            self.engine.free_tokens,
            tau_s=load.tau_s,
            fixed_s=load.fixed_s,
        )

    def metrics(self) -> Metrics:
        """See ``Source.metrics``."""
        announced, load = self.announcer.current, self.load()
        return Metrics(
            model=announced.model,
            peer=announced.peer,
            instance=announced.instance,
            sequence=0,
            expires_s=0.0,
            tau_s=load.tau_s,
            fixed_s=load.fixed_s,
            step_s=self.meter.step_s,
            prefill_tokens_per_s=self.meter.prefill_tokens_per_s,
            kv_free_tokens=self.engine.free_tokens,
            sessions=len(self.table),
            queued_steps=self.batcher.queued_steps,
            uplink_mbps=told_uplink_mbps(self.uplink.mbps, self.uplink_limit_mbps),
            rtt_s=self.successors.rtt_s(),
        )

    async def refresh(self) -> None:
        """If the engine is idle and its idle speed is in doubt, compute one step to measure it.

        Sessions that are open and silent do not count: else a slow server would call itself fast as long as one is.
        """
        now_s = self.clock.monotonic_s()
        due = self.meter.contradicted or (self.meter.doubtful and now_s - self._checked_s >= self.idle_check_s)
        if not (due and self._idle):
            return
        self._checked_s = now_s
        took_s = await self.batcher.apart(lambda: step_alone_s(self.engine))
        if self._idle:  # steps that came meanwhile may have shared the time
            self.meter.checked(len(self.engine.info.span), took_s)

    @property
    def _idle(self) -> bool:
        sessions, queued = len(self.table), self.batcher.queued_steps
        return self.meter.idle(self.clock.monotonic_s(), sessions=sessions, queued_steps=queued)


def told_uplink_mbps(measured_mbps: float | None, limit_mbps: float | None) -> float | None:
    """What others should count on under a limit. What was not measured they take for ``Defaults.uplink_mbps``: a lower
    limit is told at once."""
    if limit_mbps is None:
        return measured_mbps
    if measured_mbps is None:
        return limit_mbps if limit_mbps < Defaults().uplink_mbps else None
    return min(measured_mbps, limit_mbps)
