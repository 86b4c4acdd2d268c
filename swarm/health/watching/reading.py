"""Reads the directory: which models there are, who serves them, and who did until a moment ago."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from swarm.core.announcement import State
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.text import clip
from swarm.dht.protocol import Directory
from swarm.health.networks import first_network
from swarm.health.sight import Seen
from swarm.health.watching.archive import Past
from swarm.health.watching.votes import NOTHING_SAID, Agreed, Vote, agreed
from swarm.models.demo import SMOLLM2
from swarm.models.resolve import DEMO
from swarm.scheduling.coverage import usable

INDEX_EVERY_S = 10.0
"""The index is read so often; it changes when models come and go."""
MAX_MODELS = 64
"""On one page; see ``Reading.shown``."""
MAX_KNOWN = 512
"""Whose servers are looked for: as many as an index can hold, so that nobody crowds out others by made-up names."""
READ_AT_ONCE = 16
"""Models whose servers are read in one round:"""
FIRST = 8
"""so many that the page would show first, in every round, and of the others those that wait longest."""
TURNS = 4
"""Of a round, for those without servers; the rest is for those with some, so that made-up ones delay none of them."""
MAX_GONE = 256
"""Servers of a model that are shown after they vanished, those this page has reached before others."""
UNREAD_S = 6.0
"""A model that was not read for so long is judged as it was then: many wait for their turn, or the directory is out."""
GONE_S = 600.0
"""So long a server is shown whose record ran out without a goodbye,"""
ENDED_S = 24 * 3600.0
"""and a model that was whole, after its servers are gone and nobody lists it any more;"""
UNLISTED_S = 60.0
"""one that never was is forgotten then so soon."""
ANNOUNCED_S = 60.0
"""An announcement is made for so long, mostly; so a server that nothing else is known of was there that long ago."""

_DEMO = f"{SMOLLM2.name}@{SMOLLM2.revision}"


@dataclass(slots=True)
class ModelRead:
    """A model as the directory has it. ``last_at``: when somebody last spoke of it.

    ``told_layers`` is what its servers say (``votes.agreed``), ``indexed_layers`` and ``rows`` what its entries in the
    index do. ``asked``: it was named whole, so it is looked for and shown whoever else is there; ``first_at`` is when
    it was heard of first. ``whole``: servers that answer this page held all of its layers at some time.
    """

    model: ModelId
    asked: bool = False
    first_at: float = 0.0
    whole: bool = False
    told_layers: Agreed = NOTHING_SAID
    indexed_layers: Agreed = NOTHING_SAID
    rows: Agreed = NOTHING_SAID
    servers: Mapping[PeerId, Seen] = field(default_factory=dict)
    last_at: float = 0.0
    read_at: float = 0.0
    """When its servers were read last."""
    turn: int = 0
    """The round in which its servers were read last, or it was heard of."""

    @property
    def layers(self) -> int:
        """How many it has, or 0. Once a server was found the index does not count: an entry there costs nothing."""
        return self.told_layers.value or self.indexed_layers.value

    @property
    def hidden_size(self) -> int | None:
        """The values of a row, if anybody says how many."""
        return self.rows.value or None

    def as_of(self, now_s: float) -> float:
        """The moment by which its records are judged: while others are read, a server cannot renew what is known."""
        return min(now_s, self.read_at + UNREAD_S)

    def counting(self) -> tuple[Seen, ...]:
        """Its servers, those left out that announce another number of layers: they are of no model there is."""
        return tuple(seen for seen in self.servers.values() if seen.listing.announcement.layer_count == self.layers)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What this page found out by itself: the servers that answer, each with its network, and all that ever did."""

    reached: Mapping[PeerId, str] = field(default_factory=dict)
    answered: Collection[PeerId] = ()


NO_EVIDENCE = Evidence()


def merged(
    before: Mapping[PeerId, Seen], listings: Sequence[Listing], now_s: float, answered: Collection[PeerId] = ()
) -> dict[PeerId, Seen]:
    """The servers of a model after a reading at wall time ``now_s``, those included that vanished without a goodbye.

    A reader keeps records until they expire, so one that is absent before has said that it goes; so has one that was
    draining, and one that was joining never came. Of those that vanished ``MAX_GONE`` are kept: who ever ``answered``
    before others, then those seen last.
    """
    servers: dict[PeerId, Seen] = {}
    for listing in listings:
        old = before.get(listing.peer)
        servers[listing.peer] = Seen(listing, _seen_at(old, listing, now_s))
    gone = []
    for peer, seen in before.items():
        told = seen.listing.announcement
        vanished = seen.gone or (told.expires_s <= now_s and told.state is State.ONLINE)
        if peer not in servers and vanished and now_s - seen.seen_at < GONE_S:
            gone.append(Seen(Listing(told, seen.listing.record), seen.seen_at, gone=True))
    if len(gone) > MAX_GONE:
        gone.sort(key=lambda seen: (seen.peer not in answered, -seen.seen_at))
    servers.update((seen.peer, seen) for seen in gone[:MAX_GONE])
    return servers


