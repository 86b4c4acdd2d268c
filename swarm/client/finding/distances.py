"""How far servers are from this client: a round trip to each that could begin or end its chains."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.core.announcement import State
from swarm.core.clock import Clock
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.transport.pinger import Ping

FRESH_S = 30.0
"""After so long a server is measured again, in the background; until then its last value counts."""
FORGET_S = 300.0
"""An older value counts no longer."""
WAIT_S = 0.5
"""The most an open waits for servers that were never measured: what answers later is not near anyway."""
MAX_MEASURED = 16
"""Of those that could begin a chain, and of those that could end one."""


@dataclass(frozen=True, slots=True)
class _Measured:
    rtt_s: float | None
    at_s: float


@dataclass(frozen=True, slots=True)
class _Running:
    task: asyncio.Task[None]
    began_s: float


class Distances:
    """Measures in the background and remembers. ``salt`` differs between clients, and with it whom they measure."""

    def __init__(self, measure: Ping, clock: Clock, *, salt: int = 0) -> None:
        self._measure = measure
        self._clock = clock
        self._salt = salt
        self._measured: dict[PeerId, _Measured] = {}
        self._running: dict[PeerId, _Running] = {}

    def known(self) -> dict[str, float]:
        """Round trips in seconds, by peer id."""
        now_s = self._clock.monotonic_s()
        self._measured = {peer: found for peer, found in self._measured.items() if now_s - found.at_s <= FORGET_S}
        return {peer: found.rtt_s for peer, found in self._measured.items() if found.rtt_s is not None}

    async def look(self, listings: Sequence[Listing], layers: int) -> None:
        """Measure whoever is due; return at once, or after ``WAIT_S`` at most if a server is measured for the first
        time and there is a choice to make.
        """
        firsts, lasts = ends(listings, layers, self._salt)
        candidates = {listing.peer: listing for listing in (*firsts, *lasts)}
        now_s = self._clock.monotonic_s()
        for peer, listing in candidates.items():
            known = self._measured.get(peer)
            if peer not in self._running and (known is None or now_s - known.at_s > FRESH_S):
                task = asyncio.create_task(self._look_at(listing), name=f"measure {peer[-8:]}")
                self._running[peer] = _Running(task, now_s)
        new = [run for peer, run in self._running.items() if peer in candidates and peer not in self._measured]
        left_s = max((run.began_s + WAIT_S - now_s for run in new), default=0.0)
        if left_s > 0 and max(len(firsts), len(lasts)) > 1:
            await asyncio.wait([run.task for run in new], timeout=left_s)

    async def _look_at(self, listing: Listing) -> None:
        peer = listing.peer
        try:
            rtt_s = await self._measure(peer, listing.announcement.addresses)
            self._measured[peer] = _Measured(rtt_s, self._clock.monotonic_s())
        finally:
            del self._running[peer]

    async def close(self) -> None:
        """End what is being measured. Idempotent."""
        tasks = [run.task for run in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def ends(listings: Iterable[Listing], layers: int, salt: int) -> tuple[list[Listing], list[Listing]]:
    """Live servers that hold the first of ``layers`` layers, and those that hold the last: ``MAX_MEASURED`` of each.

    Where there are more, ``salt`` decides, the same way each time.
    """

    def rank(listing: Listing) -> bytes:
        return hashlib.blake2b(f"{salt}/{listing.peer}".encode(), digest_size=8).digest()

    live = [
        listing
        for listing in listings
        if listing.metrics is not None
        and listing.announcement.state is State.ONLINE
        and listing.announcement.layer_count == layers
    ]
    live.sort(key=rank)
    firsts = [listing for listing in live if listing.announcement.start == 0]
    lasts = [listing for listing in live if listing.announcement.end == layers]
    return firsts[:MAX_MEASURED], lasts[:MAX_MEASURED]
