"""Reading the directory, whatever it stands on: which keys, which of their records count, what they say together."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TypeAlias, TypeVar, cast

from swarm.core.accusation import Accusation
from swarm.core.announcement import Announcement, State
from swarm.core.clock import Clock
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.records import MODELS_KEY, accusation_key, key_of, shard_key, shard_of
from swarm.dht.judge import Judge
from swarm.dht.merge import Kind, Newest, listings, supersedes
from swarm.dht.options import DirectoryOptions
from swarm.dht.sharding import (
    MAX_DEPTH,
    PATHS,
    Spread,
    depth_range,
    estimate,
    inhabited_depth,
    sample_shards,
    scouting_shards,
)

Fetch: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Sequence[tuple[str, bytes]]]]]
"""Look up some keys: the subkeys and signed bytes under each that has any."""

KEYS_PER_FETCH = 32
"""Asked for at one go. A key's records take at most 512 KiB."""
FETCHES = 4
"""In flight at a time for one reader."""
JUDGED_AT_ONCE = 64
"""Records, some 6 ms of checking signatures, before others have a turn."""
MAX_ROUNDS = 3
"""Of reading at another depth, when a survey or a count says so."""
MAX_ACCUSERS = 64
"""Of one server whose word is told, drawn by lot: their signatures take 6 ms to check."""
MAX_MODELS = 64
"""Whose spread is remembered."""

_Found: TypeAlias = dict[str, Sequence[tuple[str, bytes]]]
T = TypeVar("T")


