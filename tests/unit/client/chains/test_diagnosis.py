"""Evidence in, verdict out: who is lost, which links are cut, who is at fault."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.chains.diagnosis import CRIME, LINK, WORD, Diagnosis, Loss, LossKind, Seat
from swarm.core.errors import PeerLostError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.wire.messages import LinkLost

ME = PeerId("the client")


def peer(number: int) -> PeerId:
    return PeerId(f"peer {number}")


def seats(*numbers: int) -> list[Seat]:
    return [Seat(number, peer(number), f"server {number}") for number in numbers]


def loss(kind: LossKind = "gone", text: str = "lost") -> Loss:
    return Loss(kind, PeerLostError(text))


def lost_link(number: int, generation: int = 0) -> LinkLost:
    return LinkLost(peer(number), "no route", generation)


def chain(*numbers: int) -> Diagnosis:
    diagnosis = Diagnosis(ME)
    diagnosis.seat(0, seats(*numbers))
    return diagnosis


# -- the client's own evidence ----------------------------------------------------------------------------------


def test_what_the_client_sees_itself_explains_what_the_neighbours_say() -> None:
    """Both neighbours of a killed server report a lost link; in whatever order that comes, only it is lost."""
    for order in permutations(range(3)):
        diagnosis = chain(0, 1, 2)
        for step in order:
            if step == 0:
                diagnosis.saw(1, WORD, loss("gone", "it went away"))
            else:
                diagnosis.told(0 if step == 1 else 2, lost_link(1))
        assert set(diagnosis.lost) == {1}
        assert diagnosis.cuts([0, 1, 2]) == frozenset()
        assert diagnosis.culprits == {peer(1)}
        assert str(diagnosis.error([0, 1, 2])) == "it went away"


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ((LINK, "gone"), (WORD, "draining"), "draining"),
        ((WORD, "draining"), (WORD, "gone"), "draining"),
        ((WORD, "gone"), (CRIME, "failed"), "failed"),
        ((CRIME, "failed"), (WORD, "gone"), "failed"),
    ],
)
def test_the_heaviest_evidence_counts_and_of_equal_ones_the_first(
    first: tuple[int, LossKind], second: tuple[int, LossKind], kept: LossKind
) -> None:
    diagnosis = chain(0, 1)
    for weight, kind in (first, second):
        diagnosis.saw(1, weight, loss(kind))
    assert diagnosis.lost[1].kind == kept


@pytest.mark.parametrize("kind", ["draining", "idle", "slow"])
def test_some_losses_are_nobodys_fault(kind: LossKind) -> None:
    diagnosis = chain(0, 1)
    diagnosis.saw(1, WORD, loss(kind))
    assert set(diagnosis.lost) == {1}
    assert not diagnosis.culprits


def test_a_slow_server_may_be_forgiven_and_no_other() -> None:
    diagnosis = chain(0, 1)
    diagnosis.saw(0, WORD, loss("slow"))
    diagnosis.saw(1, WORD, loss("gone"))
    for number in (0, 1, 7):
        diagnosis.forgive(number)
    assert set(diagnosis.lost) == {1}


def test_the_error_is_the_heaviest_of_who_still_sits_here() -> None:
    diagnosis = chain(0, 1, 2)
    assert diagnosis.error([0, 1, 2]) is None
    diagnosis.told(2, lost_link(1))
    assert "server 1 was lost: no route" in str(diagnosis.error([0, 1, 2]))
    diagnosis.saw(0, WORD, loss("gone", "zero"))
    diagnosis.saw(2, CRIME, loss("failed", "two"))
    assert str(diagnosis.error([0, 1, 2])) == "two"
    assert str(diagnosis.error([0, 1, 3])) == "zero"


# -- what servers say of each other -----------------------------------------------------------------------------


@pytest.mark.parametrize(("reporter", "reported"), [(0, 1), (1, 0), (1, 2), (2, 1)])
def test_a_link_that_only_servers_speak_of_is_cut(reporter: int, reported: int) -> None:
    diagnosis = chain(0, 1, 2)
    diagnosis.told(reporter, lost_link(reported))
    assert not diagnosis.lost
    assert diagnosis.cuts([0, 1, 2]) == {tuple(sorted((reporter, reported)))}
    assert diagnosis.culprits == {peer(reporter), peer(reported)}


def test_both_ends_may_report_the_same_link() -> None:
    diagnosis = chain(0, 1)
    diagnosis.told(0, lost_link(1))
    diagnosis.told(1, lost_link(0))
    diagnosis.told(1, lost_link(0))
    assert not diagnosis.lost
    assert diagnosis.cuts([0, 1]) == {(0, 1)}


def test_a_first_server_that_lost_the_client_is_lost_to_it() -> None:
    diagnosis = chain(0, 1)
    diagnosis.told(1, LinkLost(ME, "the stream closed"))  # its control stream, which the client sees itself
    assert not diagnosis.lost
    diagnosis.told(0, LinkLost(ME, "the stream closed"))
    assert diagnosis.lost[0].kind == "gone"
    diagnosis.saw(0, WORD, loss("draining"))
    assert diagnosis.lost[0].kind == "draining"


def test_old_news_and_lies_about_strangers() -> None:
    diagnosis = chain(0, 1, 2)
    diagnosis.seat(3, seats(0, 5, 2))
    diagnosis.told(0, lost_link(1, 2))  # of an older generation
    diagnosis.told(0, lost_link(1, 3))  # no neighbour any more
    diagnosis.told(1, lost_link(0, 3))  # it sits here no more
    assert not diagnosis.lost
    assert not diagnosis.cuts([0, 5, 2])
    for reporter, message in ((0, lost_link(5, 4)), (0, lost_link(2, 3)), (5, lost_link(5, 3)), (0, lost_link(9, 0))):
        with pytest.raises(ProtocolViolation):
            diagnosis.told(reporter, message)
    diagnosis.told(0, lost_link(5, 3))
    assert diagnosis.cuts([0, 5, 2]) == {(0, 5)}


def test_one_server_at_two_places_is_reported_once() -> None:
    """The same peer before and after somebody: one lost neighbour, not two."""
    diagnosis = Diagnosis(ME)
    diagnosis.seat(0, [Seat(0, peer(0), "a"), Seat(1, peer(1), "b"), Seat(2, peer(0), "a again")])
    diagnosis.told(1, lost_link(0))
    assert not diagnosis.lost
    assert diagnosis.cuts([0, 1, 2]) == {(0, 1), (1, 2)}


# -- who tells too often ----------------------------------------------------------------------------------------


def test_who_accuses_two_is_lost_himself() -> None:
    diagnosis = chain(0, 1, 2)
    diagnosis.told(1, lost_link(0))
    diagnosis.told(1, lost_link(2))
    assert {number: found.kind for number, found in diagnosis.lost.items()} == {1: "beside"}
    assert not diagnosis.cuts([0, 1, 2])
    assert diagnosis.culprits == {peer(1)}
    assert "server 1" in str(diagnosis.error([0, 1, 2]))


def test_who_is_accused_by_two_is_lost() -> None:
    diagnosis = chain(0, 1, 2)
    diagnosis.told(0, lost_link(1))
    diagnosis.told(2, lost_link(1))
    assert set(diagnosis.lost) == {1}


@pytest.mark.parametrize("liar_reports", list(product([True, False], repeat=2)))
def test_the_second_lost_link_of_a_server_in_its_life_ends_it(liar_reports: tuple[bool, bool]) -> None:
    """Whether it says so, or breaks the link and its neighbours do; the replaced neighbour may even come back."""
    for newcomer in (peer(5), peer(1)):
        diagnosis = chain(0, 1, 2)
        diagnosis.told(*((0, lost_link(1)) if liar_reports[0] else (1, lost_link(0))))
        diagnosis.seat(1, [*seats(0), Seat(5, newcomer, "server 5"), *seats(2)])
        diagnosis.settle()
        assert not diagnosis.lost
        assert not diagnosis.cuts([0, 5, 2])
        assert diagnosis.culprits == {peer(1)}
        reporter, reported = (0, newcomer) if liar_reports[1] else (5, peer(0))
        diagnosis.told(reporter, LinkLost(reported, "no route", 1))
        assert set(diagnosis.lost) == {0}
        assert diagnosis.culprits == {peer(0)}


def test_two_that_dial_each_other_anew_and_fail_again_are_no_liars() -> None:
    diagnosis = chain(0, 1)
    diagnosis.told(0, lost_link(1))
    diagnosis.seat(1, seats(0, 1))
    assert diagnosis.cuts([0, 1]) == {(0, 1)}
    assert not diagnosis.cuts([0, 1], since=1)
    diagnosis.told(0, lost_link(1, 1))
    assert diagnosis.cuts([0, 1], since=1) == {(0, 1)}
    assert not diagnosis.lost
    diagnosis.seat(2, seats(0, 1))
    diagnosis.settle()
    assert not diagnosis.cuts([0, 1])
    assert not diagnosis.culprits


def test_an_honest_witness_beside_servers_that_die_is_not_suspected() -> None:
    diagnosis = chain(0, 1, 2)
    for newcomer in range(3, 9):
        dying = 1 if newcomer == 3 else newcomer - 1
        diagnosis.told(0, lost_link(dying, newcomer - 3))
        diagnosis.told(2, lost_link(dying, newcomer - 3))
        diagnosis.saw(dying, WORD, loss("silent"))
        assert set(diagnosis.lost) & {0, 2} == set()
        diagnosis.seat(newcomer - 2, seats(0, newcomer, 2))
        diagnosis.settle()
    assert diagnosis.culprits == {peer(1), *map(peer, range(3, 8))}


def test_the_second_failure_right_behind_a_server_ends_it() -> None:
    """A successor that is fed nonsense says FAILED, which looks like its own fault."""
    diagnosis = chain(0, 1)
    diagnosis.saw(1, WORD, loss("failed"))
    assert set(diagnosis.lost) == {1}
    diagnosis.seat(1, seats(0, 2))
    diagnosis.settle()
    diagnosis.saw(2, WORD, loss("failed"))
    assert set(diagnosis.lost) == {0, 1, 2}


def test_the_third_failure_anywhere_behind_a_server_ends_it() -> None:
    """Rows of NaN pass through an honest server unseen. What is left of the honest ones is not blamed any more."""
    diagnosis = chain(0, 1, 2)
    diagnosis.saw(2, WORD, loss("failed"))
    diagnosis.seat(1, seats(0, 1, 3))
    diagnosis.saw(3, WORD, loss("failed"))
    assert set(diagnosis.lost) == {1, 2, 3}
    diagnosis.seat(2, seats(0, 4, 5))
    diagnosis.saw(5, WORD, loss("failed"))
    assert set(diagnosis.lost) == {0, 1, 2, 3, 5}
    diagnosis.seat(3, seats(6, 4, 7))
    assert set(diagnosis.lost) & {6, 4, 7} == set()


def test_newcomers_that_their_caller_knows_of_are_no_culprits() -> None:
    diagnosis = chain(0, 1)
    diagnosis.saw(1, WORD, loss("gone"))
    diagnosis.seat(1, seats(0, 2))
    diagnosis.saw(2, WORD, loss("late"))
    diagnosis.excuse([2])
    assert diagnosis.culprits == {peer(1)}


# -- laws -------------------------------------------------------------------------------------------------------

ACTIONS = ("accuse", "break", "spoil")
MOST_HEALS = 4
MOST_DROPPED = 6


@given(
    length=st.integers(2, 5),
    place=st.integers(0, 4),
    choices=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 4), st.booleans()), min_size=12, max_size=12),
)
def test_one_liar_cannot_talk_a_client_out_of_a_whole_swarm(
    length: int, place: int, choices: Sequence[tuple[str, int, bool]]
) -> None:
    """Whatever it does, and whichever end of a cut is replaced: after a few heals it is out itself.

    It accuses a neighbour, has one accuse it, or spoils the rows so that somebody behind it fails.
    """
    order, place = list(range(length)), min(place, length - 1)
    fresh, liar, dropped = count(length), order[place], 0
    diagnosis = chain(*order)
    for generation, (action, whom, replace_reporter) in enumerate(choices):
        place = order.index(liar)
        neighbours = [order[beside] for beside in (place - 1, place + 1) if 0 <= beside < length]
        neighbour = neighbours[whom % len(neighbours)]
        behind = order[place + 1 :]
        if action == "spoil" and behind:
            diagnosis.saw(behind[whom % len(behind)], WORD, loss("failed"))
        else:
            reporter, reported = (neighbour, liar) if action == "break" else (liar, neighbour)
            diagnosis.told(reporter, lost_link(reported, generation))
        out = set(diagnosis.lost) & set(order)
        assert out or diagnosis.cuts(order)
        out |= {pair[replace_reporter] for pair in diagnosis.cuts(order)}
        dropped += len(out - {liar})
        if liar in out:
            break
        order = [next(fresh) if number in out else number for number in order]
        diagnosis.seat(generation + 1, seats(*order))
        diagnosis.settle()
    assert generation < MOST_HEALS
    assert dropped <= MOST_DROPPED
    assert diagnosis.culprits >= {peer(liar)}


@given(
    deaths=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["gone", "silent", "draining", "idle", "slow"]))),
    witnesses=st.lists(st.booleans(), min_size=64, max_size=64),
)
def test_honest_servers_beside_others_that_die_stay(
    deaths: Sequence[tuple[int, LossKind]], witnesses: Sequence[bool]
) -> None:
    order, fresh, speaks = list(range(4)), count(4), iter(witnesses * 8)
    diagnosis = chain(*order)
    for generation, (place, kind) in enumerate(deaths[:40]):
        for a, b in pairwise(order):
            for reporter, reported in ((a, b), (b, a)):
                if reported == order[place] and next(speaks):
                    diagnosis.told(reporter, lost_link(reported, generation))
        diagnosis.saw(order[place], WORD, loss(kind))
        assert set(diagnosis.lost) & set(order) == {order[place]}
        assert not diagnosis.cuts(order)
        order[place] = next(fresh)
        diagnosis.seat(generation + 1, seats(*order))
        diagnosis.settle()
    assert not set(map(peer, order)) & diagnosis.culprits


@given(
    told=st.sets(st.sampled_from([(a, b) for a in range(4) for b in (a - 1, a + 1) if 0 <= b < 4])),
    seen=st.dictionaries(st.integers(0, 3), st.sampled_from(["gone", "failed"]), max_size=2),
    data=st.data(),
)
def test_the_verdict_does_not_depend_on_the_order_of_evidence(
    told: set[tuple[int, int]], seen: dict[int, LossKind], data: st.DataObject
) -> None:
    def judged(evidence: Sequence[tuple[int, int] | int]) -> object:
        diagnosis = chain(0, 1, 2, 3)
        for item in evidence:
            if isinstance(item, int):
                diagnosis.saw(item, WORD, loss(seen[item]))
            else:
                diagnosis.told(item[0], lost_link(item[1]))
        lost = diagnosis.lost
        cuts = diagnosis.cuts([0, 1, 2, 3])
        assert not {number for pair in cuts for number in pair} & set(lost)
        assert bool(lost or cuts) == (diagnosis.error([0, 1, 2, 3]) is not None) == bool(evidence)
        return {number: found.kind for number, found in lost.items()}, cuts, diagnosis.culprits

    evidence = [*sorted(told), *sorted(seen)]
    assert judged(evidence) == judged(data.draw(st.permutations(evidence)))
