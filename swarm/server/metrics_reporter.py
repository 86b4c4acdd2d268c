"""Keeps the server's signed metrics alive in the directory, from its announcement as online until it leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import sign_record
from swarm.server.announcer import EXPIRY_STEP_S, Announcer

log = logging.getLogger(__name__)

IDLE_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a metrics record says of this moment; see ``Metrics``."""

    tau_s: float
    fixed_s: float
    kv_free_tokens: int
    sessions: int
    queued_steps: int


class MetricsReporter:
    """Publishes metrics of the process that ``announcer`` announces."""

    def __init__(self, announcer: Announcer, clock: Clock, figures: Callable[[], Figures]) -> None:
        self._announcer = announcer
        self._clock = clock
        self._figures = figures
        self._sequence = 0
        self._expires_s = 0.0

    async def publish(self) -> Metrics:
        """Sign and store the present figures. Raises ``NetworkError`` as the directory does."""
        record = self._record()
        await self._announcer.directory.publish(sign_record(self._announcer.identity, record), record)
        return record

    def _record(self) -> Metrics:
        announced, figures = self._announcer.current, self._figures()
        self._sequence += 1
        self._expires_s = max(self._clock.wall_s() + METRICS_LIFETIME_S, self._expires_s + EXPIRY_STEP_S)
        return Metrics(
            model=announced.model,
            peer=announced.peer,
            instance=announced.instance,
            sequence=self._sequence,
            expires_s=self._expires_s,
            tau_s=figures.tau_s,
            fixed_s=figures.fixed_s,
            kv_free_tokens=figures.kv_free_tokens,
            sessions=figures.sessions,
            queued_steps=figures.queued_steps,
        )

    async def run(self) -> None:
        """Publish until cancelled. Outages are retried."""
        while True:
            await self._clock.sleep(IDLE_S)
            try:
                async with asyncio.timeout(METRICS_LIFETIME_S):
                    await self.publish()
            except (NetworkError, TimeoutError) as error:
                log.warning("could not publish metrics, trying again: %s", error)
