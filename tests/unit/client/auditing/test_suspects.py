"""Whom a verifier challenges, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.auditing.suspects import Suspect, next_suspect, overlap, sort_servers
from swarm.core.announcement import Announcement, State
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.verification.standings.strikes import Policy, Standing, audit_rate

LAYERS = 30
MODEL = "demo@1#0123456789abcdef"
FLOAT32, INT8 = Numerics("float32"), Numerics("float32", "int8")
PEERS = [Identity(bytes([number]) * 32).peer_id for number in range(1, 7)]


def listing(peer: PeerId, start: int, end: int, *, live: bool = True, **changes: Any) -> Listing:
    record = {"model": MODEL, "peer": peer, "instance": 1, "sequence": 0, "expires_s": 60.0}
    fields: dict[str, Any] = {"layer_count": LAYERS, "start": start, "end": end, "numerics": FLOAT32, "started_s": 0.0}
    metrics = Metrics(**record, tau_s=0.001, fixed_s=0.0, kv_free_tokens=1000)  # type: ignore[arg-type]
    return Listing(Announcement(**(record | fields | changes)), b"", metrics if live else None)  # type: ignore[arg-type]


def test_a_server_is_challenged_over_the_layers_that_the_replica_has() -> None:
    found, rest = sort_servers([listing(PEERS[0], 5, 15), listing(PEERS[1], 0, 30)], Span(10, 20), FLOAT32)
    assert {(suspect.peer, suspect.span) for suspect in found} == {(PEERS[0], Span(10, 15)), (PEERS[1], Span(10, 20))}
    assert rest == ()


@pytest.mark.parametrize(
    ("others", "checkable"),
    [
        ([], False),
        ([(0, 10)], False),
        ([(0, 10), (0, 10)], True),
        ([(0, 5), (5, 10), (0, 30)], True),
        ([(0, 5), (6, 10), (0, 30)], False),
    ],
)
def test_a_server_nobody_else_can_check_is_named(others: list[tuple[int, int]], checkable: bool) -> None:
    """Two others must hold each of its layers: arbitration is between three."""
    listings = [
        listing(PEERS[0], 0, 10),
        *(listing(peer, *span) for peer, span in zip(PEERS[1:], others, strict=False)),
    ]
    _, rest = sort_servers(listings, Span(20, 30), FLOAT32)
    (found,) = (one for one in rest if one.peer == PEERS[0])
    assert (found.reason, found.spot_checkable) == ("this verifier holds layers 20:30 only", checkable)


def test_another_quantization_cannot_be_compared() -> None:
    listings = [listing(PEERS[0], 0, 10, numerics=INT8), *(listing(peer, 0, 10) for peer in PEERS[1:])]
    suspects, (found,) = sort_servers(listings, Span(0, 10), FLOAT32)
    assert len(suspects) == len(PEERS) - 1
    assert found.reason == "it declares float32+int8, and this verifier's weights are float32"
    assert not found.spot_checkable


def test_who_takes_no_sessions_is_left_out() -> None:
    gone = [listing(PEERS[0], 0, 10, live=False), listing(PEERS[1], 0, 10, state=State.DRAINING)]
    assert sort_servers(gone, Span(0, 30), FLOAT32) == ((), ())


@given(st.tuples(*[st.integers(0, 8)] * 4))
def test_an_overlap_is_what_both_hold(ends: tuple[int, int, int, int]) -> None:
    one, other = Span(min(ends[:2]), max(ends[:2]) + 1), Span(min(ends[2:]), max(ends[2:]) + 1)
    common = set(range(one.start, one.end)) & set(range(other.start, other.end))
    found = overlap(one, other)
    assert (set() if found is None else set(range(found.start, found.end))) == common


SUSPECTS = [Suspect(peer, Span(0, 10), Span(0, 10), "") for peer in PEERS]
standings = st.builds(
    Standing,
    audited=st.integers(0, 500),
    raised=st.sampled_from([0, 0, 5]),
    ejected=st.sampled_from(["", "", "2 confirmed failures"]),
)


@given(st.lists(standings, min_size=6, max_size=6), st.lists(st.floats(0, 1e4) | st.none(), min_size=6, max_size=6))
def test_nobody_is_more_overdue_than_the_one_whose_turn_it_is(known: list[Standing], waits: list[float | None]) -> None:
    standing = dict(zip(PEERS, known, strict=True))
    waited_s = {peer: wait for peer, wait in zip(PEERS, waits, strict=True) if wait is not None}
    found = next_suspect(SUSPECTS, standing, waited_s, Policy())
    left = [suspect for suspect in SUSPECTS if not standing[suspect.peer].ejected]
    if found is None:
        assert not left
        return
    due = {one.peer: audit_rate(standing[one.peer], Policy()) * waited_s.get(one.peer, float("inf")) for one in left}
    assert due[found.peer] == max(due.values())


def test_everybody_has_a_turn_and_a_newcomer_many() -> None:
    """In a long run, of two servers the one on probation is challenged some 1 / q times as often."""
    known = {PEERS[0]: Standing(audited=10_000), PEERS[1]: Standing()}
    last, turns = dict.fromkeys(PEERS[:2], 0.0), dict.fromkeys(PEERS[:2], 0)
    for now in range(1, 1001):
        waited_s = {peer: now - last[peer] for peer in last}
        found = next_suspect(SUSPECTS[:2], known, waited_s, Policy(audit_rate=0.1))
        assert found is not None
        last[found.peer] = float(now)
        turns[found.peer] += 1
    assert turns[PEERS[1]] / turns[PEERS[0]] == pytest.approx(10, rel=0.2)
