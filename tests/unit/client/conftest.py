"""Listings as the directory would show them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.core.announcement import Announcement, State
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: what tests share lies beside them

LAYERS = 4
MODEL = "tiny@main#0123456789abcdef"


def make_listing(peer: str, start: int, end: int, **figures: Any) -> Listing:
    """A live server that holds the ends its span allows; ``figures`` are fields of its metrics or announcement.

    ``sequence`` is the metrics'.
    """
    live = figures.pop("live", True)
    common = {"model": MODEL, "peer": peer, "instance": figures.pop("instance", 1), "expires_s": 10.0}
    names = set(Announcement.__struct_fields__) - {"sequence"}
    announced = {name: figures.pop(name) for name in names & set(figures)}
    fields: dict[str, Any] = {
        **common,
        "sequence": 0,
        "layer_count": LAYERS,
        "start": start,
        "end": end,
        "head": end == LAYERS,
        "embeddings": start == 0,
        "state": State.ONLINE,
        "numerics": Numerics("float32"),
        "kv_tokens": 100,
        "started_s": 1.0,
    }
    metrics = {**common, "sequence": 1, "tau_s": 0.01, "fixed_s": 0.0, "kv_free_tokens": 100, "uplink_mbps": 8.0}
    announcement = Announcement(**(fields | announced))
    return Listing(announcement, peer.encode(), Metrics(**(metrics | figures)) if live else None)


@pytest.fixture
def listing() -> Callable[..., Listing]:
    return make_listing
