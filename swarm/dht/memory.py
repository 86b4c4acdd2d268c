"""The directory's in-memory fake: shared by the nodes of one process, with delay, stale reads, outages and lies."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from swarm.core.announcement import Announcement
from swarm.core.clock import Clock
from swarm.core.errors import BadRecordError, NetworkError, PeerError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.records import MODELS_KEY, AnyRecord, key_of, read_record, shard_key
from swarm.dht.merge import Kind, listings, sorted_entries

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One write: ``stored_s`` and ``expires_s`` are wall time of the shared clock."""

    value: bytes
    stored_s: float
    expires_s: float


class MemoryDirectoryStore:
    """What all nodes share. Behaves as the DHT does: a write must expire later than the one it replaces.

    ``delay_s`` is how long every call takes, ``staleness_s`` how far behind every read is. While ``down`` is true all
    calls fail.
    """

    def __init__(self, clock: Clock, *, delay_s: float = 0.0, staleness_s: float = 0.0) -> None:
        self.clock = clock
        self.delay_s = delay_s
        self.staleness_s = staleness_s
        self.down = False
        self._entries: dict[str, dict[str, list[_Entry]]] = {}

    def inject(self, key: str, subkey: str, value: bytes, *, expires_s: float) -> None:
        """Store any bytes under any key and subkey, as a lying node could. No check at all."""
        history = self._entries.setdefault(key, {}).setdefault(subkey, [])
        history.append(_Entry(value, self.clock.wall_s(), expires_s))

    def put(self, key: str, subkey: str, value: bytes, *, expires_s: float) -> bool:
        """Store as a node does; False if it has expired or does not expire after what is stored."""
        now_s = self.clock.wall_s()
        history = self._entries.setdefault(key, {}).setdefault(subkey, [])
        live = [entry for entry in history if entry.expires_s > now_s]
        if expires_s <= now_s or any(entry.expires_s >= expires_s for entry in live):
            return False
        seen_s = now_s - self.staleness_s
        # Kept: what stale readers still see (the newest write old enough, and all after it).
        visible = max((n for n, entry in enumerate(live) if entry.stored_s <= seen_s), default=0)
        history[:] = [*live[visible:], _Entry(value, now_s, expires_s)]
        return True

    def read(self, key: str) -> list[tuple[str, bytes]]:
        """Subkeys and values that had been stored ``staleness_s`` ago and have not expired, in order of subkey."""
        now_s = self.clock.wall_s()
        found: list[tuple[str, bytes]] = []
        for subkey, history in sorted(self._entries.get(key, {}).items()):
            seen = [e for e in history if e.stored_s <= now_s - self.staleness_s and e.expires_s > now_s]
            if seen:
                found.append((subkey, seen[-1].value))
        return found


class MemoryDirectory:
    """One node's door to a ``MemoryDirectoryStore``. ``dropped`` counts the bad records it met, by reason."""

    def __init__(self, store: MemoryDirectoryStore) -> None:
        self._store = store
        self._closed = False
        self.dropped: Counter[str] = Counter()

    async def publish(self, signed: bytes, record: AnyRecord) -> None:
        """See ``Directory.publish``."""
        await self._reach()
        if not self._store.put(key_of(record), record.peer, signed, expires_s=record.expires_s):
            raise NetworkError("no node of the directory stored the record", hint="check this machine's clock")

    async def servers(self, model: ModelId) -> list[Listing]:
        """See ``Directory.servers``."""
        await self._reach()
        name = str(model)
        announced = self._read(shard_key(Announcement, name, ""), Announcement)
        metrics = self._read(shard_key(Metrics, name, ""), Metrics)
        live = [entry for entry in announced if entry[0].model == name]
        return listings(live, [found for found, _ in metrics if found.model == name])

    async def models(self) -> list[ModelEntry]:
        """See ``Directory.models``."""
        await self._reach()
        return list({entry.model: entry for entry, _ in sorted_entries(self._read(MODELS_KEY, ModelEntry))}.values())

    async def shard_depth(self, model: ModelId) -> int:
        """See ``Directory.shard_depth``: one process needs one key."""
        return 0

    def _read(self, key: str, kind: type[Kind]) -> list[tuple[Kind, bytes]]:
        found: list[tuple[Kind, bytes]] = []
        for peer, value in self._store.read(key):
            try:
                record = read_record(value, now_s=self._store.clock.wall_s(), expected_peer=peer)
                if not isinstance(record, kind):
                    raise BadRecordError("a record of another kind", peer=peer)
            except PeerError as error:
                self.dropped[type(error).__name__] += 1
                _log.debug("dropped a directory record: %s", error)
                continue
            found.append((record, value))
        return found

    async def close(self) -> None:
        """See ``Directory.close``; the other nodes' doors stay open."""
        self._closed = True

    async def _reach(self) -> None:
        if self._closed:
            raise NetworkError("the directory is closed")
        if self._store.delay_s > 0:
            await self._store.clock.sleep(self._store.delay_s)
        if self._store.down:
            raise NetworkError("the directory does not answer", hint="check the network")
