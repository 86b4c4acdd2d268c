"""Which places of a broken chain are replaced: laws over any damage, and any swarm that can help or not."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.chains.diagnosis import Loss
from swarm.client.plan import Patch, StagePlan
from swarm.client.recovery.targets import Damage, patched, patches_for, runs, wide_patches
from swarm.core.announcement import Announcement
from swarm.core.errors import NoRouteError, PeerLostError
from swarm.core.ids import ModelId, PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span

LENGTH = 6
ERROR = PeerLostError("gone")
places = st.sets(st.integers(0, LENGTH - 1))
links = st.sets(st.sampled_from([(place, place + 1) for place in range(LENGTH - 1)]))
spans = st.sets(st.sampled_from([(a, b) for a in range(LENGTH) for b in range(a + 1, LENGTH + 1)]))


def stage(name: str, start: int, end: int) -> StagePlan:
    announcement = Announcement(
        model=str(ModelId.parse("tiny@main#0123456789abcdef")),
        peer=name,
        instance=1,
        sequence=0,
        expires_s=10.0,
        layer_count=LENGTH,
        start=start,
        end=end,
        numerics=Numerics("float32"),
        kv_tokens=100,
        started_s=1.0,
    )
    return StagePlan(announcement, b"", Span(start, end))


STAGES = tuple(stage(f"p{place}", place, place + 1) for place in range(LENGTH))


class Helpers:
    """Who can take over: exactly the runs in ``held``. Notes what it was asked for."""

    def __init__(self, held: Iterable[tuple[int, int]]) -> None:
        self.held = set(held)
        self.without: dict[tuple[int, int], frozenset[PeerId]] = {}

    def __call__(self, run: range, without: frozenset[PeerId]) -> tuple[StagePlan, ...]:
        self.without[run.start, run.stop] = without
        if (run.start, run.stop) not in self.held:
            raise NoRouteError(f"nobody holds {run.start}:{run.stop}")
        return (stage("new", run.start, run.stop),)


def damage(lost: Iterable[int], slow: Iterable[int] = (), cuts: Iterable[tuple[int, int]] = ()) -> Damage:
    kinds = dict.fromkeys(slow, Loss("slow", ERROR)) | dict.fromkeys(lost, Loss("gone", ERROR))
    return Damage(STAGES, kinds, frozenset(cuts))


def covered(patches: Iterable[Patch]) -> set[int]:
    return {place for patch in patches for place in range(patch.first, patch.end)}


def check_fit(patches: list[Patch]) -> None:
    """They can be applied, and the chain they leave tiles the model."""
    assert all(a.end <= b.first for a, b in pairwise(patches))
    chain = patched(STAGES, patches)
    assert [chain[0].span.start, *(s.span.end for s in chain)] == sorted({0, *(s.span.end for s in chain)})
    assert chain[-1].span.end == LENGTH
    assert all(a.span.end == b.span.start for a, b in pairwise(chain))


@given(st.sets(st.integers(0, 20)))
def test_runs_are_the_places_in_order_and_never_touch(some: set[int]) -> None:
    found = runs(some)
    assert [place for run in found for place in run] == sorted(some)
    assert all(a.stop < b.start for a, b in pairwise(found))


@given(places, places, links, spans)
def test_lost_places_are_filled_and_who_lives_goes_only_for_somebody_better(
    lost: set[int], slow: set[int], cuts: set[tuple[int, int]], held: set[tuple[int, int]]
) -> None:
    slow -= lost
    cuts = {cut for cut in cuts if not lost & set(cut)}
    helpers, single = Helpers(held), {a for a, b in held if b == a + 1}
    try:
        patches = patches_for(damage(lost, slow, cuts), helpers)
    except NoRouteError:
        assert any((run.start, run.stop) not in held for run in runs(lost))
        return
    check_fit(patches)
    filled = covered(patches)
    assert lost <= filled
    assert filled - lost <= single, "a living server gives way only where somebody takes its place"
    for patch in patches:
        alive = {STAGES[place].peer for place in range(patch.first, patch.end) if place not in lost}
        assert helpers.without[patch.first, patch.end] == alive, "who is replaced alive is not asked to replace itself"


@given(places, links, spans)
def test_each_that_lives_is_replaced_where_they_do_not_stand_side_by_side(
    slow: set[int], cuts: set[tuple[int, int]], held: set[tuple[int, int]]
) -> None:
    single = {a for a, b in held if b == a + 1}
    everything = Helpers(held | {(a, b) for a in range(LENGTH) for b in range(a + 2, LENGTH + 1)})
    filled = covered(patches_for(damage([], slow, cuts), everything))
    assert filled <= single
    assert slow & single <= filled
    for first, second in cuts:
        assert {first, second} & filled or not {first, second} & single


@pytest.mark.parametrize(("single", "replaced"), [({1, 2}, {2}), ({1}, {1}), ({2}, {2}), (set(), set())])
def test_of_a_cut_link_the_later_end_gives_way_first(single: set[int], replaced: set[int]) -> None:
    helpers = Helpers((place, place + 1) for place in single)
    assert covered(patches_for(damage([], cuts=[(1, 2)]), helpers)) == replaced


def test_one_server_at_two_cut_links_is_replaced_once() -> None:
    helpers = Helpers([(1, 2), (2, 3), (3, 4)])
    assert covered(patches_for(damage([], cuts=[(1, 2), (2, 3)]), helpers)) == {2}


@given(places.filter(bool), spans)
def test_widened_patches_cover_what_is_lost_with_as_little_as_possible(
    lost: set[int], held: set[tuple[int, int]]
) -> None:
    possible = all(any(a <= run.start and run.stop <= b for a, b in held) for run in runs(lost))
    if not possible:
        with pytest.raises(NoRouteError, match="nobody holds"):
            wide_patches(damage(lost), Helpers(held))
        return
    try:
        patches = wide_patches(damage(lost), Helpers(held))
    except NoRouteError:
        assert len(runs(lost)) > 1, "one run that somebody holds is always covered"
        return
    check_fit(patches)
    assert lost <= covered(patches)
    for patch in patches:
        inside = [run for run in runs(lost) if patch.first <= run.start and run.stop <= patch.end]
        assert inside
        if len(inside) == 1:
            least = min(b - a for a, b in held if a <= inside[0].start and inside[0].stop <= b)
            assert patch.end - patch.first == least


def test_the_reason_is_that_of_the_gap_itself() -> None:
    with pytest.raises(NoRouteError, match="nobody holds 2:4"):
        wide_patches(damage([2, 3]), Helpers([]))
