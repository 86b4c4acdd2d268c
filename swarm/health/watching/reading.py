"""Reads the directory: which models there are, who serves them, and who did until a moment ago."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.client.finding.snapshot import layer_count_of
from swarm.core.announcement import State
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.dht.protocol import Directory
from swarm.health.sight import Seen
from swarm.models.demo import SMOLLM2
from swarm.models.resolve import DEMO

INDEX_EVERY_S = 10.0
"""The index is read so often; it changes when models come and go."""
MAX_MODELS = 64
"""On one page, those with the most servers that it reaches."""
MAX_KNOWN = 512
"""Whose servers are looked for: as many as an index can hold, so that nobody crowds out others by made-up names."""
READ_AT_ONCE = 16
"""Models whose servers are read in one round, those that wait longest."""
TURNS = 4
"""Of a round, for those without servers; the rest is for those with some, so that made-up ones delay none of them."""
UNREAD_S = 6.0
"""A model that was not read for so long is judged as it was then: many wait for their turn, or the directory is out."""
GONE_S = 600.0
"""So long a server is shown whose record ran out without a goodbye,"""
ENDED_S = 24 * 3600.0
"""and a model without servers that nobody lists any more."""
ANNOUNCED_S = 60.0
"""An announcement is made for so long, mostly; so a server that nothing else is known of was there that long ago."""

_DEMO = f"{SMOLLM2.name}@{SMOLLM2.revision}"


@dataclass(slots=True)
class ModelRead:
    """A model as the directory has it. ``last_at``: when somebody last spoke of it.

    ``layers`` is what most of its servers say, or 0, ``hidden_size`` what most of its entries do; as long as one of
    them says so, others who come do not change it.
    """

    model: ModelId
    layers: int = 0
    hidden_size: int | None = None
    servers: Mapping[PeerId, Seen] = field(default_factory=dict)
    last_at: float = 0.0
    read_at: float = 0.0
    """When its servers were read last."""
    turn: int = 0
    """The round in which its servers were read last, or it was heard of."""

    def as_of(self, now_s: float) -> float:
        """The moment by which its records are judged: while others are read, a server cannot renew what is known."""
        return min(now_s, self.read_at + UNREAD_S)

    def counting(self) -> tuple[Seen, ...]:
        """Its servers, those left out that announce another number of layers: they are of no model there is."""
        return tuple(seen for seen in self.servers.values() if seen.listing.announcement.layer_count == self.layers)


def merged(before: Mapping[PeerId, Seen], listings: Sequence[Listing], now_s: float) -> dict[PeerId, Seen]:
    """The servers of a model after a reading at wall time ``now_s``, those included that vanished without a goodbye.

    A reader keeps records until they expire, so one that is absent before has said that it goes; so has one that was
    draining, and one that was joining never came.
    """
    servers: dict[PeerId, Seen] = {}
    for listing in listings:
        old = before.get(listing.peer)
        servers[listing.peer] = Seen(listing, _seen_at(old, listing, now_s))
    for peer, seen in before.items():
        told = seen.listing.announcement
        vanished = seen.gone or (told.expires_s <= now_s and told.state is State.ONLINE)
        if peer not in servers and vanished and now_s - seen.seen_at < GONE_S:
            servers[peer] = Seen(Listing(seen.listing.announcement, seen.listing.record), seen.seen_at, gone=True)
    return servers


def _seen_at(old: Seen | None, listing: Listing, now_s: float) -> float:
    if listing.metrics is None:
        made_s = min(listing.announcement.expires_s - ANNOUNCED_S, now_s)
        return made_s if old is None else max(old.seen_at, made_s)
    if old is not None and old.listing.metrics == listing.metrics:
        return old.seen_at
    return now_s


def told_sizes(entries: Sequence[ModelEntry]) -> dict[str, list[int]]:
    """What is said of each model's rows, that which most say first; models of which nobody says anything left out."""
    said: dict[str, Counter[int]] = {}
    for entry in entries:
        if entry.hidden_size:
            said.setdefault(entry.model, Counter())[entry.hidden_size] += 1
    return {model: [size for size, _ in sizes.most_common()] for model, sizes in said.items()}


