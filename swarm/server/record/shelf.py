"""Rows of sessions that are over, kept for a while so that their clients can have them audited."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.ids import PeerId, SessionKey
from swarm.server.record.kept import Kept
from swarm.server.record.replay_log import ReplayBudget

SWEEP_S = 5.0
ENTRY_BYTES = 4096
"""What a closed session counts for beside its rows."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A stage that is over. ``commitment`` is what its client committed to at the opening."""

    commitment: bytes
    kept: Kept
    closed_s: float
    size_bytes: int


class Shelf:
    """Closed sessions within a budget that running ones share, and come first in: the oldest are dropped for them.

    Nothing stays for longer than ``hold_s``. Who holds more than half of the shelf makes room first, so that nobody
    can have everybody else's audits fail by closing one session after the other.
    """

    def __init__(self, clock: Clock, hold_s: float, budget: ReplayBudget) -> None:
        self._clock = clock
        self._hold_s = hold_s
        self._budget = budget
        self._closed: OrderedDict[SessionKey, Closed] = OrderedDict()
        self._ending: set[SessionKey] = set()
        self._held_bytes: Counter[PeerId] = Counter()
        budget.spare = self.drop_one

    def __len__(self) -> int:
        return len(self._closed)

    @property
    def size_bytes(self) -> int:
        """What everything here counts for."""
        return self._held_bytes.total()

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
        size_bytes = ENTRY_BYTES + kept.size_bytes
        self._closed[key] = Closed(commitment, kept, self._clock.monotonic_s(), size_bytes)
        self._held_bytes[key.client] += size_bytes
        self._budget.charge(ENTRY_BYTES)

    def find(self, key: SessionKey) -> Closed | None:
        """The closed session of that name, if it is still kept."""
        self.expire()
        return self._closed.get(key)

    def expire(self) -> None:
        """Drop what has been here for long enough."""
        since_s = self._clock.monotonic_s() - self._hold_s
        while self._closed and next(iter(self._closed.values())).closed_s <= since_s:
            self._drop(next(iter(self._closed)))

    async def sweep(self) -> None:
        """Expire until cancelled."""
        while True:
            await self._clock.sleep(SWEEP_S)
            self.expire()

    def drop_one(self) -> bool:
        """Give up the session that has the least claim to room; False if there is none."""
        if not self._closed:
            return False
        [(greedy, held_bytes)] = self._held_bytes.most_common(1)
        first: Iterator[SessionKey] = iter(self._closed)
        if 2 * held_bytes > self.size_bytes:
            first = (key for key in self._closed if key.client == greedy)
        self._drop(next(first))
        return True

    def _drop(self, key: SessionKey) -> None:
        closed = self._closed.pop(key, None)
        if closed is not None:
            self._budget.give(ENTRY_BYTES)
            closed.kept.close()
            self._held_bytes[key.client] -= closed.size_bytes
            if not self._held_bytes[key.client]:
                del self._held_bytes[key.client]
