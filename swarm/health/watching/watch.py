"""Watches a swarm for a page: reads the directory, asks every server how it is, and keeps what it made of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from msgspec.structs import replace

from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, DamagedFileError
from swarm.core.ids import PeerId
from swarm.core.text import clip
from swarm.core.version import VERSION
from swarm.dht.protocol import Directory
from swarm.health.sight import Repute
from swarm.health.state import MAX_EVENTS, EventState, HistoryState, ObserverState, SwarmState
from swarm.health.watching.archive import IN_MEMORY, STEP_S, Archive
from swarm.health.watching.asking import Asker
from swarm.health.watching.chronicle import KEPT, Chronicle
from swarm.health.watching.looks import Looker, Looks, checked, evidence, joined_by, listed, snapshot, targets, tried
from swarm.health.watching.quiet import changed
from swarm.health.watching.reading import Reading
from swarm.health.watching.standings import Standings
from swarm.runtime.bell import Bell
from swarm.runtime.reputation import ReputationStore
from swarm.runtime.tasks import Tasks
from swarm.transport.protocol import Transport

READ_EVERY_S = 2.0
REREAD_S = 0.5
"""Sooner the directory is not read again for a server that was lost."""
READ_TIMEOUT_S = 20.0
"""A directory that takes longer for one round does not answer."""
BUILD_EVERY_S = 1.0
BUILD_SHARE = 0.2
"""Of one processor goes into building states: in large swarms they are built less often,"""
SLOWEST_BUILD_S = 2.0
"""but after so long at the latest, for metrics run out by the clock."""
STANDINGS_EVERY_S = 4.0
FIRST_S = 3.0
"""The first state with servers waits so long at most until all of them were tried,"""
FIRST_PAUSE_S = 0.05
"""and looks whether they are so often at most."""
DIRECTORY_GRACE_S = 6.0
"""Without an answer of the directory for so long, that is told."""
MAX_PROBLEM_CHARS = 200
UNREADABLE = "this machine's store of reputations cannot be read"

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What a watch needs of its node. ``reputation`` is what this machine makes of servers; None: nothing is known."""

    transport: Transport
    directory: Directory
    clock: Clock
    reputation: ReputationStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """``models`` restricts the page to those (whole ids or names; empty: all of the index). ``initial_peers`` go into
    the commands that volunteers copy, where no better address is known. ``history`` is the file of the last 24 h.
    ``hidden_sizes`` are those of models whose configuration is at hand, by id; they make predictions more exact.
    """

    models: Sequence[str] = ()
    initial_peers: Sequence[str] = ()
    history: Path | str = IN_MEMORY
    hidden_sizes: Mapping[str, int] = field(default_factory=dict)


