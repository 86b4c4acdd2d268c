"""The ways between servers."""

from __future__ import annotations

from typing import Any

from sights import PEERS, heard, report, server

from swarm.core.announcement import Coordinate
from swarm.health.picture.links import MAX_ESTIMATED, MAX_LINKS, MAX_OF_ONE, links_of
from swarm.health.sight import Seen
from swarm.health.state import LinkState
from swarm.wire.status import LinkFigures

ANNA, BERT, CARL = PEERS[:3]


def place(x_s: float, error: float = 0.1) -> Coordinate:
    return Coordinate(x_s, 0.0, 0.001, error)


def three(**changes: Any) -> list[Seen]:
    first = server(0, 0, 2, coordinate=place(0.0), **changes)
    return [first, server(1, 2, 4, coordinate=place(0.01)), server(2, 2, 4, coordinate=place(0.02))]


def test_measured_ones_are_shown_as_they_are() -> None:
    links = links_of(three(measured={"rtt_s": {BERT: 0.0312, "a stranger": 0.1, ANNA: 0.0}}), {})
    assert links[:1] == [LinkState(source=ANNA, target=BERT, rtt_s=0.031)]
    assert [(link.target, link.estimated) for link in links] == [(BERT, False), (CARL, True)]


def test_a_measured_way_leads_where_rows_go_whoever_measured_it() -> None:
    """The one behind may be the one who tells; of two words the sender's counts."""
    behind = server(1, 2, 4, coordinate=place(0.01), measured={"rtt_s": {ANNA: 0.04}})
    [link, _] = links_of([server(0, 0, 2, coordinate=place(0.0)), behind, server(2, 2, 4, coordinate=place(0.0))], {})
    assert link == LinkState(source=ANNA, target=BERT, rtt_s=0.04)
    [link] = links_of([server(0, 0, 2, measured={"rtt_s": {BERT: 0.03}}), behind], {})
    assert link == LinkState(source=ANNA, target=BERT, rtt_s=0.03)


def test_those_in_use_tell_their_goodput_and_how_fresh_they_are() -> None:
    strange = LinkFigures("x", 0.1, 0.1, 1.0)
    used = LinkFigures(BERT, None, 0.123, 8.44), LinkFigures(CARL, 0.05, None, None), strange
    measured = three(measured={"rtt_s": {BERT: 0.03}})
    links = {link.target: link for link in links_of(measured, {ANNA: heard(report(links=used))})}
    assert links[BERT] == LinkState(source=ANNA, target=BERT, rtt_s=0.03, goodput_mbps=8.4, noop_age_s=0.1)
    assert links[CARL] == LinkState(source=ANNA, target=CARL, rtt_s=0.05)
    assert set(links) == {BERT, CARL}


def test_others_are_estimated_where_rows_would_go_and_marked() -> None:
    links = links_of(three(measured=None), {})
    assert [(link.target, link.rtt_s) for link in links] == [(BERT, 0.012), (CARL, 0.022)]
    assert all(link.estimated for link in links), "nobody can follow those of the last layers"


def test_a_place_that_is_not_known_gives_no_estimate() -> None:
    first, second, third = three(measured=None)
    vague = server(1, 2, 4, coordinate=place(0.01, error=0.9))
    far = server(2, 2, 4, coordinate=place(3600.0))
    assert links_of([first, vague, far], {}) == []
    assert links_of([server(0, 0, 2), second, third], {}) == []


def test_there_are_not_too_many() -> None:
    """Of each the nearest; in a crowd fewer of each."""
    crowd = [server(number, 0, 2, measured={"rtt_s": {PEERS[other]: 0.1 - other / 1000 for other in range(20, 36)}})
             for number in range(20)]  # fmt: skip
    crowd += [server(number, 2, 4, coordinate=place(0.0)) for number in range(20, 40)]
    links = links_of(crowd, {})
    assert max(sum(link.source == one.peer for link in links) for one in crowd) == MAX_LINKS // 40
    assert MAX_LINKS // 40 < MAX_OF_ONE
    assert {link.target for link in links} == {PEERS[number] for number in range(24, 36)}
    lonely = links_of([server(0, 0, 2, coordinate=place(0.0)), *crowd[20:]], {})
    assert len(lonely) == MAX_ESTIMATED
