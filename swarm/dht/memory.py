"""The directory's in-memory fake: shared by the nodes of one process, with delay, stale reads, outages and lies."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError, PeerError
from swarm.core.ids import ModelId
from swarm.core.records import Announcement, State, read_announcement

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

    def inject(self, model: ModelId | str, subkey: str, value: bytes, *, expires_s: float) -> None:
        """Store any bytes under any subkey, as a lying node could. No check at all."""
        history = self._entries.setdefault(str(model), {}).setdefault(subkey, [])
        history.append(_Entry(value, self.clock.wall_s(), expires_s))

    def put(self, model: str, subkey: str, value: bytes, *, expires_s: float) -> bool:
        """Store as a node does; False if it has expired or does not expire after what is stored."""
        now_s = self.clock.wall_s()
        history = self._entries.setdefault(model, {}).setdefault(subkey, [])
        live = [entry for entry in history if entry.expires_s > now_s]
        if expires_s <= now_s or any(entry.expires_s >= expires_s for entry in live):
            return False
        seen_s = now_s - self.staleness_s
        # Kept: what stale readers still see (the newest write old enough, and all after it).
        visible = max((n for n, entry in enumerate(live) if entry.stored_s <= seen_s), default=0)
        history[:] = [*live[visible:], _Entry(value, now_s, expires_s)]
        return True

    def read(self, model: str) -> list[tuple[str, bytes]]:
        """Subkeys and values that had been stored ``staleness_s`` ago and have not expired, in order of subkey."""
        now_s = self.clock.wall_s()
        found: list[tuple[str, bytes]] = []
        for subkey, history in sorted(self._entries.get(model, {}).items()):
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

    async def announce(self, record: bytes, announcement: Announcement) -> None:
        """See ``Directory.announce``."""
        await self._reach()
        stored = self._store.put(announcement.model, announcement.peer, record, expires_s=announcement.expires_s)
        if not stored:
            raise NetworkError("no node of the directory stored the announcement", hint="check this machine's clock")

    async def servers(self, model: ModelId) -> list[tuple[Announcement, bytes]]:
        """See ``Directory.servers``."""
        await self._reach()
        live: list[tuple[Announcement, bytes]] = []
        for peer, value in self._store.read(str(model)):
            try:
                announcement = read_announcement(value, now_s=self._store.clock.wall_s(), expected_peer=peer)
            except PeerError as error:
                self.dropped[type(error).__name__] += 1
                _log.debug("dropped a directory record: %s", error)
                continue
            if announcement.state is not State.OFFLINE and announcement.model == str(model):
                live.append((announcement, value))
        return live

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
