"""What every directory record has, whatever its kind."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import msgspec

from swarm.core.errors import BadRecordError, ConfigError
from swarm.core.ids import ModelId, PeerId
from swarm.core.limits import MAX_LAYERS, MAX_RECORD_LIFETIME_S, MAX_SHARD_DEPTH, PROTOCOL_MAJOR

Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
PeerText = Annotated[str, msgspec.Meta(max_length=64)]
MAX_RATE = 1e12
"""Of layers, tokens or bits per second."""
MIN_RATE = 1e-6
"""The least power in layers per second, and uplink in Mbit/s: slower serves nobody, and its inverse may overflow."""
MAX_SECONDS = 3600.0
"""No measured duration is longer; what says so is absurd."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="record"):
    """One peer's statement about one model, until ``expires_s`` (wall time).

    ``instance`` is drawn at every start of a process, ``sequence`` grows with every record of one kind of an instance.
    ``shard_depth`` says over how many keys the model's records of this kind are spread: 2^depth, by ``shard_of``.
    """

    LIFETIME_S: ClassVar[float] = MAX_RECORD_LIFETIME_S
    """The longest a record of this kind may live."""

    protocol: int = PROTOCOL_MAJOR
    model: Annotated[str, msgspec.Meta(max_length=400)]
    peer: PeerText
    instance: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    expires_s: float
    shard_depth: Annotated[int, msgspec.Meta(ge=0, le=MAX_SHARD_DEPTH)] = 0

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self.peer)

    def check(self) -> None:
        """Raise ``BadRecordError`` for what makes no sense at any time; kinds add their own checks."""
        if self.protocol != PROTOCOL_MAJOR:
            raise BadRecordError(f"speaks protocol {self.protocol}, not {PROTOCOL_MAJOR}", peer=self.peer)
        if not 0 <= self.expires_s < math.inf:  # a NaN fails this too
            raise BadRecordError("lives to an impossible time", peer=self.peer)
        try:
            ModelId.parse(self.model)
        except ConfigError as error:
            raise BadRecordError("malformed model id", peer=self.peer) from error

    def check_figures(self, **figures: float) -> None:
        """Raise ``BadRecordError`` that names the first figure which is no finite number from 0 to its bound."""
        for name, value in figures.items():
            bound = MAX_SECONDS if name.endswith("_s") and not name.endswith("per_s") else MAX_RATE
            if not 0 <= value <= bound:
                raise BadRecordError(f"{name} is {value}", peer=self.peer)
