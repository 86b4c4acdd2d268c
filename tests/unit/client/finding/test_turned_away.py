"""What a client remembers of BUSY and REFUSED, told by its own clock."""

from __future__ import annotations

from swarm.client.finding.turned_away import REFUSED_S, Told, TurnedAway
from swarm.core.errors import BusyError
from swarm.core.ids import PeerId

A, B = PeerId("a"), PeerId("b")


def told(until_s: float) -> Told:
    return Told(BusyError("full", retry_after_s=1.0), until_s)


def test_a_busy_server_is_left_alone_until_its_time() -> None:
    notes = TurnedAway()
    notes.note_busy(A, told(5.0))
    notes.note_busy(B, told(7.0))
    assert set(notes.busy(4.9)) == {A, B}
    assert set(notes.busy(5.0)) == {B}
    assert not notes.busy(8.0)


def test_the_first_of_several_times_counts() -> None:
    notes = TurnedAway()
    for until_s in (5.0, 3.0, 9.0):
        notes.note_busy(A, told(until_s))
    assert notes.busy(0.0)[A].until_s == 3.0


def test_who_accepts_is_not_busy() -> None:
    notes = TurnedAway()
    notes.note_busy(A, told(5.0))
    notes.forget([A, B])
    assert not notes.busy(0.0)


def test_what_was_refused_is_not_asked_again_for_a_while() -> None:
    """A larger session would be refused too, a smaller one may fit."""
    notes = TurnedAway()
    notes.note_refused(A, 100, 0.0)
    assert notes.refusing(100, 1.0) == notes.refusing(200, 1.0) == {A}
    assert not notes.refusing(99, 1.0)
    notes.note_refused(A, 50, 2.0)
    assert notes.refusing(60, 3.0) == {A}
    notes.note_refused(A, 80, 4.0)
    assert notes.refusing(60, 5.0) == {A}, "the smallest that was refused"
    assert not notes.refusing(100, 4.0 + REFUSED_S)


def test_an_old_refusal_says_nothing_beside_a_new_one() -> None:
    notes = TurnedAway()
    notes.note_refused(A, 50, 0.0)
    notes.note_refused(A, 100, REFUSED_S)
    assert not notes.refusing(60, REFUSED_S + 1.0)
