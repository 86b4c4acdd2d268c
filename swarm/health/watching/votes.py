"""What a number is of which servers say different things: how many layers a model has, how long its rows are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarm.health.networks import NOWHERE


@dataclass(frozen=True, slots=True)
class Vote:
    """One server's word. ``near`` is the network where this page reached it, None if it does not answer; ``network``
    the one that it announces."""

    value: int
    near: str | None = None
    network: str = NOWHERE


@dataclass(frozen=True, slots=True)
class Agreed:
    """What is taken for true; 0: nobody said anything yet. ``heard``: somebody who answers this page said so then."""

    value: int = 0
    heard: bool = False


NOTHING_SAID = Agreed()


def agreed(before: Agreed, votes: Collection[Vote]) -> Agreed:
    """What most networks say of those who answer this page. Where as many say so of two values, ``before`` stays if it
    was found in this way, so that a page does not waver; else the networks announced decide, then servers, then the
    smaller value.

    Where nobody answers ``before`` stays as long as anybody says so. What was agreed on while nobody answered gives way
    to whoever does. Without votes ``before`` stays. O(votes). Wrong where who lies answers from as many networks as all
    others do, and was there first.
    """
    if not votes:
        return before
    by_value: dict[int, list[Vote]] = defaultdict(list)
    for vote in votes:
        by_value[vote.value].append(vote)
    near = {value: _different(vote.near for vote in theirs) for value, theirs in by_value.items()}

    def weight(value: int) -> tuple[int, int, int, int]:
        theirs = by_value[value]
        return near[value], _different(vote.network for vote in theirs), len(theirs), -value

    best = max(by_value, key=weight)
    found = before.heard or not near[best]
    if found and near.get(before.value) == near[best]:
        return before
    return Agreed(best, heard=near[best] > 0)


def _different(networks: Iterable[str | None]) -> int:
    return len({network for network in networks if network is not None})
