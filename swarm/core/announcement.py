"""The slow record of a server: what it holds, how to reach it, and what it means to do."""

from __future__ import annotations

import enum
import math
from typing import Annotated

import msgspec

from swarm.core.errors import BadRecordError
from swarm.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_ADDRESSES,
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_NAME_CHARS,
)
from swarm.core.numerics import Numerics
from swarm.core.record_base import MIN_RATE, Layer, Record
from swarm.core.spans import Span


class State(enum.Enum):
    """What a server is doing, as its announcement says."""

    JOINING = "joining"
    ONLINE = "online"
    DRAINING = "draining"
    OFFLINE = "offline"


class Reach(enum.Enum):
    """How strangers reach a server."""

    DIRECT = "direct"
    RELAYED = "relayed"
    UNREACHABLE = "unreachable"


Address = Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_CHARS)]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """A span that a server is about to load, and the wall time at which it said so first."""

    start: Layer
    end: Layer
    time_s: float

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


class Coordinate(msgspec.Struct, frozen=True, array_like=True):
    """A place in the network: Vivaldi's plane with height, all in seconds, and the relative error of the estimate."""

    x_s: float
    y_s: float
    height_s: float
    error: float


class Announcement(Record, frozen=True, kw_only=True, omit_defaults=True, tag="announcement"):
    """What one server holds and how to reach it.

    ``start`` and ``end`` are its span; ``head`` says it holds norm and LM head, ``embeddings`` that it holds those.
    Two ``instance`` numbers under one peer id are two processes with one key. ``started_s`` is wall time.
    ``kv_tokens`` is the KV budget, ``memory_bytes`` what the weights take. ``capacity_layers`` is how many layers it
    could hold, ``power_layers_per_s`` its decode speed alone and unloaded (0: unknown), ``region`` and ``coordinate``
    where it is. ``intent`` is a span it is about to move to (or to begin with, while it is joining).
    """

    layer_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
    start: Layer
    end: Layer
    head: bool = False
    embeddings: bool = False
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()
    reach: Reach = Reach.DIRECT
    state: State = State.ONLINE
    intent: Intent | None = None
    numerics: Numerics
    kv_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)] = 0
    context_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS)] = 0
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    capacity_layers: Layer = 0
    power_layers_per_s: float = 0.0
    region: Name = ""
    coordinate: Coordinate | None = None
    software: Name = ""
    public_name: Name = ""
    started_s: float

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    def check(self) -> None:
        """See ``Record.check``; also a span and an intent inside the model, known numerics, printable texts."""
        super().check()
        if not 0 <= self.started_s < self.expires_s:  # a NaN fails this too
            raise BadRecordError("lives from an impossible time", peer=self.peer)
        if not self.start < self.end <= self.layer_count:
            raise BadRecordError(f"span {self.start}:{self.end} of {self.layer_count} layers", peer=self.peer)
        if not self.numerics.known:
            raise BadRecordError(f"unknown numerics {self.numerics}", peer=self.peer)
        if not all(map(str.isprintable, (self.software, self.public_name, self.region, *self.addresses))):
            raise BadRecordError("unprintable characters in a name or an address", peer=self.peer)
        self.check_figures(power_layers_per_s=self.power_layers_per_s)
        if 0 < self.power_layers_per_s < MIN_RATE:
            raise BadRecordError(f"power_layers_per_s is {self.power_layers_per_s}", peer=self.peer)
        if (intent := self.intent) is not None and not (
            intent.start < intent.end <= self.layer_count and 0 <= intent.time_s < math.inf
        ):
            raise BadRecordError("means to hold an impossible span", peer=self.peer)
        if (place := self.coordinate) is not None:
            self.check_figures(x_s=abs(place.x_s), y_s=abs(place.y_s), height_s=place.height_s, error_s=place.error)
