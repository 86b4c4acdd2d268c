"""What a mend is going to do, as plain numbers: who stays where, and who sends whom the rows he lacks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from swarm.client.plan import Patch, StagePlan
from swarm.core.errors import MisuseError
from swarm.core.limits import MAX_STAGES
from swarm.core.spans import Span


@dataclass(frozen=True, slots=True)
class Replays:
    """How the rows that some servers lack come to them; all numbers are places.

    The client feeds the servers ``[0, fed]`` (none if that is -1). ``asks`` are the servers that replay their logs to
    those after them, with so many hops. ``targets`` are the last of each of these rows of servers.
    """

    fed: int
    asks: dict[int, int]
    targets: frozenset[int]


def replays(lacks: Sequence[bool], dry: Collection[int] = ()) -> Replays:
    """How those that ``lacks`` names get their rows, if the servers at the places ``dry`` have no log of them.

    Servers side by side that lack rows pass them on to each other, the first of them gets them from the one before.
    Where that one is dry, or the client, the client feeds everybody up to there: those on the way compute again what
    they hold, those behind do not. Takes time in the number of servers.
    """
    runs: list[tuple[int, int]] = []
    for lacking, places in groupby(range(len(lacks)), key=lambda place: lacks[place]):
        if lacking:
            run = list(places)
            runs.append((run[0], run[-1]))
    fed = max((last for first, last in runs if first == 0 or first - 1 in dry), default=-1)
    asks = {first - 1: last - first for first, last in runs if first > fed}
    targets = {last for first, last in runs if first > fed} | ({fed} if fed >= 0 else set())
    return Replays(fed, asks, frozenset(targets))


def clash(before: Replays, after: Replays, dry: Collection[int]) -> bool:
    """True if servers that replay already, as ``before`` asked them to, do so where ``after`` has the client feed."""
    return any(place < after.fed and place not in dry for place in before.asks)


def check_patches(stages: Sequence[StagePlan], patches: Sequence[Patch], lost: Collection[int]) -> None:
    """Raise ``MisuseError`` unless ``patches`` cover every place in ``lost``, and each fits where it goes."""
    bounds = [0, *(bound for patch in patches for bound in (patch.first, patch.end)), len(stages)]
    if any(a > b for a, b in pairwise(bounds)):
        raise MisuseError("patches must be in order, apart, and inside the chain")
    covered = {place for patch in patches for place in range(patch.first, patch.end)}
    if not set(lost) <= covered:
        raise MisuseError(f"no patch covers the lost places {sorted(set(lost) - covered)}")
    added = sum(len(patch.newcomers) for patch in patches)
    if len(stages) - len(covered) + added > MAX_STAGES:
        raise MisuseError(f"a chain has at most {MAX_STAGES} servers")
    for patch in patches:
        if patch.first == patch.end or not patch.newcomers:
            raise MisuseError("a patch replaces at least one server by at least one")
        gap = Span(stages[patch.first].span.start, stages[patch.end - 1].span.end)
        ends = [gap.start, *(bound for new in patch.newcomers for bound in (new.span.start, new.span.end)), gap.end]
        if any(a != b for a, b in list(pairwise(ends))[::2]):
            raise MisuseError(f"the newcomers do not tile layers {gap}")
