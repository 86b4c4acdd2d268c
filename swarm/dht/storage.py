"""What a DHT node holds for others, bounded: hivemind's own storage grows with whatever it is sent.

Its ``store`` also notes the expiry of a write that it refuses, so that replaying a server's older announcement would
take the newer one away early; here a refused write changes nothing. And its lookups merge what others answer into the
very dictionary they were given; here they get a copy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from swarm.core.clock import Clock
from swarm.core.records import CLOCK_SKEW_S
from swarm.dht.hivemind_import import DHTLocalStorage, DictionaryDHTValue, TimedStorage
from swarm.dht.limits import MAX_ANSWERED_SUBKEYS, MAX_KEY_BYTES, MAX_SUBKEYS

MAX_KEYS = 4096
"""Keys of one node, those of its own records apart."""
LEAST_CHARGE_BYTES = MAX_KEY_BYTES // MAX_SUBKEYS
"""Every record counts for as much, 2 KiB: so one that grows within it is never refused for lack of room."""
RECOUNT_S = 5.0
"""How long a full node stays full: counting hundred thousands of records takes tens of milliseconds."""
_RECORD_OVERHEAD_BYTES = 96
_STALE_HEAP_ENTRIES = 64


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind has no types
    """Dictionaries of records, at most ``max_keys`` with ``MAX_SUBKEYS`` and ``MAX_KEY_BYTES`` each, ``max_bytes`` in
    all; plain values never.

    Full, it refuses newcomers and goes on renewing what it holds, and always has room for this node's own records
    (``reserve``). ``longest_s`` says of a subkey, a value and its expiry how long a record of its kind may live.
    """

    def __init__(
        self, clock: Clock, longest_s: Callable[[Any, bytes, float], float], *, max_bytes: int, max_keys: int = MAX_KEYS
    ) -> None:
        super().__init__()
        self._clock = clock
        self._longest_s = longest_s
        self._max_bytes = max_bytes
        self._max_keys = max_keys
        self._own: set[tuple[Any, str]] = set()
        self._bytes = 0
        self._counted_s = -RECOUNT_S

    def reserve(self, key: Any, subkey: str) -> None:
        """Keep room for the record of this node under ``key``, whatever others store."""
        self._own.add((key, subkey))

    def count(self) -> int:
        """How many records are held that have not expired."""
        return sum(1 for _, held in self.items() for _ in held.value.items())

    def get(self, key: Any) -> Any:
        """hivemind's entry for lookups: what is held under ``key``, in a dictionary of the caller's own."""
        held = super().get(key)
        return None if held is None else type(held)(_copied(held.value), held.expiration_time)

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """hivemind's entry for a value of its own node; True if it was stored."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store one record under its server; False if it is full, too long-lived, or not newer than what is held."""
        now_s = self._clock.wall_s()
        if not self._may_live(now_s, subkey, value, expiration_time):
            return False
        held = super().get(key)
        records = held.value if held is not None else DictionaryDHTValue()
        known = records.get(subkey)
        if known is not None and not self._may_live(now_s, subkey, known.value, known.expiration_time):
            del records[subkey]  # stored while this machine's clock was ahead: it would bar all that comes
            known = None
        if known is not None and known.expiration_time >= expiration_time:
            return False
        growth = _charge(value) - (_charge(known.value) if known is not None else 0)
        if (key, subkey) not in self._own and not self._has_room(key, records, known is None, growth):
            return False
        self._bytes += max(growth, 0)
        records.store(subkey, value, expiration_time)
        if held is None or held.expiration_time < expiration_time:
            TimedStorage.store(self, key, records, expiration_time)
        _compact(records)
        _compact(self)
        return True

    def _may_live(self, now_s: float, subkey: Any, value: bytes, expires_s: float) -> bool:
        return now_s < expires_s <= now_s + self._longest_s(subkey, value, expires_s) + CLOCK_SKEW_S

    def _has_room(self, key: Any, records: Any, new: bool, growth: int) -> bool:
        if not new and growth <= 0:
            return True
        held = len(records)
        if new and held >= MAX_SUBKEYS:
            return False
        if new and not held and len(self) >= self._max_keys and all(key != own for own, _ in self._own):
            return False
        if sum(_charge(entry.value) for _, entry in records.items()) + growth > MAX_KEY_BYTES:
            return False
        return self._bytes + growth <= self._max_bytes or self._recounted() + growth <= self._max_bytes

    def _recounted(self) -> int:
        """Bytes charged for all that is held; ``_bytes`` also counts what has expired since it was last counted."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._counted_s + RECOUNT_S:
            self._counted_s = now_s
            self._bytes = sum(_charge(entry.value) for _, held in self.items() for _, entry in held.value.items())
        return self._bytes


def _charge(value: bytes) -> int:
    return max(len(value) + _RECORD_OVERHEAD_BYTES, LEAST_CHARGE_BYTES)


def _copied(records: Any) -> Any:
    copy = DictionaryDHTValue()
    copy.data, copy.key_to_heap = dict(records.data), dict(records.key_to_heap)
    copy.expiration_heap, copy.latest_expiration_time = list(records.expiration_heap), records.latest_expiration_time
    return copy


def _compact(storage: Any) -> None:
    """Drop what hivemind leaves in its heap with every renewal until the renewed entry would have expired."""
    if len(storage.expiration_heap) > 2 * len(storage.data) + _STALE_HEAP_ENTRIES:
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapq.heapify(storage.expiration_heap)


def bound(
    protocol: Any, clock: Clock, longest_s: Callable[[Any, bytes, float], float], *, max_bytes: int
) -> BoundedStorage:
    """Give a node's protocol bounded storage, and none for what strangers call cached: nobody here caches, and a
    cached value with a later expiry would be answered in place of all that is stored. And let it refuse dictionaries
    larger than any node holds before it checks thousands of signatures."""
    storage = BoundedStorage(clock, longest_s, max_bytes=max_bytes)
    protocol.storage = storage
    protocol.cache = BoundedStorage(clock, longest_s, max_bytes=0, max_keys=0)
    judge_entries = protocol._validate_dictionary

    def judge_dictionary(key: bytes, dictionary: Any) -> bool:
        return len(dictionary.data) <= MAX_ANSWERED_SUBKEYS and bool(judge_entries(key, dictionary))

    protocol._validate_dictionary = judge_dictionary
    return storage
