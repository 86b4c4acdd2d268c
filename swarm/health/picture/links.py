"""The ways between servers that are worth showing: measured, or estimated where rows would go. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from swarm.core.announcement import Coordinate
from swarm.core.ids import PeerId
from swarm.health.picture.figures import rounded, rounded_or_none
from swarm.health.sight import Heard, Seen
from swarm.health.state import LinkState
from swarm.scheduling.cluster import distance_s
from swarm.scheduling.coordinates import MAX_RTT_S
from swarm.scheduling.view import MAX_PLACE_ERROR

MAX_OF_ONE = 16
MAX_ESTIMATED = 4
"""Of one server, the nearest; where more are measured, fewer are estimated."""
MAX_FOLLOWERS = 32
"""Of one server, among whom the nearest are looked for."""
MAX_LINKS = 512
"""Of a model: in a large swarm each server's nearest."""


def links_of(servers: Sequence[Seen], heard: Mapping[PeerId, Heard]) -> list[LinkState]:
    """Links among ``servers``, by source and target: those in use, those measured, then those to who could follow.

    At most ``MAX_OF_ONE`` a server and about ``MAX_LINKS`` in all. O(servers · log servers + links).
    """
    known = {server.peer for server in servers}
    words = _words(servers)
    followers = _Followers(servers)
    most = max(1, min(MAX_OF_ONE, MAX_LINKS // max(len(servers), 1)))
    found: list[LinkState] = []
    for server in servers:
        of_one = _measured(server.peer, heard.get(server.peer), known, words[server.peer])
        if len(of_one) < most:
            for link in followers.estimated(server)[:MAX_ESTIMATED]:
                of_one.setdefault(link.target, link)
        found += sorted(of_one.values(), key=_rank)[:most]
    return sorted(found, key=lambda link: (link.source, link.target))


def _rank(link: LinkState) -> tuple[bool, bool, float, str]:
    return link.noop_age_s is None, link.estimated, link.rtt_s, link.target


def _words(servers: Sequence[Seen]) -> dict[str, dict[str, float]]:
    """What metrics say of round trips, by where rows come from and go to: a server tells of those before it as well."""
    spans = {server.peer: server.listing.announcement for server in servers}
    words: dict[str, dict[str, float]] = {peer: {} for peer in spans}
    backward: list[tuple[str, str, float]] = []
    for server in servers:
        metrics, here = server.listing.metrics, server.peer
        for other, rtt_s in ({} if metrics is None else metrics.rtt_s).items():
            there = spans.get(PeerId(other))
            if there is None or other == here:
                continue
            if spans[here].start <= there.end < spans[here].end:
                backward.append((other, here, rtt_s))
            else:
                words[here][other] = rtt_s
    for source, target, rtt_s in backward:
        words[source].setdefault(target, rtt_s)
    return words


def _measured(
    source: PeerId, told: Heard | None, known: set[PeerId], words: Mapping[str, float]
) -> dict[str, LinkState]:
    links: dict[str, LinkState] = {}
    for target, rtt_s in words.items():
        links[target] = LinkState(source=source, target=target, rtt_s=rounded(rtt_s))
    for figures in () if told is None or told.report is None else told.report.links:
        if figures.peer not in known or figures.peer == source:
            continue
        before = links.get(figures.peer)
        if figures.rtt_s is not None:
            rtt_s = rounded(figures.rtt_s)
        elif before is not None:
            rtt_s = before.rtt_s
        else:
            continue
        links[figures.peer] = replace(
            before or LinkState(source=source, target=figures.peer, rtt_s=rtt_s),
            rtt_s=rtt_s,
            goodput_mbps=rounded_or_none(figures.goodput_mbps),
            noop_age_s=rounded_or_none(figures.noop_age_s, 1),
        )
    return links


class _Followers:
    """Who could take rows from whom: the servers that hold the layer behind one's last, found once for each layer."""

    def __init__(self, servers: Sequence[Seen]) -> None:
        self._placed = [(server, place) for server in servers if (place := _place(server)) is not None]
        self._placed.sort(key=lambda one: one[0].peer)
        self._behind: dict[int, list[tuple[Seen, Coordinate]]] = {}

    def estimated(self, server: Seen) -> list[LinkState]:
        """Links to those at places that are known, the nearest first."""
        place, end = _place(server), server.listing.announcement.end
        if place is None:
            return []
        if end not in self._behind:
            behind = [
                one
                for one in self._placed
                if one[0].listing.announcement.start <= end < one[0].listing.announcement.end
            ]
            self._behind[end] = behind[:MAX_FOLLOWERS]
        ways = [
            (distance_s(place, theirs), other.peer) for other, theirs in self._behind[end] if other.peer != server.peer
        ]
        return [
            LinkState(source=server.peer, target=target, rtt_s=rounded(rtt_s), estimated=True)
            for rtt_s, target in sorted(ways)
            if rtt_s <= MAX_RTT_S
        ]


def _place(server: Seen) -> Coordinate | None:
    place = server.listing.announcement.coordinate
    return place if place is not None and place.error <= MAX_PLACE_ERROR else None
