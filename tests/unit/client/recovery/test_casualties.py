"""Who has failed a session is asked again only when nobody else is left, and has shown to be back."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from swarm.client.chains.diagnosis import LossKind
from swarm.client.recovery.casualties import Casualties, Mercy
from swarm.core.errors import BusyError
from swarm.core.ids import PeerId
from swarm.core.listing import Listing

Make = Callable[..., Listing]
A, B = PeerId("a"), PeerId("b")
NOBODY: frozenset[PeerId] = frozenset()


def welcome(casualties: Casualties, peer: PeerId = A) -> Mercy | None:
    """The least mercy by which ``peer`` is asked; None: not at all."""
    return next((mercy for mercy in Mercy if peer not in casualties.excluded(mercy, NOBODY, 0.0)), None)


@pytest.mark.parametrize(
    ("kind", "mercy"),
    [
        ("idle", Mercy.NONE),
        ("slow", Mercy.BLAMELESS),
        ("draining", Mercy.BLAMELESS),
        ("gone", None),
        ("silent", None),
        ("late", None),
        ("failed", None),
    ],
)
def test_at_first(kind: LossKind, mercy: Mercy | None) -> None:
    casualties = Casualties()
    casualties.note(A, kind)
    assert welcome(casualties) is mercy
    assert welcome(casualties, B) is Mercy.NONE
    assert casualties.knows(A) == (kind != "idle")


@pytest.mark.parametrize(
    ("kind", "news"), [("gone", True), ("silent", True), ("beside", True), ("late", False), ("failed", False)]
)
def test_metrics_since_the_loss_show_that_an_outage_is_over(kind: LossKind, news: bool, listing: Make) -> None:
    """Who lied or was late publishes as before; that is no reason to ask it again."""
    casualties = Casualties()
    casualties.note(A, kind)
    for sequence in (4, 4):  # the first look, and one that shows nothing newer
        casualties.looked([listing("a", 0, 2, sequence=sequence)])
        assert welcome(casualties) is None
    casualties.looked([listing("a", 0, 2, live=False)])
    assert welcome(casualties) is None
    casualties.looked([listing("a", 0, 2)])
    assert (welcome(casualties) is Mercy.RETURNED) == news


@pytest.mark.parametrize("kind", ["gone", "silent", "beside", "late", "failed"])
def test_a_server_that_was_started_again_is_another_one(kind: LossKind, listing: Make) -> None:
    casualties = Casualties()
    casualties.note(A, kind)
    casualties.looked([listing("a", 0, 2, instance=1)])
    casualties.looked([listing("a", 0, 2, instance=2)])
    assert welcome(casualties) is Mercy.RETURNED
    casualties.note(A, kind)
    assert welcome(casualties) is None, "it failed again"


def test_a_fault_is_not_forgotten_for_a_later_excuse() -> None:
    casualties = Casualties()
    casualties.note(A, "failed")
    casualties.note(A, "draining")
    assert welcome(casualties) is None


def test_who_failed_the_client_elsewhere_comes_second() -> None:
    casualties = Casualties()
    assert casualties.excluded(Mercy.NONE, frozenset({B}), 0.0) == {B}
    assert casualties.excluded(Mercy.AVOIDED, frozenset({B}), 0.0) == NOBODY


def test_a_full_server_is_asked_again_when_it_said() -> None:
    casualties = Casualties()
    assert casualties.busy(0.0) == (math.inf, "")
    casualties.note_busy(A, BusyError("a is busy", retry_after_s=2.0), until_s=2.5)
    casualties.note_busy(B, BusyError("b is busy", retry_after_s=1.0), until_s=1.5)
    assert casualties.busy(0.0) == (1.5, "b is busy")
    for mercy in Mercy:
        assert casualties.excluded(mercy, NOBODY, 1.0) == {A, B}
        assert casualties.excluded(mercy, NOBODY, 2.0) == {A}
    assert casualties.busy(2.0) == (2.5, "a is busy")
    assert casualties.busy(3.0) == (math.inf, "")
