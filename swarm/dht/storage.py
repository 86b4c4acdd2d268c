"""What a DHT node holds for others, bounded: hivemind's own storage grows with whatever it is sent.

Its ``store`` also notes the expiry of a write that it refuses, so that replaying a server's older announcement would
take the newer one away early; here a refused write changes nothing.
"""

from __future__ import annotations

from typing import Any

from swarm.core.clock import Clock
from swarm.core.limits import MAX_RECORD_BYTES, MAX_RECORD_LIFETIME_S
from swarm.core.records import CLOCK_SKEW_S
from swarm.dht.hivemind_import import DHTLocalStorage

MAX_MODEL_BYTES = 3 * 512 * 1024
"""Records under one key: all travel in one answer, of which libp2p's daemon takes 2 MiB."""
MAX_MODELS = 64
"""Keys of one node, those of its own announcements apart."""
FULL_S = 1.0
"""How long a key that was full is not counted again: counting thousands of records takes a third of a millisecond."""
_RECORD_OVERHEAD_BYTES = 96


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]  # hivemind has no types
    """Dictionaries of records, at most ``max_models`` of them with ``MAX_MODEL_BYTES`` each; plain values never.

    Full, it refuses newcomers and goes on renewing what it holds, and always has room for this node's own records
    (``reserve``). Nothing is stored that lives longer than a record may.
    """

    def __init__(self, clock: Clock, *, max_models: int = MAX_MODELS) -> None:
        super().__init__()
        self._clock = clock
        self._max_models = max_models
        self._own: set[tuple[Any, str]] = set()
        self._full_until_s: dict[Any, float] = {}

    def reserve(self, key: Any, subkey: str) -> None:
        """Keep room for the record of this node under ``key``, whatever others store."""
        self._own.add((key, subkey))

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """hivemind's entry for a value of its own node; True if it was stored."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store one record under its server; False if it is full, or not newer than what is held."""
        if expiration_time > self._clock.wall_s() + MAX_RECORD_LIFETIME_S + CLOCK_SKEW_S:
            return False
        held = self.get(key)
        records = held.value if held is not None else None
        known = records.get(subkey) if records is not None else None
        if known is not None and known.expiration_time >= expiration_time:
            return False
        if known is None and (key, subkey) not in self._own and not self._has_room(key, records, value):
            return False
        return bool(super().store_subkey(key, subkey, value, expiration_time))

    def _has_room(self, key: Any, records: Any, value: bytes) -> bool:
        if records is None:
            ours = any(key == own for own, _ in self._own)
            return ours or len(self) < self._max_models
        if len(records) * (MAX_RECORD_BYTES + _RECORD_OVERHEAD_BYTES) < MAX_MODEL_BYTES:
            return True
        now_s = self._clock.monotonic_s()
        if now_s < self._full_until_s.get(key, now_s):
            return False
        held_bytes = sum(len(entry.value) + _RECORD_OVERHEAD_BYTES for _, entry in records.items())
        if fits := held_bytes + len(value) <= MAX_MODEL_BYTES:
            self._full_until_s.pop(key, None)
        else:
            self._full_until_s[key] = now_s + FULL_S
        return fits


def bound(protocol: Any, clock: Clock) -> BoundedStorage:
    """Give a node's protocol bounded storage, and none for what strangers call cached: nobody here caches, and a
    cached value with a later expiry would be answered in place of all that is stored."""
    protocol.storage = BoundedStorage(clock)
    protocol.cache = BoundedStorage(clock, max_models=0)
    storage: BoundedStorage = protocol.storage
    return storage
