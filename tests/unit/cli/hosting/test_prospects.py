"""What a ready server says of itself: with it, without it, and alone."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.cli.hosting.prospects import BUSY_TEXT, FASTER, Prospects, prospects, prospects_json, prospects_text
from swarm.client.finding.snapshot import Snapshot
from swarm.core.announcement import Announcement
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics

MODEL = "demo@main#0123456789abcdef"
ANNA, BERT, OWN = (Identity(bytes([index]) * 32).peer_id for index in range(1, 4))
TAU_S = 0.004


def listed(peer: str, start: int, end: int, *, tau_s: float = TAU_S, **figures: Any) -> Listing:
    announced = Announcement(
        model=MODEL, layer_count=20, peer=peer, start=start, end=end, head=end == 20, embeddings=start == 0,
        numerics=Numerics("float32"), kv_tokens=4096, instance=1, sequence=1, started_s=0.0, expires_s=60.0,
    )  # fmt: skip
    known: dict[str, Any] = {"uplink_mbps": 1000.0, "kv_free_tokens": 3000, "fixed_s": 0.0} | figures
    metrics = Metrics(model=MODEL, peer=peer, instance=1, sequence=1, expires_s=10.0, tau_s=tau_s, **known)
    return Listing(announced, b"", metrics)


def view(*listings: Listing) -> Snapshot:
    return Snapshot(model=MODEL, layers=20, listings=listings, hidden_size=64)


def look(swarm: Snapshot, own: Listing, *, rtt_s: float = 0.01, alone_s: float | None = None) -> Prospects:
    measured = {one.peer: rtt_s for one in swarm.listings if one.peer != own.peer}
    return prospects(swarm, own, measured, fits=alone_s is not None, alone_step_s=alone_s)


def test_the_missing_half_makes_answers_possible() -> None:
    found = look(view(listed(ANNA, 0, 10)), listed(OWN, 10, 20))
    assert found.joined.tokens_per_s == pytest.approx(1 / (20 * TAU_S + 0.01), rel=0.02)
    assert found.joined.step is not None
    assert not found.joined.step.guessed
    assert found.without.tokens_per_s is None
    assert "without this server none" in prospects_text(found)
    assert "10 to 19" in prospects_text(found)


def test_its_own_old_record_does_not_count_as_somebody_else() -> None:
    own = listed(OWN, 10, 20)
    assert look(view(listed(ANNA, 0, 10), own), own) == look(view(listed(ANNA, 0, 10)), own)


def test_a_faster_server_is_told_and_a_spare_one_too() -> None:
    others = listed(ANNA, 0, 10, rtt_s={BERT: 0.01}), listed(BERT, 10, 20)
    faster = look(view(*others), listed(OWN, 10, 20, tau_s=TAU_S / 10))
    assert faster.joined.tokens_per_s is not None and faster.without.tokens_per_s is not None  # noqa: PT018
    assert faster.joined.tokens_per_s > FASTER * faster.without.tokens_per_s
    assert "without this server" in prospects_text(faster)
    spare = look(view(*others), listed(OWN, 10, 20, tau_s=TAU_S * 10))
    assert spare.joined.tokens_per_s == spare.without.tokens_per_s
    assert "with this server or without" in prospects_text(spare)


def test_nothing_answers_yet() -> None:
    found = look(view(), listed(OWN, 10, 20))
    assert prospects_text(found).startswith("No answers yet: ")
    assert not found.faster_alone
    assert prospects_json(found)["tokens_per_s"] is None


def test_what_nobody_measured_is_a_range_that_says_why() -> None:
    own = listed(OWN, 10, 20, uplink_mbps=None)
    swarm = view(listed(ANNA, 0, 10, uplink_mbps=None))
    blind = prospects(swarm, own, {}, fits=True, alone_step_s=0.05)
    # The link, the way to its first server (the last is this one itself), and that server's uplink.
    assert "gets 2.6 to 12 tok/s (2 of 3 links and 1 uplink not measured yet); without" in prospects_text(blind)
    assert blind.joined.range_tokens_per_s == pytest.approx((2.6, 12.5), rel=0.02)
    assert prospects_json(blind)["guessed_figures"] == 3
    assert blind.faster_alone, "whatever the links turn out to be"
    slower = prospects(swarm, own, {}, fits=True, alone_step_s=0.1)
    assert not slower.faster_alone, "it may be"
    known = look(swarm, own)
    assert "gets about 11 tok/s; without" in prospects_text(known), "an uplink matters little to rows of 256 bytes"


def test_the_round_trips_from_here_bound_those_between_others() -> None:
    """Neither has told of the other yet, as in a swarm that has just come together."""
    swarm = view(listed(ANNA, 0, 10), listed(BERT, 10, 15))
    found = look(swarm, listed(OWN, 15, 20), rtt_s=0.004)
    assert found.joined.step is not None
    assert found.joined.step.unmeasured == 1
    assert found.joined.tokens_per_s == pytest.approx(1 / (20 * TAU_S + 0.006), rel=0.05)
    assert "gets about 12 tok/s; without" in prospects_text(found)


@pytest.mark.parametrize(("alone_s", "faster"), [(0.02, True), (1.0, False), (None, False)])
def test_whether_the_machine_would_be_faster_alone(alone_s: float | None, faster: bool) -> None:
    found = look(view(listed(ANNA, 0, 10)), listed(OWN, 10, 20), alone_s=alone_s)
    assert found.faster_alone is faster
    text = prospects_text(found)
    assert ("This machine alone would be faster (about 50 tok/s): it could hold the whole model." in text) is faster
    assert ("This machine alone could hold the whole model, at about 1 tok/s" in text) is (alone_s == 1.0)


def test_a_machine_that_was_busy_says_so_and_advises_nothing() -> None:
    swarm, own = view(listed(ANNA, 0, 10)), listed(OWN, 10, 20)
    idle, busy = (prospects(swarm, own, {}, fits=True, alone_step_s=0.001, busy=busy) for busy in (False, True))
    assert (idle.faster_alone, busy.faster_alone) == (True, False)
    assert "would be faster" not in prospects_text(busy)
    assert prospects_text(busy).endswith(BUSY_TEXT)
    assert BUSY_TEXT not in prospects_text(idle)
    assert [prospects_json(found)["busy_while_measured"] for found in (idle, busy)] == [False, True]
    assert idle.joined == busy.joined, "routing gets the same figures"


def test_a_machine_that_cannot_hold_it_is_not_told_to_go_alone() -> None:
    swarm, own = view(listed(ANNA, 0, 10)), listed(OWN, 10, 20)
    found = prospects(swarm, own, {}, fits=False, alone_step_s=0.001)
    assert found.alone_tokens_per_s is None
    assert not found.faster_alone


def test_nobody_is_told_to_leave_a_swarm_that_is_still_gathering() -> None:
    found = look(view(), listed(OWN, 10, 20), alone_s=0.05)
    assert not found.faster_alone
    assert "could hold the whole model, at about 20 tok/s" in prospects_text(found)
