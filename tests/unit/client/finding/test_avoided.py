"""Who failed is avoided for a minute, and longer if it fails again."""

from __future__ import annotations

from swarm.client.finding.avoided import AVOID_S, MAX_AVOID_S, Avoided
from swarm.core.ids import PeerId

PEER, OTHER = PeerId("peer"), PeerId("other")


def test_a_server_that_failed_is_avoided_for_a_minute() -> None:
    avoided = Avoided()
    avoided.note(PEER, 100.0)
    assert avoided.at(100.0) == {PEER}
    assert avoided.at(99.0 + AVOID_S) == {PEER}
    assert avoided.at(100.0 + AVOID_S) == set()


def test_failing_again_doubles_it_up_to_a_bound() -> None:
    avoided, now_s, lengths_s = Avoided(), 0.0, []
    for _ in range(8):
        avoided.note(PEER, now_s)
        began_s = now_s
        while avoided.at(now_s):
            now_s += 1.0
        lengths_s.append(now_s - began_s)
    assert lengths_s[:4] == [60.0, 120.0, 240.0, 480.0]
    assert set(lengths_s[4:]) == {MAX_AVOID_S}


def test_good_conduct_for_as_long_again_is_forgiveness() -> None:
    avoided = Avoided()
    avoided.note(PEER, 0.0)
    avoided.note(OTHER, 0.0)
    avoided.note(PEER, 2 * AVOID_S)
    assert avoided.at(2.9 * AVOID_S) == {PEER}
    assert avoided.at(3 * AVOID_S) == set()


def test_the_accused_are_avoided_for_as_long_as_they_are() -> None:
    suspects = {PeerId("suspect")}
    avoided = Avoided(lambda: frozenset(suspects))
    avoided.note(PEER, 0.0)
    assert avoided.at(1.0) == {PEER, "suspect"}
    suspects.clear()
    assert avoided.at(1.0) == {PEER}
