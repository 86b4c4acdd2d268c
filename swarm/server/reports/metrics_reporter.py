"""Keeps the server's signed metrics alive in the directory, from its announcement as online until it leaves."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

import msgspec

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import sign_record
from swarm.runtime.bell import Bell
from swarm.server.reports.announcer import Announcer, later_expiry_s
from swarm.server.reports.metrics_rhythm import Rhythm

log = logging.getLogger(__name__)


class Source(Protocol):
    """Where the figures come from."""

    def metrics(self) -> Metrics:
        """The figures of this moment; sequence and times are filled in by whoever publishes them."""
        ...

    async def refresh(self) -> None:
        """Measure again what is in doubt; called before a record."""
        ...


class MetricsReporter:
    """Publishes the metrics of the process that ``announcer`` announces, in the rhythm that ``rhythm`` sets."""

    def __init__(self, announcer: Announcer, clock: Clock, source: Source, rhythm: Rhythm) -> None:
        self._announcer = announcer
        self._clock = clock
        self._source = source
        self._rhythm = rhythm
        self._bell = Bell(clock)
        self._sequence = 0
        self._expires_s = 0.0
        self._failing = False

    def changed(self) -> None:
        """A session has opened or closed: say so soon."""
        self._rhythm.changed()
        self._bell.ring()

    async def publish(self) -> Metrics:
        """Sign and store the present figures. Raises ``NetworkError`` as the directory does."""
        await self._source.refresh()
        record = self._record()
        self._rhythm.said(record, self._clock.monotonic_s())
        try:
            await self._announcer.directory.publish(sign_record(self._announcer.identity, record), record)
        except BaseException:
            self._rhythm.failed(self._clock.monotonic_s())
            raise
        return record

    def _record(self) -> Metrics:
        now_s = self._clock.wall_s()
        wanted_s = now_s + self._rhythm.lifetime_s(self._announcer.servers)
        self._expires_s = later_expiry_s(Metrics, wanted_s, self._expires_s, now_s)
        self._sequence += 1
        return msgspec.structs.replace(
            self._source.metrics(),
            sequence=self._sequence,
            expires_s=self._expires_s,
            shard_depth=self._announcer.current.shard_depth,
        )

    async def run(self) -> None:
        """Publish until cancelled. Outages are retried, and told once."""
        while True:
            await self._until_due()
            try:
                async with asyncio.timeout(METRICS_LIFETIME_S):
                    await self.publish()
                self._failing = False
            except (NetworkError, TimeoutError) as error:
                log.log(logging.DEBUG if self._failing else logging.WARNING, "could not publish metrics: %s", error)
                self._failing = True

    async def _until_due(self) -> None:
        while True:
            metrics = self._source.metrics()
            left_s = self._rhythm.due_s(metrics, self._announcer.servers) - self._clock.monotonic_s()
            if left_s <= 0:
                return
            await self._bell.sleep(min(left_s, self._rhythm.look_s(metrics)))
