"""Keeps the server's model in the swarm's model index, as long as few others do."""

from __future__ import annotations

import asyncio
import logging

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.model_entry import ModelEntry
from swarm.core.records import sign_record
from swarm.dht.model_index import should_list
from swarm.dht.sharding import announce_interval_s
from swarm.runtime.bell import Bell
from swarm.server.reports.announcer import Announcer, later_expiry_s

log = logging.getLogger(__name__)

LIFETIME_INTERVALS = 3.0
IDLE_INTERVALS = 3.0
"""Whoever does not list looks again after so many intervals."""


class ModelLister:
    """Lists the model that ``announcer`` announces, every ``every_s``; in large swarms more rarely."""

    def __init__(self, announcer: Announcer, clock: Clock, *, every_s: float, hidden_size: int = 0) -> None:
        self._announcer = announcer
        self._hidden_size = hidden_size
        self._clock = clock
        self._every_s = every_s
        self._sequence = 0
        self._expires_s = 0.0
        self._bell = Bell(clock)

    @property
    def _interval_s(self) -> float:
        longest_s = ModelEntry.LIFETIME_S / LIFETIME_INTERVALS
        return min(announce_interval_s(self._announcer.servers, self._every_s), longest_s)

    def hurry(self) -> None:
        """Look at once."""
        self._bell.ring()

    async def run(self) -> None:
        """Look and list until cancelled. Outages are retried."""
        while True:
            listed = False
            try:
                async with asyncio.timeout(self._every_s):
                    listed = await self.renew()
            except (NetworkError, TimeoutError) as error:
                log.debug("could not look after the model index: %s", error)
            await self._bell.sleep(self._interval_s * (1.0 if listed else IDLE_INTERVALS))

    async def renew(self) -> bool:
        """Publish or renew an entry unless enough others list the model; True if one was published.

        Raises ``NetworkError`` as the directory does.
        """
        announcer, announced = self._announcer, self._announcer.current
        if not should_list(await announcer.directory.entries(), announced.model, announced.peer):
            return False
        now_s = self._clock.wall_s()
        self._sequence += 1
        wanted_s = now_s + LIFETIME_INTERVALS * self._interval_s
        self._expires_s = later_expiry_s(ModelEntry, wanted_s, self._expires_s, now_s)
        record = ModelEntry(
            model=announced.model,
            peer=announced.peer,
            instance=announced.instance,
            layer_count=announced.layer_count,
            hidden_size=self._hidden_size,
            sequence=self._sequence,
            expires_s=self._expires_s,
        )
        await announcer.directory.publish(sign_record(announcer.identity, record), record)
        return True
