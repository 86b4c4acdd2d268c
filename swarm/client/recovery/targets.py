"""Which places of a broken chain are to be replaced, and by whom: one choice on one view. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from swarm.client.chains.diagnosis import Loss
from swarm.client.plan import Patch, StagePlan
from swarm.client.recovery.outlook import Outlook, Spare
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.scheduling.routing import RouteNeeds, Stage

Find = Callable[[range, frozenset[PeerId]], tuple[StagePlan, ...]]
"""Who takes over a run of places, these peers not; ``NoRouteError`` if nobody does."""
NOBODY: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Damage:
    """A chain and what is broken of it: lost places, and links between two that live."""

    stages: tuple[StagePlan, ...]
    lost: Mapping[int, Loss]
    cuts: frozenset[tuple[int, int]]

    @property
    def gone(self) -> set[int]:
        """The places that must be filled. A slow server may go on."""
        return {place for place, loss in self.lost.items() if loss.kind != "slow"}

    def peers(self, places: Iterable[int]) -> frozenset[PeerId]:
        return frozenset(self.stages[place].peer for place in places)


def runs(places: Iterable[int]) -> list[range]:
    """The places in order, those side by side together."""
    ordered = sorted(set(places))
    grouped = (list(run) for _, run in groupby(enumerate(ordered), key=lambda item: item[1] - item[0]))
    return [range(run[0][1], run[-1][1] + 1) for run in grouped]


def patches_for(damage: Damage, find: Find) -> list[Patch]:
    """One patch for each run of lost places, and one for an end of each cut link if somebody can stand there.

    Of a cut link the later end is preferred; where neither can be replaced the two are left to reach each other anew.
    A slow server that nobody can replace stays. ``NoRouteError`` if a place that is lost cannot be filled.
    """
    alive: set[int] = set()
    for slow in sorted(set(damage.lost) - damage.gone):
        alive |= _replaceable((slow,), damage, find)
    for pair in sorted(damage.cuts):
        if not (damage.gone | alive) & set(pair):
            alive |= _replaceable(reversed(pair), damage, find)
    try:
        return _filled(damage, alive, find)
    except NoRouteError:
        return _filled(damage, set(), find)  # somebody for each of them, but not for all side by side


def _filled(damage: Damage, alive: set[int], find: Find) -> list[Patch]:
    return [Patch(run.start, run.stop, find(run, damage.peers(alive & set(run)))) for run in runs(damage.gone | alive)]


def wide_patches(damage: Damage, find: Find) -> list[Patch]:
    """A patch over each run of lost places and as few places beside it as possible; one over several where they meet.

    For who holds the layers of a run but stands beside it: a server is never its own neighbour, so it takes them over
    together with those it serves already, and computes these anew. ``NoRouteError`` if that does not help.
    """
    places = damage.gone
    while True:
        patches = [_widened(run, len(damage.stages), find) for run in runs(places)]
        covered = {place for patch in patches for place in range(patch.first, patch.end)}
        if len(covered) == sum(patch.end - patch.first for patch in patches):
            return patches
        places = covered


def _widened(run: range, chain_length: int, find: Find) -> Patch:
    errors = []
    for more in range(chain_length - len(run) + 1):
        for start in range(max(0, run.start - more), min(run.start, chain_length - len(run) - more) + 1):
            wider = range(start, start + len(run) + more)
            try:
                return Patch(wider.start, wider.stop, find(wider, NOBODY))
            except NoRouteError as error:
                errors.append(error)
    raise errors[0]


def patched(stages: Sequence[StagePlan], patches: Iterable[Patch]) -> tuple[StagePlan, ...]:
    """The chain as ``patches`` leave it."""
    result = list(stages)
    for patch in sorted(patches, key=lambda patch: -patch.first):
        result[patch.first : patch.end] = patch.newcomers
    return tuple(result)


def finder(
    outlook: Outlook, chain: Sequence[Stage], needs: Sequence[RouteNeeds], spares: Callable[[int], Spare | None]
) -> Find:
    """Looks among the standbys first, then on ``outlook``, for each of ``needs`` in turn; the same answer each time."""

    @cache
    def look(run: range, without: frozenset[PeerId]) -> tuple[StagePlan, ...] | NoRouteError:
        spare = spares(run.start) if len(run) == 1 else None
        if spare is not None and not spare.peers & (needs[0].excluded | without):
            return spare.stages
        errors = []
        for need in needs:
            try:
                return outlook.replacement(chain, run, replace(need, excluded=need.excluded | without))
            except NoRouteError as error:
                errors.append(error)
        return errors[0]

    def find(run: range, without: frozenset[PeerId]) -> tuple[StagePlan, ...]:
        found = look(run, without)
        if isinstance(found, NoRouteError):
            raise found
        return found

    return find


def _replaceable(places: Iterable[int], damage: Damage, find: Find) -> set[int]:
    """The first of these places, whose servers live, that somebody else can take over; empty if there is none."""
    for place in places:
        try:
            find(range(place, place + 1), damage.peers([place]))
        except NoRouteError:
            continue
        return {place}
    return set()