def _seen_at(old: Seen | None, listing: Listing, now_s: float) -> float:
    if listing.metrics is None:
        made_s = min(listing.announcement.expires_s - ANNOUNCED_S, now_s)
        return made_s if old is None else max(old.seen_at, made_s)
    if old is not None and old.listing.metrics == listing.metrics:
        return old.seen_at
    return now_s


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
        self._evidence = NO_EVIDENCE
        self._past: Mapping[str, Past] = {}
        self._turn = 0
        self.models: dict[str, ModelRead] = {}
        self.directory_at: float | None = None
        self.problem = ""
        for name in wanted:
            self._add_wanted(name)

    def remember(self, past: Mapping[str, Past]) -> None:
        """What an earlier run of this page knew of models."""
        self._past = past
        for name, model in self.models.items():
            model.first_at, model.whole = self._known_since(name)

    async def look(self, evidence: Evidence = NO_EVIDENCE) -> None:
        """One round: the index if it is due, and the servers of as many models as a round has room for."""
        self._evidence = evidence
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

    def shown(self) -> list[ModelRead]:
        """``MAX_MODELS`` at most: those asked for by name, then those that are or were whole, by servers that answer
        this page, then those of which any server answers, then those with any, and of equals whoever was heard of
        first.

        So who makes up models takes no known one's place, and has to serve what he makes up to be shown at all.
        """
        return self._ranked()[:MAX_MODELS]

    @property
    def left_out(self) -> int:
        """Models that are known, and not shown."""
        return max(len(self.models) - MAX_MODELS, 0)

    async def _read(self, model: ModelRead) -> None:
        listings = await self._directory.servers(model.model)
        now_s = self._clock.wall_s()
        model.servers = merged(model.servers, listings, now_s, self._evidence.answered)
        model.read_at = now_s
        if listings:
            model.last_at = now_s
            model.told_layers = agreed(model.told_layers, _votes(listings, self._evidence.reached))
            answering = [one for one in listings if one.peer in self._evidence.reached]
            model.whole = model.whole or _is_whole(answering, model.layers)

    def _add_wanted(self, name: str) -> None:
        """A model named whole is looked for whether or not the index has it."""
        try:
            model = ModelId.parse(name)
        except ConfigError:
            return
        self.models[str(model)] = self._met(model, asked=True)

    def _met(self, model: ModelId, *, asked: bool = False) -> ModelRead:
        """One that is heard of for the first time."""
        first_at, whole = self._known_since(str(model))
        return ModelRead(model, asked=asked, first_at=first_at, whole=whole, turn=self._turn)

    def _known_since(self, name: str) -> tuple[float, bool]:
        now_s, past = self._clock.wall_s(), self._past.get(name)
        return (now_s, False) if past is None else (min(past.first_at, now_s), past.whole)

    def _take_index(self, entries: Sequence[ModelEntry]) -> None:
        now_s = self._clock.wall_s()
        for entry in entries:
            model = ModelId.parse(entry.model)
            if self._wanted and not self._wanted & {entry.model, model.name, f"{model.name}@{model.revision}"}:
                continue
            if entry.model not in self.models:
                if clip(entry.model, len(entry.model)) != entry.model:
                    continue  # nobody could tell it from another by what is shown of it
                self.models[entry.model] = self._met(model)
            self.models[entry.model].last_at = now_s
        self._count(entries)
        for name, known in list(self.models.items()):
            kept_s = ENDED_S if known.whole else UNLISTED_S
            if not known.servers and now_s - known.last_at > kept_s and name not in self._wanted:
                del self.models[name]
        for forgotten in self._ranked()[MAX_KNOWN:]:
            del self.models[str(forgotten.model)]

    def _count(self, entries: Sequence[ModelEntry]) -> None:
        """What the index says of the models that are known."""
        layers: dict[str, list[Vote]] = defaultdict(list)
        rows: dict[str, list[Vote]] = defaultdict(list)
        for entry in entries:
            near = self._evidence.reached.get(PeerId(entry.peer))
            layers[entry.model].append(Vote(entry.layer_count, near))
            if entry.hidden_size:
                rows[entry.model].append(Vote(entry.hidden_size, near))
        for name, known in self.models.items():
            known.indexed_layers = agreed(known.indexed_layers, layers.get(name, ()))
            known.rows = agreed(known.rows, rows.get(name, ()))

    def _ranked(self) -> list[ModelRead]:
        def rank(model: ModelRead) -> tuple[bool, bool, bool, bool, float, str]:
            present = [seen for seen in model.servers.values() if not seen.gone]
            answering = any(seen.peer in self._evidence.reached for seen in present)
            claims = (False, False) if model.whole else (not answering, not present)
            return not model.asked, not model.whole, *claims, model.first_at, str(model.model)

        return sorted(self.models.values(), key=rank)

    def _round(self) -> list[ModelRead]:
        """Whose servers to read now. Who comes waits behind those who wait: new names come as fast as one likes."""
        if len(self.models) <= READ_AT_ONCE:
            return list(self.models.values())
        chosen = [model for model in self._ranked()[:FIRST] if model.servers or model.asked or model.whole]
        names = {str(model.model) for model in chosen}
        waiting = sorted(self.models.values(), key=lambda model: model.turn)
        served = [model for model in waiting if model.servers and str(model.model) not in names]
        unserved = [model for model in waiting if not model.servers and str(model.model) not in names]
        chosen += served[: READ_AT_ONCE - len(chosen) - min(TURNS, len(unserved))]
        chosen += unserved[: READ_AT_ONCE - len(chosen)]
        self._turn += 1
        for model in chosen:
            model.turn = self._turn
        return chosen


def _is_whole(listings: Sequence[Listing], layers: int) -> bool:
    """Whether those who serve tile all layers. O(servers log servers)."""
    told = [one.announcement for one in listings if one.announcement.layer_count == layers and usable(one)]
    reached = 0
    for start, end in sorted((one.start, one.end) for one in told):
        if start > reached:
            return False
        reached = max(reached, end)
    return reached == layers > 0


def _votes(listings: Sequence[Listing], reached: Mapping[PeerId, str]) -> list[Vote]:
    """On how many layers a model has."""
    told = [(one.announcement, reached.get(one.peer)) for one in listings]
    return [Vote(one.layer_count, near, first_network(one.addresses)) for one, near in told]


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
