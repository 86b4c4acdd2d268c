"""When to judge what broke a chain: a moment after the first evidence, for better may come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm.client.chains.diagnosis import Diagnosis

BLAME_WAIT_S = 0.1
"""How long a broken chain waits for a better reason: a server's own word beats its neighbours' guesses."""
ACCUSED_WAIT_S = 0.5
"""So long if there are only guesses: neighbours may notice a silence a few beats before the client does."""


class Hearing:
    """Calls ``judge`` once, at the earliest of the times that the evidence asked for."""

    def __init__(self, judge: Callable[[], None]) -> None:
        self._judge = judge
        self._timer: asyncio.TimerHandle | None = None

    def weigh(self, diagnosis: Diagnosis, numbers: Sequence[int]) -> None:
        """There is new evidence about the chain of these ``numbers``: if it says that something broke, judge soon."""
        if any(number in diagnosis.lost for number in numbers):
            self._appoint(BLAME_WAIT_S)
        elif diagnosis.cuts(numbers):
            self._appoint(ACCUSED_WAIT_S)

    def call_off(self) -> None:
        """Whoever judges now does so by himself, or never. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _appoint(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + wait_s:
            self.call_off()
            self._timer = loop.call_later(wait_s, self._judge)
