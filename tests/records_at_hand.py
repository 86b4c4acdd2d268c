"""Records as servers publish them, for tests that want some and do not care what else they say."""

from __future__ import annotations

from typing import Any

from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId
from swarm.core.numerics import Numerics


def announced(peer: str, model: ModelId, now_s: float, **changes: Any) -> Announcement:
    """A server of the first 10 of 30 layers, up for 100 s and announced for 60 s more, but for ``changes``."""
    usual: dict[str, Any] = {
        "model": str(model),
        "layer_count": 30,
        "peer": peer,
        "start": 0,
        "end": 10,
        "numerics": Numerics("float32"),
        "instance": 1,
        "sequence": 1,
        "started_s": now_s - 100,
        "expires_s": now_s + 60,
    }
    return Announcement(**{**usual, **changes})