class Watch:
    """One page's eyes. Nothing happens before ``run``."""

    def __init__(self, parts: WatchParts, options: WatchOptions | None = None) -> None:
        self._parts = parts
        self._options = options or WatchOptions()
        self._clock = parts.clock
        self._bell = Bell(parts.clock)
        self._news = asyncio.Condition()
        self._reading = Reading(parts.directory, parts.clock, self._options.models)
        self._one_reader = asyncio.Lock()
        self._read_s = 0.0
        self._asker = Asker(parts.transport, parts.clock, self._bell.ring)
        self._standings = Standings(
            parts.transport, parts.directory, parts.clock, parts.reputation, lambda model: listed(self._reading, model)
        )
        self._repute: Mapping[PeerId, Repute] = {}
        self._looker = Looker(self._options.hidden_sizes)
        self._chronicle = Chronicle()
        self._archive: Archive | None = None
        self._problems: dict[str, str] = {}
        self._since_at = parts.clock.wall_s()
        self._state = SwarmState(at=self._since_at, revision=1, observer=self._observer(), models=[], events=[])

    async def run(self) -> NoReturn:
        """Watch until cancelled; everything opened is closed then. To be called once.

        A history that cannot be opened is told as the observer's problem, and done without.
        """
        try:
            await self._open_archive()
            async with Tasks(self._failed) as tasks:
                tasks.spawn(self._forever(self._read, READ_EVERY_S), name="read the directory")
                tasks.spawn(self._forever(self._judge, STANDINGS_EVERY_S), name="read standings")
                tasks.spawn(self._forever(self._record, STEP_S), name="keep the history")
                await self._safely(self._begin)
                while True:
                    took_s = await self._safely(self._build)
                    pause_s = min(max(BUILD_EVERY_S, (took_s or 0.0) / BUILD_SHARE), SLOWEST_BUILD_S)
                    if await self._bell.sleep(pause_s):
                        # Servers that come and go all the time ring all the time: half of a processor is enough.
                        await self._clock.sleep(min(took_s or 0.0, SLOWEST_BUILD_S))
                        await self._safely(self._look_again)
        finally:
            await self._asker.close()
            await self._standings.close()
            if self._archive is not None:
                self._archive.close()

    # -- for whoever shows it -------------------------------------------------------------------------------

    def state(self) -> SwarmState:
        """The newest; before the first reading one without models."""
        return self._state

    async def changed(self, revision: int) -> SwarmState:
        """Wait until there is a state of another revision than ``revision``; the newest one then."""
        async with self._news:
            await self._news.wait_for(lambda: self._state.revision != revision)
            return self._state

    async def history(self, model: str, hours: float) -> HistoryState:
        """The last ``hours`` (24 at most) of a model by its id or name; empty columns for one that is not known. Of
        several of one name the one that is shown first."""
        shown = self._reading.shown()
        name = next((str(read.model) for read in shown if model in (str(read.model), read.model.name)), model)
        now_s = self._clock.wall_s()
        found = await self._archived(lambda archive: archive.history(name, hours, now_s))
        return found or HistoryState(
            model=name,
            step_s=STEP_S,
            at=[],
            tokens_per_s=[],
            covered_share=[],
            servers=[],
            step_p50_s=[],
            step_p99_s=[],
        )

    def events(self, after: int = 0, limit: int = MAX_EVENTS) -> list[EventState]:
        """Those with a number above ``after``, oldest first; of more than ``limit`` the newest."""
        found = [event for event in self._chronicle.events if event.number > after]
        return found[-limit:] if limit > 0 else []

    async def proof(self, digest: str) -> bytes | None:
        """The proof whose SHA-256 is ``digest`` (hex), if this machine checked and keeps it."""
        try:
            wanted = bytes.fromhex(digest)
        except ValueError:
            return None
        try:
            return await asyncio.to_thread(self._standings.proof, wanted)
        except ConfigError as error:
            self._complain("standings", UNREADABLE, error)
            return None

    # -- rounds ---------------------------------------------------------------------------------------------

    async def _forever(self, work: Callable[[], Awaitable[None]], every_s: float) -> NoReturn:
        while True:
            await self._clock.sleep(every_s)
            await self._safely(work)

    async def _safely(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """What ``work`` returns; a mistake of ours costs one round, is told, and takes nothing else down."""
        try:
            return await work()
        except Exception as error:
            self._complain("mistake", "this page made a mistake, see its log", error, trace=True)
            return None

    async def _begin(self) -> None:
        """The first look, with most servers tried, so that the first state is no false alarm."""
        await self._read()
        await self._judge()
        until_s = self._clock.monotonic_s() + FIRST_S
        while not tried(self._asker.heard()) and self._clock.monotonic_s() < until_s:
            await self._bell.sleep(until_s - self._clock.monotonic_s())
            await self._clock.sleep(FIRST_PAUSE_S)

    async def _look_again(self) -> None:
        """A server was lost, or found: if it has just said goodbye, that is what is to be told."""
        if self._clock.monotonic_s() - self._read_s >= REREAD_S:
            await self._read()

    async def _read(self) -> None:
        reading = self._reading
        try:
            async with self._one_reader, asyncio.timeout(READ_TIMEOUT_S):
                await reading.look(evidence(self._asker.heard()))
        except TimeoutError:
            reading.problem = f"no answer within {READ_TIMEOUT_S:g} s"
        self._read_s = self._clock.monotonic_s()
        self._asker.follow(targets(reading), checked(self._repute))
        await self._standings.follow([model.model for model in reading.shown() if model.servers])

    async def _judge(self) -> None:
        peers = list(targets(self._reading))
        try:
            self._repute = await asyncio.to_thread(self._standings.read, peers)
        except ConfigError as error:
            self._complain("standings", UNREADABLE, error)
        else:
            self._problems.pop("standings", None)

    async def _record(self) -> None:
        now_s, models = self._clock.wall_s(), [model for model in self._state.models if model.layers]
        await self._archived(lambda archive: archive.add(models, now_s))

    async def _build(self) -> float:
        """A new state, if there is something new; returns how long that took."""
        began_s, now_s, reading = self._clock.monotonic_s(), self._clock.wall_s(), self._reading
        heard, answered_at = self._asker.heard(), reading.directory_at
        looks = Looks(
            at=now_s,
            models=[snapshot(read, now_s) for read in reading.shown()],
            heard=heard,
            repute=self._repute,
            contacts=joined_by(reading, heard, self._options.initial_peers),
            moves={name: self._chronicle.moves(name, now_s) for name in reading.models},
        )
        models = await asyncio.to_thread(self._looker.look, looks)
        draft = replace(self._state, at=now_s, observer=self._observer(), models=models)
        told = self._chronicle.follow(draft, answered_at=answered_at, problem=reading.problem)
        if told:
            self._chronicle.keep(await self._numbered(told))
        if changed(self._state, models, draft.observer, self._chronicle.newest):
            events = self.events(limit=MAX_EVENTS)
            self._state = replace(draft, revision=self._state.revision + 1, events=events)
            async with self._news:
                self._news.notify_all()
        return self._clock.monotonic_s() - began_s

    def _observer(self) -> ObserverState:
        answered_at, problem = self._reading.directory_at, self._reading.problem
        late = answered_at is None or self._clock.wall_s() - answered_at > DIRECTORY_GRACE_S
        problems = (
            [f"the swarm's directory does not answer: {clip(problem, MAX_PROBLEM_CHARS)}"] if problem and late else []
        )
        return ObserverState(
            peer=str(self._parts.transport.peer_id),
            since_at=self._since_at,
            directory_at=answered_at,
            problem="; ".join([*problems, *self._problems.values()]),
            software=f"swarm {VERSION}",
            models_left_out=self._reading.left_out,
        )

    # -- the archive ----------------------------------------------------------------------------------------

    async def _open_archive(self) -> None:
        try:
            self._archive = await asyncio.to_thread(Archive, self._options.history)
        except ConfigError as error:
            self._complain("history", "no history is kept", error)
            return
        past = await self._archived(lambda archive: archive.events(KEPT))
        self._chronicle = Chronicle(past or ())
        self._reading.remember(await self._archived(Archive.models) or {})
        if self._archive.notice:
            await self._tell_of_loss()

    async def _archived(self, work: Callable[[Archive], T]) -> T | None:
        """What ``work`` returns, in a thread; None if there is no archive, or it failed, which is told."""
        archive = self._archive
        if archive is None:
            return None
        try:
            result = await asyncio.to_thread(work, archive)
        except DamagedFileError as error:
            await self._renew(archive, error)
            return None
        except ConfigError as error:
            self._complain("history", "the history cannot be kept", error)
            return None
        self._problems.pop("history", None)
        return result

    async def _renew(self, archive: Archive, error: DamagedFileError) -> None:
        try:
            await asyncio.to_thread(archive.renew, error)
        except ConfigError as worse:
            self._complain("history", "the history cannot be kept", worse)
        else:
            await self._tell_of_loss()

    async def _tell_of_loss(self) -> None:
        text = "The file of this page's history was damaged: it was moved aside, and the history begins anew."
        lost = EventState(number=0, at=self._clock.wall_s(), kind="outage", model="", peer="", text=text)
        self._chronicle.keep(await self._numbered([lost]))

    async def _numbered(self, events: Sequence[EventState]) -> list[EventState]:
        """Kept and numbered; without an archive, numbered all the same. Numbers only rise."""
        newest = self._chronicle.newest
        kept = await self._archived(lambda archive: archive.note(events, above=newest))
        return kept or [replace(event, number=newest + 1 + place) for place, event in enumerate(events)]

    def _complain(self, what: str, text: str, error: Exception, *, trace: bool = False) -> None:
        """For the log in full, once; for the page, which anybody may read, without this machine's paths."""
        if what not in self._problems:
            _log.log(logging.ERROR if trace else logging.WARNING, "%s: %s", text, error, exc_info=trace)
        self._problems[what] = text

    def _failed(self, name: str, error: Exception) -> None:
        _log.error("%s failed", name, exc_info=error)
