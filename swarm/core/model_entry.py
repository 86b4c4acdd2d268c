"""The model index: which models a swarm serves, told by a few servers of each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swarm.core.limits import MAX_LAYERS
from swarm.core.record_base import Record

MAX_HIDDEN_SIZE = 2**20


class ModelEntry(Record, frozen=True, kw_only=True, omit_defaults=True, tag="model"):
    """One server's word that ``model`` is served here, has so many layers, and rows of ``hidden_size`` values between
    them (0: not told), by which whoever has not its files predicts what a hop takes."""

    layer_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
    hidden_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_HIDDEN_SIZE)] = 0
