"""The client's view of the swarm: the directory, read once for all who ask at one time, and what the client knows
better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.client.finding.choice import ModelShape, View
from swarm.client.finding.distances import Distances
from swarm.client.finding.links import Links
from swarm.client.finding.loads import Loads
from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.dht.protocol import Directory
from swarm.runtime.reputation import ReputationStore

VIEW_S = 1.0
"""Opens within so long of a read share it; a later one reads again."""


@dataclass(frozen=True, slots=True)
class _Read:
    listings: Sequence[Listing]
    began_s: float
    number: int


class SwarmView:
    """What this client knows of the servers of one model. ``loads`` and ``links`` are for its owner to keep up to date.

    Whoever is ejected at the moment of a look is not in it, so nobody routes to him.
    """

    def __init__(
        self,
        directory: Directory,
        clock: Clock,
        model: ModelId,
        shape: ModelShape,
        distances: Distances,
        reputation: ReputationStore,
    ) -> None:
        self.loads = Loads()
        self.links = Links()
        self._directory = directory
        self._clock = clock
        self._model = model
        self._shape = shape
        self._distances = distances
        self._reputation = reputation
        self._begun = 0
        self._last: _Read | None = None
        self._reading: asyncio.Task[_Read] | None = None

    async def look(self, *, fresh: bool = False) -> View:
        """The swarm as it is now, or was ``VIEW_S`` ago at most; ``fresh`` asks for a read that begins after this call.

        Raises as ``Directory.servers`` does.
        """
        oldest_s = self._clock.monotonic_s() - VIEW_S
        wanted = self._begun + 1 if fresh else 0
        while self._last is None or self._last.began_s < oldest_s or self._last.number < wanted:
            self._last = await self._read()
        await self._distances.look(self._last.listings, self._shape.layers)
        return self.now()

    @property
    def read_s(self) -> float | None:
        """When, by the client's clock, the last read began; None before the first ``look``."""
        return None if self._last is None else self._last.began_s

    def now(self) -> View:
        """What was read last, with what has been learnt since; empty before the first ``look``."""
        listings = () if self._last is None else self._last.listings
        ejected = self._reputation.ejected()
        welcome = [listing for listing in listings if listing.peer not in ejected]
        now_s = self._clock.monotonic_s()
        present = self.loads.over(welcome, now_s)
        left_out = len(listings) - len(welcome)
        apart = self._reputation.apart().and_those(self.links.at(now_s))
        return View(self._shape, present, self._distances.known(), apart, left_out)

    async def _read(self) -> _Read:
        """Ask the directory, together with everybody else who is asking."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._ask(), name="read the directory")
            self._reading.add_done_callback(_mark_seen)
        reading, this = self._reading, asyncio.current_task()
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if this is not None and this.cancelling():
                raise
            raise NetworkError("this client is closed") from None

    async def _ask(self) -> _Read:
        self._begun += 1
        began_s, number = self._clock.monotonic_s(), self._begun
        return _Read(await self._directory.servers(self._model), began_s, number)

    async def close(self) -> None:
        """End what is under way. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._distances.close()


def _mark_seen(reading: asyncio.Task[_Read]) -> None:
    """Its error is for those who still wait for it; if nobody does, it is nobody's to report."""
    if not reading.cancelled():
        reading.exception()
