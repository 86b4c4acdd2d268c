"""The directory's in-memory fake: shared by the nodes of one process, with delay, stale reads, outages and lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.records import CLOCK_SKEW_S, AnyRecord, key_of
from swarm.dht.judge import Judge
from swarm.dht.limits import MAX_SUBKEYS
from swarm.dht.options import DirectoryOptions
from swarm.dht.reader import Reader
from swarm.dht.reads import Reads


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
        self._lies: dict[str, list[tuple[str, _Entry]]] = {}

    def inject(self, key: str, subkey: str, value: bytes, *, expires_s: float) -> None:
        """Answer any bytes under any key and subkey from now on, as a lying node could, beside what is stored."""
        self._lies.setdefault(key, []).append((subkey, _Entry(value, self.clock.wall_s(), expires_s)))

    def put(self, key: str, subkey: str, value: bytes, *, expires_s: float) -> bool:
        """Store as a node does; False if it has expired, does not expire after what is stored, or the key is full."""
        now_s = self.clock.wall_s()
        under = self._entries.setdefault(key, {})
        live = [entry for entry in under.get(subkey, ()) if entry.expires_s > now_s]
        if expires_s <= now_s or any(entry.expires_s >= expires_s for entry in live):
            return False
        if not live and len(under) >= MAX_SUBKEYS and len(self._stored(key, now_s)) >= MAX_SUBKEYS:
            return False
        seen_s = now_s - self.staleness_s
        # Kept: what stale readers still see (the newest write old enough, and all after it).
        visible = max((n for n, entry in enumerate(live) if entry.stored_s <= seen_s), default=0)
        under[subkey] = [*live[visible:], _Entry(value, now_s, expires_s)]
        return True

    def read(self, key: str) -> list[tuple[str, bytes]]:
        """Subkeys and values that had been stored ``staleness_s`` ago and have not expired, in order of subkey; lies
        come last."""
        now_s = self.clock.wall_s()
        lies = [(subkey, lie.value) for subkey, lie in self._lies.get(key, ()) if lie.expires_s > now_s]
        return self._stored(key, now_s) + lies

    def _stored(self, key: str, now_s: float) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        for subkey, history in sorted(self._entries.get(key, {}).items()):
            seen = [e for e in history if e.stored_s <= now_s - self.staleness_s and e.expires_s > now_s]
            if seen:
                found.append((subkey, seen[-1].value))
        return found


class MemoryDirectory(Reads):
    """One node's door to a ``MemoryDirectoryStore``. ``dropped`` counts the bad records it met, by reason."""

    def __init__(self, store: MemoryDirectoryStore, options: DirectoryOptions | None = None) -> None:
        options = options or DirectoryOptions()
        self._store = store
        self._closed = False
        self._judge = Judge(options.remembered_bytes)
        super().__init__(Reader(self._fetch, self._judge, store.clock, options, Random(0)))

    @property
    def dropped(self) -> Counter[str]:
        return self._judge.dropped

    async def publish(self, signed: bytes, record: AnyRecord) -> None:
        """See ``Directory.publish``."""
        await self._reach()
        lasting = record.expires_s <= self._store.clock.wall_s() + record.LIFETIME_S + CLOCK_SKEW_S
        if not (lasting and self._store.put(key_of(record), record.peer, signed, expires_s=record.expires_s)):
            raise NetworkError("no node of the directory stored the record", hint="check this machine's clock")

    async def close(self) -> None:
        """See ``Directory.close``; the other nodes' doors stay open."""
        self._closed = True

    async def _fetch(self, keys: Sequence[str]) -> dict[str, list[tuple[str, bytes]]]:
        await self._reach()
        return {key: self._store.read(key) for key in keys}

    async def _reach(self) -> None:
        if self._closed:
            raise NetworkError("the directory is closed")
        if self._store.delay_s > 0:
            await self._store.clock.sleep(self._store.delay_s)
        if self._store.down:
            raise NetworkError("the directory does not answer", hint="check the network")
