"""The round trips to the servers that could stand beside this one in a chain, and this server's place in the network.

Sessions measure the pairs they run over anyway; the others are visited now and then. Every measurement also moves the
server's network coordinate, from which round trips that nobody measured are estimated. Those that this server could
follow are measured too, as far as its own followers leave room: they have not heard of a newcomer, and he of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarm.core.announcement import Announcement, Coordinate, Reach, State
from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.metrics import MAX_RTT_PEERS
from swarm.scheduling.cluster import distance_s
from swarm.scheduling.coordinates import START, direction, update
from swarm.server.reports.announcer import Announcer
from swarm.transport.pinger import Ping

log = logging.getLogger(__name__)

ANCHORS = 4
"""Servers that cannot follow this one and are visited too: the last of a chain must find its place as well."""
AT_ONCE = 4
FORGET_INTERVALS = 10.0
"""A round trip that was not measured for so many intervals is not told any more."""
SURE_ERROR = 0.3
"""Of coordinates: with larger relative errors they rank nobody."""
VIEW_S_PER_SERVER = 0.1
"""In large swarms the whole list is read more rarely: this many seconds for each server in it."""
FIRST_VIEW_S = 1.0
"""Of a newcomer: the pause before his second look, which then doubles, since others come when he does."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A round trip, None if the peer did not answer; ``at_s`` is monotonic time."""

    rtt_s: float | None
    at_s: float


