"""Pairs of servers whose common link broke: nobody knows which of them is at fault, so they are kept apart for a while.

The pause grows each time the link breaks again. Before it is over the link may be tried as a last resort, where no
other chain exists, after pauses of its own that grow too: so nobody is without a route for good, and a link that never
holds is tried ever more rarely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId

MAX_APART = 4096
"""Pairs that are remembered; beyond, the one that broke longest ago is forgotten."""
DAY_S = 86_400.0

Pair = tuple[PeerId, PeerId]
"""The smaller id first."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """``first_s`` at first, ``factor`` times as long each time after, up to ``most_s``."""

    first_s: float
    factor: float
    most_s: float

    def after(self, times: int) -> float:
        """The pause after the ``times``-th time, in seconds."""
        if times > 1 + math.log(self.most_s / self.first_s, self.factor):
            return self.most_s
        return self.first_s * self.factor ** (times - 1)


@dataclass(frozen=True, slots=True)
class Law:
    """``apart``: for how long a broken pair is not chosen. ``resort``: until it may be where there is nothing else."""

    apart: Pauses
    resort: Pauses


BROKEN = Law(Pauses(600.0, 4.0, 7 * DAY_S), Pauses(60.0, 2.0, 3600.0))
"""For links over which receipts do not agree: the answer came, and only nobody can answer for it."""
UNREACHED = Law(Pauses(60.0, 2.0, 3600.0), Pauses(2.0, 2.0, 60.0))
"""For two servers of which one did not reach the other when a chain was opened: networks come back."""


class Broken(msgspec.Struct, frozen=True, array_like=True):
    """A pair whose link broke ``times`` times, each time when it was tried again, the last at the time ``since_s``."""

    one: PeerId
    other: PeerId
    since_s: float = 0.0
    times: int = 1

    @property
    def pair(self) -> Pair:
        return self.one, self.other

    def apart_until_s(self, law: Law = BROKEN) -> float:
        """When they may be neighbours again."""
        return self.since_s + law.apart.after(self.times)

    def resort_from_s(self, law: Law = BROKEN) -> float:
        """From when on they may be where there is no other chain."""
        return self.since_s + law.resort.after(self.times)


@dataclass(frozen=True, slots=True)
class Kept:
    """Who is kept apart at one moment. The ``shut`` among the ``pairs`` are so even where there is no other chain;
    the first of them opens in ``opens_in_s`` (infinite if there is none)."""

    pairs: frozenset[Pair] = frozenset()
    shut: frozenset[Pair] = frozenset()
    opens_in_s: float = math.inf

    def allow(self, one: PeerId, other: PeerId) -> bool:
        """True if the two may be neighbours in a chain, in either order."""
        return pair_of(one, other) not in self.pairs

    def and_those(self, other: Kept) -> Kept:
        """Kept apart by either."""
        both = self.pairs | other.pairs, self.shut | other.shut
        return Kept(*both, min(self.opens_in_s, other.opens_in_s))


NOBODY_APART = Kept()


class Apart(msgspec.Struct, frozen=True):
    """What is remembered of broken links, in the order in which they broke. Times are of one clock, wall or not."""

    pairs: tuple[Broken, ...] = ()

    def and_also(self, one: PeerId, other: PeerId, now_s: float, law: Law = BROKEN) -> Apart:
        """The link between ``one`` and ``other`` broke; ``MisuseError`` if they are the same.

        It counts as one more time if the link had a chance since the last: before a last resort might use it, several
        sessions tell of one break. It is the first time if the pair was let be for as long as it was kept apart.
        """
        if one == other:
            raise MisuseError("a server is no neighbour of its own")
        pair, times = pair_of(one, other), 1
        for known in self.pairs:
            if known.pair == pair:
                age_s = now_s - known.since_s
                if 0.0 <= age_s < law.resort.after(known.times):
                    return self
                if 0.0 <= age_s < 2 * law.apart.after(known.times):
                    times = known.times + 1
        others = tuple(known for known in self.pairs if known.pair != pair)
        return Apart((*others, Broken(*pair, now_s, times))[-MAX_APART:])

    def at(self, now_s: float, law: Law = BROKEN) -> Kept:
        """Who is kept apart at this moment. A break in the future is of a clock that was wrong, and counts nothing."""
        if not self.pairs:
            return NOBODY_APART
        ages = {known: now_s - known.since_s for known in self.pairs if now_s >= known.since_s}
        kept = [known for known, age_s in ages.items() if age_s < law.apart.after(known.times)]
        waits = {known.pair: law.resort.after(known.times) - ages[known] for known in kept}
        shut = {pair: wait_s for pair, wait_s in waits.items() if wait_s > 0.0}
        return Kept(frozenset(waits), frozenset(shut), min(shut.values(), default=math.inf))

    def without(self, peer: PeerId) -> Apart:
        """With nothing remembered of ``peer``."""
        return Apart(tuple(known for known in self.pairs if peer not in known.pair))


def pair_of(one: PeerId, other: PeerId) -> Pair:
    """The two in the order in which they are kept."""
    return min(one, other), max(one, other)