class Reading:
    """What the directory said, brought up to date by ``look``. ``wanted`` restricts it to models of these ids or names
    (``demo`` is the demo model).

    ``directory_at`` is when it last answered, ``problem`` why it does not at present.
    """

    def __init__(self, directory: Directory, clock: Clock, wanted: Sequence[str] = ()) -> None:
        self._directory = directory
        self._clock = clock
        self._wanted = frozenset(_DEMO if name == DEMO else name for name in wanted)
        self._index_s: float | None = None
        self._turn = 0
        self.models: dict[str, ModelRead] = {}
        self.directory_at: float | None = None
        self.problem = ""
        for name in wanted:
            self._add_wanted(name)

    async def look(self) -> None:
        """One round: the index if it is due, and the servers of as many models as a round has room for."""
        try:
            now_s = self._clock.monotonic_s()
            if self._index_s is None or now_s - self._index_s >= INDEX_EVERY_S:
                self._take_index(await self._directory.entries())
                self._index_s = now_s
            reads = [asyncio.create_task(self._read(model)) for model in self._round()]
            if reads:
                await _all(reads)
        except NetworkError as error:
            self.problem = error.message
            return
        self.problem = ""
        self.directory_at = self._clock.wall_s()

    def shown(self, reached: Collection[PeerId] = ()) -> list[ModelRead]:
        """``MAX_MODELS`` at most: records cost nothing, so servers that were ``reached`` count before others."""
        return self._ranked(reached)[:MAX_MODELS]

    async def _read(self, model: ModelRead) -> None:
        listings = await self._directory.servers(model.model)
        now_s = self._clock.wall_s()
        model.servers = merged(model.servers, listings, now_s)
        model.read_at = now_s
        if listings:
            model.last_at = now_s
            if all(listing.announcement.layer_count != model.layers for listing in listings):
                model.layers = layer_count_of(listings, None)

    def _add_wanted(self, name: str) -> None:
        """A model named whole is looked for whether or not the index has it."""
        try:
            model = ModelId.parse(name)
        except ConfigError:
            return
        self.models[str(model)] = ModelRead(model)

    def _take_index(self, entries: Sequence[ModelEntry]) -> None:
        now_s = self._clock.wall_s()
        for entry in entries:
            model = ModelId.parse(entry.model)
            if self._wanted and not self._wanted & {entry.model, model.name, f"{model.name}@{model.revision}"}:
                continue
            known = self.models.setdefault(entry.model, ModelRead(model, turn=self._turn))
            known.last_at = now_s
            if not known.servers:
                known.layers = entry.layer_count
        sizes = told_sizes(entries)
        for name, known in self.models.items():
            if name in sizes and known.hidden_size not in sizes[name]:
                known.hidden_size = next(iter(sizes[name]))
        for name, known in list(self.models.items()):
            if not known.servers and now_s - known.last_at > ENDED_S and name not in self._wanted:
                del self.models[name]
        for forgotten in self._ranked()[MAX_KNOWN:]:
            del self.models[str(forgotten.model)]

    def _ranked(self, reached: Collection[PeerId] = ()) -> list[ModelRead]:
        def rank(model: ModelRead) -> tuple[int, int, float, str]:
            present = [peer for peer, seen in model.servers.items() if not seen.gone]
            known = sum(peer in reached for peer in present)
            return -known, -len(present), -model.last_at, str(model.model)

        return sorted(self.models.values(), key=rank)

    def _round(self) -> list[ModelRead]:
        """Whose servers to read now. Who comes waits behind those who wait: new names come as fast as one likes."""
        waiting = sorted(self.models.values(), key=lambda model: model.turn)
        served = [model for model in waiting if model.servers]
        unserved = [model for model in waiting if not model.servers]
        first = served[: READ_AT_ONCE - min(TURNS, len(unserved))]
        chosen = first + unserved[: READ_AT_ONCE - len(first)]
        self._turn += 1
        for model in chosen:
            model.turn = self._turn
        return chosen


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all; then raise the first one's error, if any failed. Cancelled, all are."""
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
