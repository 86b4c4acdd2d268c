"""The model index: which models a swarm serves, told by a few servers of each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swarm.core.limits import MAX_LAYERS
from swarm.core.record_base import Record


class ModelEntry(Record, frozen=True, kw_only=True, omit_defaults=True, tag="model"):
    """One server's word that ``model`` is served here and has so many layers."""

    layer_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
