"""Keeps a node in touch with the others: after an outage nobody comes back by himself.

A node that does not answer is forgotten by all who asked it, and forgets them in turn. So somebody has to remember
whom it knew and where, and to dial them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NoReturn, Protocol

from swarm.core.clock import Clock
from swarm.core.errors import PeerUnreachableError

LOOK_S = 1.0
FIRST_PAUSE_S = 1.0
ALONE_PAUSE_S = 8.0
MAX_PAUSE_S = 30.0
"""The pause between two attempts at one peer doubles up to this; to the one before while nobody is known at all."""
JITTER = (0.7, 1.3)
NOTE_EVERY_S = 30.0
"""How often it is noted where the known peers are, newcomers apart."""
MAX_REMEMBERED = 32
"""Peers beside the initial ones."""
FORGET_S = 600.0
"""A peer that has not been known for so long is sought no more, unless nobody is known."""

_log = logging.getLogger(__name__)


class Circle(Protocol):
    """What the keeper needs of a node."""

    def known(self) -> frozenset[str]:
        """The peers that this node would ask now."""
        ...

    async def whereabouts(self) -> Mapping[str, Sequence[str]]:
        """Where the peers that it is connected to are, as the transport sees them."""
        ...

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        """Connect if need be, and get to know ``peer``; empty if it answered, else why not. Never raises."""
        ...

    async def settle(self) -> None:
        """Somebody was met: find the others through him. Never raises."""
        ...

    def returned(self) -> None:
        """Others are known again: what was learnt while nobody was is void."""
        ...


@dataclass(slots=True)
class _Way:
    """A peer to come back to. ``due_s`` and ``seen_s`` are monotonic time."""

    peer: str
    addresses: tuple[str, ...]
    seen_s: float
    initial: bool = False
    pause_s: float = 0.0
    due_s: float = float("-inf")
    why: str = ""
    visit: asyncio.Task[None] | None = None


class Keeper:
    """Dials the ``initial`` peers, and others that were known, whenever they are not.

    While somebody is known, this mends a swarm that fell into parts; while nobody is, the node is *alone*, and *cut
    off* once each has been tried and nobody answers either. Peers are tried each by itself, with growing pauses, and
    all at once when one of them answers after an outage. A node that never knew anybody is not alone.
    """

    def __init__(
        self, circle: Circle, clock: Clock, chance: Random, initial: Sequence[tuple[str, str]], *, seeks_lost: bool
    ) -> None:
        """``initial`` are peer ids with an address each; without ``seeks_lost`` others are dialled only when alone."""
        self._circle = circle
        self._clock = clock
        self._chance = chance
        self._seeks_lost = seeks_lost
        self._ways: dict[str, _Way] = {}
        for peer, address in initial:
            way = self._ways.setdefault(peer, _Way(peer, (), clock.monotonic_s(), initial=True))
            way.addresses += (address,)
        self._noted_s = float("-inf")
        self._running: asyncio.Task[NoReturn] | None = None
        self._away = asyncio.Event()
        self._here = asyncio.Event()
        self._here.set()
        self._cut_off_s = 0.0
        self._was_alone = False
        self.watched = False
        """True if somebody tells the node's owner of outages, so that the log need not."""

    @property
    def alone(self) -> bool:
        """True if others should be known, but none is."""
        return bool(self._ways) and not self._circle.known()

    @property
    def cut_off(self) -> bool:
        """True if the node is alone, and none of those it sought answered."""
        return self._away.is_set()

    async def wait_cut_off(self) -> None:
        """Return once the node is cut off."""
        self.watched = True
        await self._away.wait()

    async def wait_back(self) -> float:
        """Return once it is not; for how many seconds it was."""
        self.watched = True
        await self._here.wait()
        return self._cut_off_s

    def start(self) -> None:
        """Look after the node from now on, until ``close``."""
        self._running = asyncio.create_task(self._run(), name="directory keeper")

    async def close(self) -> None:
        """Dial nobody any more. Idempotent."""
        tasks: list[asyncio.Task[object]] = [way.visit for way in self._ways.values() if way.visit is not None]
        if self._running is not None:
            tasks.append(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def seek(self) -> None:
        """Dial everybody who is not known, now; return once anybody is, or raise ``PeerUnreachableError`` with why."""
        self._visit_all(self._unknown(self._circle.known()))
        while not self._circle.known():
            visits = [way.visit for way in self._ways.values() if way.visit is not None]
            if not visits:
                raise self._unreachable()
            await asyncio.wait(visits, return_when=asyncio.FIRST_COMPLETED)
        self._take_stock(self._circle.known())

    async def _run(self) -> NoReturn:
        while True:
            try:
                await self.look()
            except Exception as error:  # what the transport's daemon answers has no common class
                _log.debug("could not look after the directory: %r", error)
            await self._clock.sleep(LOOK_S)

    async def look(self) -> None:
        """Note who is known and where, and dial whoever is not and whose time has come."""
        known, now_s = self._circle.known(), self._clock.monotonic_s()
        self._take_stock(known)
        for peer in known & self._ways.keys():
            way = self._ways[peer]
            way.seen_s, way.pause_s, way.due_s = now_s, 0.0, float("-inf")
        newcomers = len(self._ways) < MAX_REMEMBERED and not known <= self._ways.keys()
        if newcomers or now_s >= self._noted_s + NOTE_EVERY_S:
            await self._note(known, now_s)
        self._visit_all([way for way in self._unknown(known) if way.due_s <= now_s])

    async def _note(self, known: frozenset[str], now_s: float) -> None:
        """Remember where known peers are; in place of those that are gone for good, if need be."""
        self._noted_s = now_s
        if not known:
            return
        places = await self._circle.whereabouts()
        for way in list(self._ways.values()):
            if way.peer not in known and not self._sought(way) and way.visit is None:
                del self._ways[way.peer]
        for peer in known & places.keys():
            if peer not in self._ways and len(self._ways) < MAX_REMEMBERED:
                self._ways[peer] = _Way(peer, (), now_s)
            found = self._ways.get(peer)
            if found is not None and not found.initial:
                found.addresses = tuple(places[peer])

    def _unknown(self, known: frozenset[str]) -> list[_Way]:
        """Whom to dial."""
        return [way for way in self._ways.values() if way.peer not in known and (not known or self._sought(way))]

    def _sought(self, way: _Way) -> bool:
        """True for those to dial although somebody else is known: initial peers, and who was known a while ago."""
        return way.initial or (self._seeks_lost and way.seen_s > self._clock.monotonic_s() - FORGET_S)

    def _visit_all(self, ways: Sequence[_Way]) -> None:
        for way in ways:
            if way.visit is None:
                way.visit = asyncio.create_task(self._visit(way), name=f"look for {way.peer[-8:]}")

    async def _visit(self, way: _Way) -> None:
        try:
            way.why = await self._circle.meet(way.peer, way.addresses)
            known = self._circle.known()
            if not way.why:
                _log.debug("met %s again", way.peer)
                await self._circle.settle()
            most_s = MAX_PAUSE_S if known else ALONE_PAUSE_S
            way.pause_s = min(max(2 * way.pause_s, FIRST_PAUSE_S), most_s)
            way.due_s = self._clock.monotonic_s() + way.pause_s * self._chance.uniform(*JITTER)
        finally:
            way.visit = None
        self._take_stock(known)

    def _take_stock(self, known: frozenset[str]) -> None:
        """Notice that the node is cut off, or is not any more."""
        if self._running is None:
            return
        now_s, level = self._clock.monotonic_s(), logging.INFO if self.watched else logging.WARNING
        if not known:
            self._was_alone = True
            if not self.cut_off and self._ways and all(way.why for way in self._ways.values()):
                self._cut_off_s = now_s
                self._here.clear()
                self._away.set()
                _log.log(level, "cut off: %s; trying again until somebody does", self._unreachable().message)
            return
        if self._was_alone:
            self._was_alone = False
            self._circle.returned()
            for way in self._ways.values():  # the others may be back as well
                way.seen_s, way.pause_s, way.due_s = now_s, 0.0, float("-inf")
        if self.cut_off:
            self._cut_off_s = now_s - self._cut_off_s
            self._away.clear()
            self._here.set()
            _log.log(level, "back in the swarm after %.0f s", self._cut_off_s)
        for way in self._ways.values():
            way.why = ""

    def _unreachable(self) -> PeerUnreachableError:
        initial = [way for way in self._ways.values() if way.initial]
        others = len(self._ways) - len(initial)
        told = "; ".join(f"{way.addresses[0]}: {way.why}" for way in initial if way.why)
        if initial:
            more = f", nor did {others} other{'s' if others > 1 else ''} known before" if others else ""
            message = f"no initial peer answered ({told}){more}"
        else:
            message = f"nobody of the {others} known before answers"
        return PeerUnreachableError(message, hint="check that one of them is running and its port open")
