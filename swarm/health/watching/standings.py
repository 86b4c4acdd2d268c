"""What this machine makes of servers: its own store, which a verifier or a client here writes, and what others prove.

The store is only read. What others say is heard by a jury of the page's own, with a store that lasts as long as it:
a proof of equivocation is checked there and counts, one that only somebody with the weights could check accuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random

from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.core.clock import Clock
from swarm.core.errors import SwarmError
from swarm.core.ids import ModelId, PeerId
from swarm.dht.protocol import Directory
from swarm.health.sight import Repute
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.runtime.tasks import Tasks
from swarm.transport.protocol import Transport
from swarm.verification.standings.strikes import TRUSTED, Standing

MAX_JURIES = 8
"""Models whose servers are heard of; each jury reads a few keys every ten seconds, and holds one proof at a time."""
MAX_SHOWN_PROOFS = 8
"""Of one server, the latest."""

_log = logging.getLogger(__name__)


class Standings:
    """Reads both stores. ``serving`` says who serves a model."""

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        clock: Clock,
        store: ReputationStore | None,
        serving: Callable[[str], Sequence[PeerId]],
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._clock = clock
        self._local = store
        self._serving = serving
        self._heard = ReputationStore(IN_MEMORY, clock)
        self._tasks = Tasks(self._failed)
        self._juries: dict[str, tuple[Jury, asyncio.Task[None]]] = {}

    async def follow(self, models: Collection[ModelId]) -> None:
        """From now on hear what is said of the servers of these models, of ``MAX_JURIES`` at most, and no others."""
        wanted = {str(model): model for model in list(models)[:MAX_JURIES]}
        for name in [name for name in self._juries if name not in wanted]:
            jury, task = self._juries.pop(name)
            task.cancel()
            await jury.close()
        for name, model in wanted.items():
            if name not in self._juries:
                seat = Seat(self._transport, self._directory, self._clock, model, self._heard, at_once=1)
                jury = Jury(seat, self._listed(name), chance=Random())
                self._juries[name] = jury, self._tasks.spawn(jury.run(), name=f"jury of {name}")

    async def close(self) -> None:
        """Hear no more. Idempotent."""
        await self._tasks.close()
        for jury, _ in self._juries.values():
            await jury.close()
        self._heard.close()

    def read(self, peers: Collection[PeerId]) -> dict[PeerId, Repute]:
        """What is known of ``peers``, strangers left out. Blocks for some milliseconds; raises as the store does."""
        stores = [store for store in (self._local, self._heard) if store is not None]
        accused = frozenset[PeerId]().union(*(store.accused() for store in stores))
        proofs: dict[PeerId, list[tuple[float, str]]] = defaultdict(list)
        for store in stores:
            for kept in store.proofs():
                proofs[kept.subject].append((kept.time_s, kept.digest.hex()))
        found = {}
        for peer in peers:
            known = [store.standing(peer) for store in stores]
            if peer in accused or peer in proofs or any(one != Standing() for one in known):
                found[peer] = _together(known, peer in accused, proofs.get(peer, ()))
        return found

    def proof(self, digest: bytes) -> bytes | None:
        """A proof that was checked here. Blocks; raises as the store does."""
        found = self._heard.proof(digest)
        return found if found is not None or self._local is None else self._local.proof(digest)

    def _listed(self, model: str) -> Callable[[], Awaitable[Sequence[PeerId]]]:
        async def listed() -> Sequence[PeerId]:
            return self._serving(model)

        return listed

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, SwarmError):
            _log.warning("%s: %s", name, error)
        else:
            _log.error("%s failed: %r", name, error)


def _together(known: Sequence[Standing], accused: bool, proofs: Sequence[tuple[float, str]]) -> Repute:
    ejected = any(standing.ejected for standing in known)
    digests = list(dict.fromkeys(digest for _, digest in sorted(proofs, reverse=True)))
    return Repute(
        audited=max(standing.audited for standing in known),
        strikes=max(len(standing.strikes) for standing in known),
        ejected=ejected,
        accused=accused and not ejected,
        trusted=any(entry.reference == TRUSTED for standing in known for entry in standing.evidence),
        proofs=tuple(digests[:MAX_SHOWN_PROOFS]),
    )
