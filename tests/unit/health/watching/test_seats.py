"""Who is asked where not all can be: laws that hold whatever strangers announce."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from sights import few

from swarm.core.ids import PeerId
from swarm.health.watching.seats import ELDERS, ELDERS_OF_ONE, Candidate, fair, guests, seats

ROOM = 40
ELDER_SEATS = int(ROOM * ELDERS)


def candidate(name: str, network: str = "", **known: object) -> Candidate:
    return Candidate(peer=PeerId(name), network=network or name, **known)  # type: ignore[arg-type]


def crowd(count: int, network: str = "", prefix: str = "evil", **known: object) -> list[Candidate]:
    """Without a network, each has one of its own."""
    return [candidate(f"{prefix}{number:04}", network, **known) for number in range(count)]


moments = st.one_of(st.none(), st.integers(0, 50).map(float))


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(0, 30))
    found = []
    for number in range(count):
        tried_s = draw(moments)
        found.append(
            candidate(
                f"peer{number}", draw(st.sampled_from(["a", "b", "c", "d"])), audited=draw(st.booleans()),
                since_s=None if tried_s is None else draw(moments), tried_s=tried_s, vouched_s=draw(moments),
                seated=draw(st.booleans()),
            )
        )  # fmt: skip
    return found


@few
@given(candidates(), st.integers(0, 30))
def test_every_seat_is_taken_by_one_as_long_as_somebody_wants_it(crowd: list[Candidate], room: int) -> None:
    for chosen in (seats(crowd, room), guests(crowd, room)):
        assert len(chosen) == len(set(chosen)) == min(room, len(crowd))
        assert set(chosen) <= {one.peer for one in crowd}


@few
@given(candidates(), st.integers(1, 30))
def test_a_choice_stays_the_same_until_something_is_known_that_was_not(crowd: list[Candidate], room: int) -> None:
    assert seats(crowd, room) == seats(list(reversed(crowd)), room)
    assert guests(crowd, room) == guests(list(reversed(crowd)), room)


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 200))
def test_fair_is_the_most_even_way_to_give_all_that_is_wanted(wanted: list[int], room: int) -> None:
    given_out = fair(wanted, room)
    assert sum(given_out) == min(room, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_out, wanted, strict=True))
    short = [got for got, want in zip(given_out, wanted, strict=True) if got < want]
    assert all(max(given_out) - got <= 1 for got in short), "nobody has more than one who wants more"


@given(st.integers(1, 30), st.integers(50, 400), st.booleans())
def test_a_crowd_at_one_place_leaves_all_others_a_seat(others: int, many: int, old: bool) -> None:
    """However long it has answered, and though it was there first."""
    honest = crowd(others, prefix="honest", since_s=50.0, tried_s=50.0)
    evil = crowd(many, "one place", since_s=0.0 if old else 90.0, tried_s=0.0, seated=True)
    assert {one.peer for one in honest} <= set(seats(evil + honest, ROOM))


@given(st.integers(1, ELDER_SEATS), st.integers(50, 400))
def test_who_has_answered_for_longest_stays_though_newcomers_have_networks_without_end(old: int, many: int) -> None:
    honest = crowd(old, prefix="honest", since_s=0.0, tried_s=0.0, seated=True)
    assert {one.peer for one in honest} <= set(seats(crowd(many, since_s=60.0, tried_s=60.0) + honest, ROOM))


def test_also_several_of_one_network_stay_but_only_an_eighth_of_those_seats() -> None:
    honest = crowd(30, "a data centre", prefix="honest", since_s=0.0, tried_s=0.0, seated=True)
    chosen = seats(crowd(400, since_s=60.0, tried_s=60.0) + honest, ROOM)
    names = Counter(peer[:4] for peer in chosen)
    assert names["hone"] == max(1, int(ELDER_SEATS * ELDERS_OF_ONE))


def test_whose_work_was_audited_here_comes_first() -> None:
    honest = crowd(1, "one place", prefix="honest", since_s=90.0, tried_s=90.0, audited=True)
    assert "honest0000" in seats(crowd(400, "one place", since_s=0.0, tried_s=0.0, seated=True) + honest, ROOM)


def test_who_answers_comes_before_who_was_never_tried_and_who_is_out_of_reach_last() -> None:
    lost, new = crowd(100, prefix="lost", tried_s=1.0), crowd(20, prefix="new")
    answering = crowd(15, prefix="there", since_s=5.0, tried_s=5.0)
    chosen = Counter(peer[:-4] for peer in seats([*lost, *new, *answering], ROOM))
    assert chosen == {"there": 15, "new": 20, "lost": 5}


def test_turns_go_to_newcomers_and_to_who_waits_longest_by_halves() -> None:
    new = crowd(300, "one place", prefix="new")
    lone = candidate("lone", "elsewhere")
    known = [candidate(f"known{number:02}", tried_s=float(number), since_s=0.0) for number in range(30)]
    chosen = guests([*new, lone, *known], 10)
    assert len([peer for peer in chosen if peer.startswith("known")]) == 5
    assert set(chosen) >= {one.peer for one in known[:5]} | {lone.peer}
    vouched = [candidate(f"vouched{number}", "one place", vouched_s=float(number)) for number in range(9)]
    chosen = guests([*new, lone, *known, *vouched], 10)
    assert set(chosen) >= {one.peer for one in vouched[:5]}, "whom those name first who have answered for longest"
