"""Broken links: kept apart for a while that grows, tried as a last resort ever more rarely, never for ever."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.verification.standings.apart import BROKEN, MAX_APART, UNREACHED, Apart, Broken, Kept, Law, Pauses

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
LAWS = [BROKEN, UNREACHED]


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")).filter(lambda pair: pair[0] != pair[1])))
def test_broken_links_keep_two_apart_in_either_order(broken: list[tuple[str, str]]) -> None:
    apart = Apart()
    for one, other in broken:
        apart = apart.and_also(PeerId(one), PeerId(other), 100.0)
    kept = apart.at(100.0)
    for one in "abcd":
        for other in "abcd":
            met = (one, other) in broken or (other, one) in broken
            assert kept.allow(PeerId(one), PeerId(other)) is not met
    assert kept.pairs == kept.shut
    assert len({known.pair for known in apart.pairs}) == len(apart.pairs)
    with pytest.raises(MisuseError):
        apart.and_also(A, A, 100.0)


@pytest.mark.parametrize("law", LAWS)
@given(st.data())
def test_a_link_that_never_holds_is_tried_ever_more_rarely_and_never_given_up(law: Law, data: st.DataObject) -> None:
    """Whoever tries it as soon as it may: at most so often, and at least now and then."""
    last_resort = data.draw(st.booleans())
    apart, now_s, tries = Apart().and_also(A, B, 0.0, law), 0.0, []
    for _ in range(40):
        kept = apart.at(now_s, law)
        assert kept.shut == kept.pairs == {(A, B)}
        times = apart.pairs[0].times
        wait_s = kept.opens_in_s if last_resort else law.apart.after(times)
        assert 0.0 < kept.opens_in_s < law.apart.after(times)
        now_s += wait_s + 0.001
        kept = apart.at(now_s, law)
        assert kept.shut == frozenset()
        assert kept.allow(A, B) is not last_resort
        tries.append(wait_s)
        apart = apart.and_also(B, A, now_s, law)
        apart = apart.and_also(A, B, now_s + 0.001, law)  # another session tells of the same
    assert all(later >= sooner - 0.01 for sooner, later in itertools.pairwise(tries))
    most_s = law.resort.most_s if last_resort else law.apart.most_s
    assert tries[-1] == pytest.approx(most_s, abs=0.1)


def test_a_link_that_held_for_as_long_as_it_was_kept_apart_begins_anew() -> None:
    apart = Apart().and_also(A, B, 0.0)
    apart = apart.and_also(A, B, 700.0)
    assert apart.pairs[0].times == 2
    assert apart.and_also(A, B, 700.0 + 2 * BROKEN.apart.after(2) - 1.0).pairs[0].times == 3
    assert apart.and_also(A, B, 700.0 + 2 * BROKEN.apart.after(2)).pairs[0].times == 1


def test_a_break_in_the_future_counts_nothing() -> None:
    apart = Apart().and_also(A, B, 4e9)
    assert apart.at(1.8e9) == Kept()
    assert apart.and_also(A, B, 1.8e9).pairs == (Broken(A, B, 1.8e9, 1),)


def test_pairs_are_bounded_and_those_of_one_server_can_be_forgotten() -> None:
    apart = Apart(tuple(Broken(PeerId(f"a{n}"), PeerId(f"b{n}"), 1.0) for n in range(MAX_APART)))
    grown = apart.and_also(PeerId("new"), PeerId("pair"), 2.0)
    assert len(grown.pairs) == MAX_APART
    kept = grown.at(2.0)
    assert not kept.allow(PeerId("new"), PeerId("pair"))
    assert kept.allow(PeerId("a0"), PeerId("b0"))  # the oldest
    apart = Apart().and_also(A, B, 1.0).and_also(B, C, 1.0).and_also(A, C, 1.0)
    assert [known.pair for known in apart.without(B).pairs] == [(A, C)]


def test_kept_apart_by_either() -> None:
    one = Kept(frozenset({(A, B)}), frozenset({(A, B)}), 5.0)
    other = Kept(frozenset({(B, C)}))
    both = one.and_those(other)
    assert not both.allow(B, A)
    assert not both.allow(C, B)
    assert both.allow(A, C)
    assert (both.shut, both.opens_in_s) == ({(A, B)}, 5.0)
    assert other.opens_in_s == math.inf


def test_pauses_grow_up_to_the_longest() -> None:
    pauses = Pauses(10.0, 3.0, 200.0)
    assert [pauses.after(times) for times in (1, 2, 3, 4, 10**6)] == [10.0, 30.0, 90.0, 200.0, 200.0]
