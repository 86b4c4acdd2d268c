"""Whom READY asks for a round trip, where it cannot ask everybody."""

from __future__ import annotations

from typing import Any

from swarm.cli.hosting.ready import worth_pinging
from swarm.core.announcement import Announcement, Reach, State
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics

MODEL = "demo@main#0123456789abcdef"


def listed(number: int, start: int, end: int, *, live: bool = True, **changes: Any) -> Listing:
    peer = Identity(bytes([number]) * 32).peer_id
    announced = Announcement(
        model=MODEL, layer_count=30, peer=peer, start=start, end=end, numerics=Numerics("float32"), instance=1,
        sequence=1, started_s=0.0, expires_s=60.0, **changes,
    )  # fmt: skip
    metrics = Metrics(
        model=MODEL, peer=peer, instance=1, sequence=1, expires_s=10.0, tau_s=0.01, fixed_s=0.0, kv_free_tokens=9
    )
    return Listing(announced, b"", metrics if live else None)


def test_neighbours_and_the_ends_come_first() -> None:
    own = listed(1, 10, 20)
    others = [listed(2, 22, 28), listed(3, 13, 20)]
    first = [listed(4, 18, 25), listed(5, 5, 12), listed(6, 0, 5), listed(7, 25, 30)]
    found = worth_pinging(own.announcement, [others[0], *first, own, others[1]])
    assert found == [*first, *others]


def test_who_cannot_be_used_is_not_asked() -> None:
    own, useless = listed(1, 10, 20), [
        listed(2, 20, 30, live=False),
        listed(3, 20, 30, reach=Reach.UNREACHABLE),
        listed(4, 20, 30, state=State.DRAINING),
    ]  # fmt: skip
    assert worth_pinging(own.announcement, [own, *useless]) == []
