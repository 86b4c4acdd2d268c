"""Storing one's own records at the nodes nearest to their key, cheaply enough to do it every second.

hivemind's own ``store`` looks for those nodes anew each time, and every node asked answers with all that stands under
the key.
"""

from __future__ import annotations

import asyncio
from typing import Any

from swarm.core.clock import Clock
from swarm.dht.hivemind_import import DHTID, MSGPackSerializer

REPLICAS = 5
"""Nodes that hold each record, if there are as many."""
CANDIDATES = 20
"""Nearest nodes that are tried until ``REPLICAS`` have stored it; readers ask as many."""
_MAX_KEYS = 64


class Writer:
    """Stores records through ``node``, and knows for ``known_s`` which nodes are nearest to a key."""

    def __init__(self, node: Any, clock: Clock, known_s: float) -> None:
        self._node = node
        self._clock = clock
        self._known_s = known_s
        self._nearest: dict[Any, tuple[float, dict[Any, Any]]] = {}

    async def store(self, key: Any, subkey: str, value: bytes, expires_s: float) -> bool:
        """Store at the nearest ``REPLICAS`` nodes that take it; False if none does."""
        fresh = not self._knows(key)
        stored = await self._store_at(await self._nodes(key), key, subkey, value, expires_s)
        if not stored and not fresh:  # those that were known may be gone
            self._nearest.pop(key, None)
            stored = await self._store_at(await self._nodes(key), key, subkey, value, expires_s)
        return stored > 0

    def forget(self) -> None:
        """Look anew for the nodes nearest to each key: others have come or gone."""
        self._nearest.clear()

    async def _store_at(self, nodes: dict[Any, Any], key: Any, subkey: str, value: bytes, expires_s: float) -> int:
        packed = MSGPackSerializer.dumps(value)

        async def ask(node_id: Any, peer: Any) -> bool:
            protocol = self._node.protocol
            if node_id == self._node.node_id:
                return bool(protocol.storage.store(key, packed, expires_s, subkey=subkey))
            answer = await protocol.call_store(peer, [key], [packed], [expires_s], subkeys=[subkey])
            if answer is None:
                self._nearest.pop(key, None)
            return answer is not None and any(answer)

        waiting, stored = list(nodes.items()), 0
        while waiting and stored < REPLICAS:
            now, waiting = waiting[: REPLICAS - stored], waiting[REPLICAS - stored :]
            stored += sum(await asyncio.gather(*(ask(node_id, peer) for node_id, peer in now)))
        return stored

    def _knows(self, key: Any) -> bool:
        known = self._nearest.get(key)
        return known is not None and self._clock.monotonic_s() < known[0]

    async def _nodes(self, key: Any) -> dict[Any, Any]:
        if not self._knows(key):
            beside = DHTID(key ^ 1)  # as near to the same nodes, and nothing stands there that they would send
            found = await self._node.find_nearest_nodes(
                [beside], k_nearest=CANDIDATES, exclude_self=self._node.protocol.client_mode
            )
            if len(self._nearest) >= _MAX_KEYS:
                self._nearest.clear()
            self._nearest[key] = self._clock.monotonic_s() + self._known_s, found[beside]
        return self._nearest[key][1]
