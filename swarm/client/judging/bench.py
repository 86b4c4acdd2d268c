"""One client's judgement of others at work: its jury, its voice, and what its own sessions show."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarm.client.evidence.records import SessionRecord
from swarm.client.evidence.witness import Witness
from swarm.client.finding.ground import Ground
from swarm.client.judging.accuser import Accuser
from swarm.client.judging.consequences import Consequences
from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.dht.protocol import Directory
from swarm.runtime.tasks import Tasks

FIRST_LOOK_S = 0.5
"""How long a client's first session waits for what is said of servers, so that it is not spent on a known cheat."""

STALE_S = 60.0
"""While nobody asks for anything the servers there are are read no more often than this."""
CLOSE_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BenchParts:
    """What the client is made of, as far as it matters here. Without an ``identity`` it tells others nothing."""

    ground: Ground
    directory: Directory
    model: ModelId
    witness: Witness
    identity: Identity | None


class Bench:
    """Begins with the client's first session, and lasts as long as the client. ``serving`` says who serves it now."""

    def __init__(self, parts: BenchParts, serving: Callable[[], Iterable[str]]) -> None:
        ground = parts.ground
        self._parts = parts
        self._serving = serving
        self._tasks = Tasks(self._failed)
        self._begun: asyncio.Task[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        self._closed = False
        seat = Seat(ground.transport, parts.directory, ground.clock, parts.model, ground.reputation)
        self._accuser = None if parts.identity is None else Accuser(seat, parts.identity)
        self.jury = Jury(seat, self._listed, accuser=self._accuser, chance=ground.random)
        self._consequences = Consequences(ground.reputation, self.jury, ground.transport.peer_id)
        parts.witness.on_settled.append(self._settled)

    async def begin(self) -> None:
        """Start, the first time, and give the first look a moment."""
        if self._begun is not None:
            return
        self._begun = self._tasks.spawn(self._first_look(), name="first look at accusations")
        await asyncio.wait({self._begun}, timeout=FIRST_LOOK_S)

    async def _first_look(self) -> None:
        try:
            await self.jury.look()
        except NetworkError as error:
            _log.debug("could not read accusations: %s", error)
        self._tasks.spawn(self.jury.run(), name="jury")
        if self._accuser is not None:
            await self._accuser.serve()
            self._tasks.spawn(self._accuser.run(), name="accuser")

    async def close(self) -> None:
        """Judge no more, once what the last sessions showed is noted. Idempotent."""
        self._closed = True
        if self._following:
            await asyncio.wait(self._following, timeout=CLOSE_S)
        await self._tasks.close()
        await self.jury.close()

    async def _listed(self) -> Sequence[PeerId]:
        """Those that serve this client's sessions first, then everybody."""
        view, clock = self._parts.ground.view, self._parts.ground.clock
        stale = view.read_s is None or clock.monotonic_s() - view.read_s > STALE_S
        seen = await view.look() if stale else view.now()
        return list(dict.fromkeys([*map(PeerId, self._serving()), *(listing.peer for listing in seen.listings)]))

    def _settled(self, record: SessionRecord) -> None:
        if self._closed:
            return
        task = self._tasks.spawn(self._follow(record), name="consequences of a session")
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def _follow(self, record: SessionRecord) -> None:
        try:
            entering = asyncio.get_running_loop().run_in_executor(None, self._consequences.enter, record)
        except RuntimeError:  # a program that did not close us ends, and begins no thread any more
            self._consequences.enter(record)
            return
        await entering
        await self._consequences.of(record)

    def _failed(self, name: str, error: Exception) -> None:
        _log.error("%s failed: %s", name, error)