class Reader:
    """Reads servers and models through ``fetch``, which may raise ``NetworkError``; keeps what it learnt meanwhile.

    ``chance`` picks the shards that are looked at to estimate the number of servers. Costs: one round of lookups, at
    first and every ``survey_every_s`` a second one beside it; 6 keys (2 most times) up to 32 servers, and
    about 2^depth * 7 (2 most times) above.
    """

    def __init__(self, fetch: Fetch, judge: Judge, clock: Clock, options: DirectoryOptions, chance: Random) -> None:
        self._fetch = fetch
        self._judge = judge
        self._clock = clock
        self._options = options
        self._chance = chance
        self._newest = Newest()
        self._spreads: OrderedDict[str, Spread] = OrderedDict()
        self._fetching = asyncio.Semaphore(FETCHES)

    async def servers(self, model: ModelId) -> list[Listing]:
        """See ``Directory.servers``."""
        name = str(model)
        spread = self._spread(name)
        now_s = self._clock.monotonic_s()
        depth = spread.depth
        reading = self._read(name, spread, now_s)
        found = await (_with(self._survey(name, spread, now_s), reading) if spread.survey_due(now_s) else reading)
        for _ in range(MAX_ROUNDS):
            if spread.depth == depth:
                spread.counted(len(found), Counter(listing.announcement.shard_depth for listing in found))
            if spread.depth in (depth, depth - 1):  # read already, or soon enough
                break
            depth = spread.depth
            found = await self._read(name, spread, now_s)
        return found

    async def server(self, model: ModelId, peer: str) -> Listing | None:
        """See ``Directory.server``."""
        name = str(model)
        spread = self._spread(name)
        now_s = self._clock.monotonic_s()
        if spread.survey_due(now_s):
            spread.counted(await self._survey(name, spread, now_s))
        found = await self._listings(name, sorted({shard_of(peer, depth) for depth in depth_range(spread.depth)}))
        return next((listing for listing in found if listing.peer == peer), None)

    async def entries(self) -> list[ModelEntry]:
        """Every live entry of the model index, in order of peer id."""
        found = await self._admitted(ModelEntry, await self._look_up([MODELS_KEY]))
        return [entry for entry, _ in self._newest.take(ModelEntry, "", found, self._clock.wall_s())]

    async def accusations(self, model: ModelId, subjects: Sequence[str]) -> list[Accusation]:
        """See ``Directory.accusations``. Those that are told are drawn before any signature is checked."""
        found = await self._look_up([accusation_key(str(model), subject) for subject in subjects])
        drawn = {
            key: self._chance.sample(items, MAX_ACCUSERS) if len(items) > MAX_ACCUSERS else items
            for key, items in found.items()
        }
        newest: dict[tuple[str, str], Accusation] = {}
        for record, _ in await self._admitted(Accusation, drawn):
            known = newest.get((record.subject, record.peer))
            if known is None or supersedes(record, known):
                newest[record.subject, record.peer] = record
        return list(newest.values())

    def shard_depth(self, model: ModelId) -> int:
        """See ``Directory.shard_depth``."""
        return self._spread(str(model)).depth

    async def _read(self, model: str, spread: Spread, now_s: float) -> list[Listing]:
        depth, shards = spread.depth, spread.to_read(now_s)
        found = await self._listings(model, shards)
        spread.was_read(depth, shards, now_s)
        return found

    async def _listings(self, model: str, shards: Sequence[str]) -> list[Listing]:
        """All servers known of after reading ``shards``."""
        found = await self._look_up(
            [shard_key(kind, model, shard) for kind in (Announcement, Metrics) for shard in shards]
        )
        servers, figures = await self._admitted(Announcement, found), await self._admitted(Metrics, found)
        now_s = self._clock.wall_s()
        announced = self._newest.take(Announcement, model, servers, now_s)
        metrics = self._newest.take(Metrics, model, figures, now_s)
        return listings(announced, [record for record, _ in metrics])

    async def _survey(self, model: str, spread: Spread, now_s: float) -> int:
        """Find out at which depth most records stand, and about how many servers there are."""
        paths = [f"{self._chance.getrandbits(MAX_DEPTH):0{MAX_DEPTH}b}" for _ in range(PATHS)]
        scouted = await self._peers(model, scouting_shards(paths[0]))
        depth = inhabited_depth({shard: len(peers) for shard, peers in scouted.items()})
        spread.surveyed(depth, now_s)
        if depth == 0:
            return len({peer for shard in ("", "0", "1") for peer in scouted[shard]})
        sampled = await self._peers(model, [shard for shard in sample_shards(depth, paths) if shard not in scouted])
        return estimate(
            {peer for part in (scouted, sampled) for peers in part.values() for peer in peers}, depth, paths
        )

    async def _peers(self, model: str, shards: Iterable[str]) -> dict[str, list[str]]:
        """Who announces ``model`` in each of some shards, and for all that is known nowhere else since."""
        keys = {shard: shard_key(Announcement, model, shard) for shard in shards}
        found = await self._look_up(list(keys.values()))
        admitted = await self._admitted(Announcement, found)
        known = self._newest.take(Announcement, model, admitted, self._clock.wall_s())
        live = {signed: record for record, signed in known if record.state is not State.OFFLINE}
        return {
            shard: [peer for peer, value in found.get(key, ()) if value in live and key_of(live[value]) == key]
            for shard, key in keys.items()
        }

    async def _admitted(self, kind: type[Kind], found: _Found) -> list[tuple[Kind, bytes]]:
        """Those of one kind that count. Others have a turn in between: thousands of signatures take a second."""
        now_s = self._clock.wall_s()
        prefix = MODELS_KEY if kind is ModelEntry else shard_key(kind, "", "")
        admitted = []
        for key, items in found.items():
            for index, (peer, value) in enumerate(items if key.startswith(prefix) else ()):
                if index % JUDGED_AT_ONCE == JUDGED_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if (record := self._judge.admit(kind, key, peer, value, now_s=now_s)) is not None:
                    admitted.append((record, value))
        return admitted

    async def _look_up(self, keys: Sequence[str]) -> _Found:
        """Everything under ``keys``, a bounded number of them at a time. One that fails is a failure of all: a view
        with holes would look like a swarm with holes."""
        parts = [keys[at : at + KEYS_PER_FETCH] for at in range(0, len(keys), KEYS_PER_FETCH)]
        answers = await asyncio.gather(*map(self._fetch_part, parts), return_exceptions=True)
        found: _Found = {}
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            found.update(answer)
        return found

    async def _fetch_part(self, keys: Sequence[str]) -> Mapping[str, Sequence[tuple[str, bytes]]]:
        async with self._fetching:
            return await self._fetch(keys)

    def _spread(self, model: str) -> Spread:
        spread = self._spreads.get(model)
        if spread is None:
            spread = self._spreads[model] = Spread(
                survey_every_s=self._options.survey_every_s, neighbours_every_s=self._options.neighbours_every_s
            )
            if len(self._spreads) > MAX_MODELS:
                self._spreads.popitem(last=False)
        else:
            self._spreads.move_to_end(model)
        return spread


async def _with(aside: Awaitable[object], wanted: Awaitable[T]) -> T:
    """Both at a time; what is ``wanted`` returns. Neither is left running when the other fails."""
    first, found = await asyncio.gather(aside, wanted, return_exceptions=True)
    for outcome in (first, found):
        if isinstance(outcome, BaseException):
            raise outcome
    return cast(T, found)
