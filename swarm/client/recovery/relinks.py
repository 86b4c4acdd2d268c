"""Two servers side by side in one session that lost each other: whether they are to reach each other anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarm.client.finding.links import Links
from swarm.client.plan import Patch, StagePlan
from swarm.core.clock import Clock
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.verification.standings.apart import pair_of


class Relinks:
    """One session's. What it sees of links goes into ``links``, which all of a client's sessions share."""

    def __init__(self, links: Links, clock: Clock) -> None:
        self._links = links
        self._clock = clock
        self._tried: set[tuple[PeerId, PeerId]] = set()
        self._held = False

    def __bool__(self) -> bool:
        """True if some link was tried anew since the last step came through, or time was let pass."""
        return bool(self._tried)

    def rest(self) -> None:
        """Some time has passed: what was tried may be tried again."""
        self._tried.clear()

    def seated(self) -> None:
        """Others stand in the chain now, or some link was made anew: nobody knows yet that all of them hold."""
        self._held = False

    def progressed(self, stages: Sequence[StagePlan]) -> None:
        """A step came through these: all links hold."""
        self._tried.clear()
        if not self._held:
            self._held = True
            self._links.hold(stage.peer for stage in stages)

    def check(self, stages: Sequence[StagePlan], cuts: Iterable[tuple[int, int]], patches: Iterable[Patch]) -> None:
        """``cuts`` are pairs of places; those that no patch covers are to be made anew.

        ``NoRouteError`` if that was tried since the last ``rest``, or so lately, by any session, that it is too early.
        """
        covered = {place for patch in patches for place in range(patch.first, patch.end)}
        now_s = self._clock.monotonic_s()
        for first, second in sorted(cuts):
            one, other = stages[first], stages[second]
            pair, shut = (one.peer, other.peer), self._links.at(now_s).shut
            self._links.note(*pair, now_s)
            if covered & {first, second}:
                continue
            if pair in self._tried or pair_of(*pair) in shut:
                raise NoRouteError(
                    f"servers {one.short} and {other.short} do not reach each other, and nobody can stand in for "
                    f"layers {one.span} or {other.span}"
                )
            self._tried.add(pair)
