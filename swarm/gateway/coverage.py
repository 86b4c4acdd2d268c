"""Whether a session could be had now: which layers nobody serves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from swarm.client.parts import ClientParts
from swarm.core.spans import Span
from swarm.scheduling.coverage import holders, runs, usable

FRESH_S = 2.0
"""Whoever asks within so long of a look shares it: strangers may ask as often as they like."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The model's servers that a session could use, and the layers that none of them holds."""

    servers: int
    missing: tuple[Span, ...]


class CoverageWatch:
    """Looks into the directory when asked, but not more often than every ``FRESH_S``."""

    def __init__(self, parts: ClientParts) -> None:
        self._parts = parts
        self._lock = asyncio.Lock()
        self._last: tuple[float, Coverage] | None = None

    async def look(self) -> Coverage:
        """The coverage now; raises ``NetworkError`` if the directory cannot be asked."""
        async with self._lock:
            now_s = self._parts.clock.monotonic_s()
            if self._last is None or now_s - self._last[0] > FRESH_S:
                listings = await self._parts.directory.servers(self._parts.files.model_id)
                spans = [listing.announcement.span for listing in listings if usable(listing)]
                stretches = runs(holders(spans, self._parts.files.layer_count))
                self._last = now_s, Coverage(len(spans), tuple(span for span, count in stretches if not count))
            return self._last[1]
