"""A sleep that somebody may cut short."""

from __future__ import annotations

import asyncio

from swarm.core.clock import Clock


class Bell:
    """One sleeper's bell. A ring that comes before the sleep is not lost, and two rings are one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake the sleeper, or let its next sleep end at once."""
        self._rung.set()

    async def sleep(self, seconds: float) -> bool:
        """Return after ``seconds`` of the clock, or with the next ring: True if it rang."""
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(self._rung.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeping, waking):
                task.cancel()
            await asyncio.gather(sleeping, waking, return_exceptions=True)
        rang = self._rung.is_set()
        self._rung.clear()
        return rang