class Successors:
    """Knows round trips by peer. ``felt`` gives those of pairs that a session runs over (None: no session does)."""

    def __init__(
        self, announcer: Announcer, ping: Ping, felt: Callable[[PeerId], float | None], clock: Clock, *, every_s: float
    ) -> None:
        self._announcer = announcer
        self._ping = ping
        self._felt = felt
        self._clock = clock
        self._every_s = every_s
        self._measured: dict[PeerId, Measured] = {}
        self._followers: list[Listing] = []
        self._leaders: list[Listing] = []
        self._anchors: list[Listing] = []
        self._view_until_s = float("-inf")

    def rtt_s(self) -> dict[str, float]:
        """Measured round trips in seconds to servers that could follow, the ``MAX_RTT_PEERS`` nearest; where they are
        fewer, also to the nearest of those that this one could follow."""
        nearest = self._known_s(self._followers)[:MAX_RTT_PEERS]
        others = self._known_s(self._leaders)[: MAX_RTT_PEERS - len(nearest)]
        return dict(nearest + others)

    def _known_s(self, listings: Sequence[Listing]) -> list[tuple[str, float]]:
        """Those whose round trip is known, the nearest first."""
        since_s = self._clock.monotonic_s() - FORGET_INTERVALS * self._every_s
        found: dict[str, float] = {}
        for listing in listings:
            known = self._measured.get(listing.peer)
            if (felt_s := self._felt(listing.peer)) is not None:
                found[listing.peer] = felt_s
            elif known is not None and known.rtt_s is not None and known.at_s >= since_s:
                found[listing.peer] = known.rtt_s
        return sorted(found.items(), key=lambda item: item[1])

    def hurry(self) -> None:
        """Look around soon, and measure anew whoever did not answer."""
        self._view_until_s = float("-inf")
        self._measured = {peer: found for peer, found in self._measured.items() if found.rtt_s is not None}

    async def run(self, news: Callable[[], None]) -> None:
        """Look around and measure until cancelled. ``news`` is called when there are round trips to tell that were
        never told."""
        pause_s, began_s = self._every_s / MAX_RTT_PEERS, self._clock.monotonic_s()
        told: set[str] = set()
        while True:
            now_s = self._clock.monotonic_s()
            if now_s >= self._view_until_s:
                seen = await self._look()
                self._view_until_s = now_s + (self._view_s(seen, now_s - began_s) if seen else pause_s)
            due = self.due(self._clock.monotonic_s())
            await asyncio.gather(*(self._visit(listing) for listing in due[:AT_ONCE]))
            if not (known := self.rtt_s().keys()) <= told:
                news()
            told = (told & self._measured.keys()) | known
            # Many at once only at the beginning; later they are spread over the interval.
            await self._clock.sleep(0.0 if len(due) > AT_ONCE else pause_s)

    def _view_s(self, seen: int, age_s: float) -> float:
        """Until the next look, if ``seen`` servers are there and the first was ``age_s`` ago."""
        return max(min(max(age_s, FIRST_VIEW_S), self._every_s), VIEW_S_PER_SERVER * seen)

    async def _look(self) -> int:
        """Read who is there; how many they are, 0 if the directory did not answer."""
        own = self._announcer.current
        try:
            listings = await self._announcer.directory.servers(ModelId.parse(own.model))
        except NetworkError as error:
            log.debug("could not look for servers to measure: %s", error)
            return 0
        self.learn(listings)
        self._announcer.servers = max(len(listings), 1)
        return len(listings)

    def learn(self, listings: Iterable[Listing]) -> None:
        """Take in who is there."""
        own = self._announcer.current
        others = [listing for listing in listings if listing.peer != own.peer and can_be_visited(listing.announcement)]
        self._followers = [listing for listing in others if follows(own, listing.announcement)]
        self._leaders = [listing for listing in others if follows(listing.announcement, own)]
        watched = {listing.peer for listing in self.watched()}
        strangers = [listing for listing in others if listing.peer not in watched]
        self._anchors = sorted(strangers, key=lambda listing: rank(own.peer, listing.peer))[:ANCHORS]
        known = {listing.peer for listing in others}
        self._measured = {peer: found for peer, found in self._measured.items() if peer in known}

    def watched(self) -> list[Listing]:
        """Those whose round trips are kept fresh: the nearest followers, as far as anybody knows, then those that this
        server could follow.

        One that was never measured, and whose coordinate says nothing, comes first: so each is measured once.
        """
        own = self._announcer.current

        def estimate_s(listing: Listing) -> tuple[float, bytes]:
            known, place = self._measured.get(listing.peer), listing.announcement.coordinate
            if known is not None:
                return (known.rtt_s if known.rtt_s is not None else float("inf")), rank(own.peer, listing.peer)
            if _sure(own.coordinate) and _sure(place) and own.coordinate is not None and place is not None:
                return distance_s(own.coordinate, place), rank(own.peer, listing.peer)
            return 0.0, rank(own.peer, listing.peer)

        nearest = sorted(self._followers, key=estimate_s)[:MAX_RTT_PEERS]
        return nearest + sorted(self._leaders, key=estimate_s)[: MAX_RTT_PEERS - len(nearest)]

    def due(self, now_s: float) -> list[Listing]:
        """Whom to measure: those never measured, then the one whose turn has come, longest ago first."""
        ages = [
            (known.at_s if (known := self._measured.get(listing.peer)) is not None else float("-inf"), number, listing)
            for number, listing in enumerate([*self.watched(), *self._anchors])
        ]
        old = sorted(age[:2] for age in ages if age[0] <= now_s - self._every_s)
        listings = {number: listing for _, number, listing in ages}
        fresh = [listings[number] for at_s, number in old if at_s == float("-inf")]
        return fresh or [listings[number] for _, number in old[:1]]

    async def _visit(self, listing: Listing) -> None:
        rtt_s = self._felt(listing.peer)
        if rtt_s is None:
            rtt_s = await self._ping(listing.peer, listing.announcement.addresses)
        self.took(listing, rtt_s)

    def took(self, listing: Listing, rtt_s: float | None) -> None:
        """Take in a measurement, or that there was no answer."""
        self._measured[listing.peer] = Measured(rtt_s, self._clock.monotonic_s())
        place = listing.announcement.coordinate
        if rtt_s is not None and place is not None:
            own = self._announcer.current
            toward = direction(own.peer, listing.peer)
            self._announcer.amend(coordinate=update(own.coordinate or START, place, rtt_s, toward=toward))


def can_be_visited(announced: Announcement) -> bool:
    """True for a server that is, or is about to be, at work and can be dialled."""
    return announced.state is State.ONLINE and announced.reach is not Reach.UNREACHABLE


def follows(own: Announcement, other: Announcement) -> bool:
    """True if a chain could go from ``own`` to ``other``: it holds the layer after ours, and more than we do."""
    return other.layer_count == own.layer_count and other.start <= own.end < other.end


def rank(own: str, other: str) -> bytes:
    """An order of others that is every server's own, so that not all measure the same ones."""
    return hashlib.sha256(f"{own} {other}".encode()).digest()


def _sure(place: Coordinate | None) -> bool:
    return place is not None and place.error <= SURE_ERROR
