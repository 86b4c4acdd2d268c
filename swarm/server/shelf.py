"""Rows of sessions that are over, kept for a while so that their clients can have them audited."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.ids import SessionKey
from swarm.server.kept import Kept
from swarm.server.replay_log import ReplayBudget

SWEEP_S = 5.0
ENTRY_BYTES = 4096
"""What a closed session counts for beside its rows."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A stage that is over. ``commitment`` is what its client committed to at the opening."""

    commitment: bytes
    kept: Kept
    closed_s: float


class Shelf:
    """Closed sessions within a budget that running ones share, and come first in: the oldest are dropped for them.

    Nothing stays for longer than ``hold_s``.
    """

    def __init__(self, clock: Clock, hold_s: float, budget: ReplayBudget) -> None:
        self._clock = clock
        self._hold_s = hold_s
        self._budget = budget
        self._closed: OrderedDict[SessionKey, Closed] = OrderedDict()
        self._ending: set[SessionKey] = set()
        budget.spare = self._drop_oldest

    def __len__(self) -> int:
        return len(self._closed)

    @property
    def size_bytes(self) -> int:
        """What everything here counts for. O(rows)."""
        return sum(ENTRY_BYTES + closed.kept.size_bytes for closed in self._closed.values())

    def expect(self, key: SessionKey) -> None:
        """A session is ending: until ``put`` it is neither running nor here."""
        self._ending.add(key)

    def expects(self, key: SessionKey) -> bool:
        """True if that session is about to be put here."""
        return key in self._ending

    def put(self, key: SessionKey, commitment: bytes, kept: Kept) -> None:
        """A session is over: keep its rows, or give back what they take."""
        self._ending.discard(key)
        kept.finish()
        if kept.notary is None or not kept.notary.rows or not self._hold_s:
            kept.close()
            return
        self._drop(key)
        self._closed[key] = Closed(commitment, kept, self._clock.monotonic_s())
        self._budget.charge(ENTRY_BYTES)

    def find(self, key: SessionKey) -> Closed | None:
        """The closed session of that name, if it is still kept."""
        self.expire()
        return self._closed.get(key)

    def expire(self) -> None:
        """Drop what has been here for long enough."""
        since_s = self._clock.monotonic_s() - self._hold_s
        while self._closed and next(iter(self._closed.values())).closed_s <= since_s:
            self._drop_oldest()

    async def sweep(self) -> None:
        """Expire until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            self.expire()

    def _drop_oldest(self) -> bool:
        if not self._closed:
            return False
        self._drop(next(iter(self._closed)))
        return True

    def _drop(self, key: SessionKey) -> None:
        closed = self._closed.pop(key, None)
        if closed is not None:
            self._budget.give(ENTRY_BYTES)
            closed.kept.close()
