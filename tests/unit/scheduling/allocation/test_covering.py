"""Bin covering against exhaustive search."""

from __future__ import annotations

import itertools

from groups_by_hand import most_groups
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.scheduling.allocation.covering import (
    EXACT_UP_TO,
    cover,
    exact_covers,
    least_servers,
    tightest,
)


@st.composite
def bins(draw: st.DrawFn, largest: int = 7) -> tuple[tuple[int, ...], int]:
    """Capacities, falling and at most the layers, and the layers."""
    layers = draw(st.integers(1, 70))
    capacities = draw(st.lists(st.integers(1, layers), min_size=1, max_size=largest))
    return tuple(sorted(capacities, reverse=True)), layers


def fewest_servers(capacities: tuple[int, ...], layers: int) -> list[int]:
    """s*(k) by k, over all sets of servers."""
    found = {0: 0}
    for size in range(1, len(capacities) + 1):
        for chosen in itertools.combinations(capacities, size):
            found.setdefault(most_groups(chosen, layers), size)
    return [found[k] for k in sorted(found)]


def check_groups(groups: list[list[int]], capacities: tuple[int, ...], layers: int) -> None:
    assert all(sum(capacities[index] for index in group) >= layers for group in groups)
    used = [index for group in groups for index in group]
    assert len(used) == len(set(used))


@given(bins(largest=6))
@settings(deadline=None, max_examples=60)
def test_the_exact_cover_takes_the_fewest_servers_of_any_set(case: tuple[tuple[int, ...], int]) -> None:
    capacities, layers = case
    covers = exact_covers(capacities, layers)
    assert [sum(map(len, groups)) for groups in covers] == fewest_servers(capacities, layers)
    for k, groups in enumerate(covers):
        assert len(groups) == k
        check_groups(groups, capacities, layers)


@given(bins(largest=EXACT_UP_TO))
@settings(deadline=None)
def test_bounds_hold_and_the_heuristic_keeps_within_them(case: tuple[tuple[int, ...], int]) -> None:
    capacities, layers = case
    exact = exact_covers(capacities, layers)
    bound = least_servers(capacities, tightest(capacities, layers))
    assert len(bound) >= len(exact)
    assert all(least <= sum(map(len, groups)) for least, groups in zip(bound, exact, strict=False))
    for wanted in range(1, len(bound) + 1):
        groups = cover(capacities, layers, wanted)
        check_groups(groups, capacities, layers)
        assert min(wanted, len(exact) - 1, 1) <= len(groups) <= min(wanted, len(exact) - 1)


@given(bins())
def test_the_tightest_sum_is_the_least_that_suffices(case: tuple[tuple[int, ...], int]) -> None:
    capacities, layers = case
    sums = [sum(chosen) for size in range(8) for chosen in itertools.combinations(capacities, size)]
    assert tightest(capacities, layers) == min((total for total in sums if total >= layers), default=0)


def test_capacities_that_never_add_up_are_seen_by_the_bound() -> None:
    assert tightest([7] * 640, 64) == 70
    assert len(least_servers([7] * 640, 70)) - 1 == 64
    assert len(cover([7] * 640, 64, 70)) == 64
