"""What a session asks of its chain, and what routing answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNeeds:
    """What a session asks of its chain.

    ``kv_tokens``: cache room in tokens at every server. ``head``: ``"remote"`` wants embeddings at the first server and
    norm with LM head at the last, ``"local"`` wants neither. ``numerics``: ``"same"`` any one class for the whole chain
    (the answer is exact), ``"any"`` lets classes mix, a ``Numerics`` asks for that class. ``excluded`` peers take no
    part. ``entry_bytes`` and ``exit_bytes`` are what one step sends in and brings back, None the cluster's
    ``activation_bytes``; with a remote head the exit is a few bytes of token ids. ``through`` is a stage that the route
    must have; who stands in for whom takes no notice of it.
    """

    kv_tokens: int = 0
    head: Literal["local", "remote"] = "local"
    numerics: Numerics | Literal["same", "any"] = "same"
    excluded: frozenset[PeerId] = frozenset()
    entry_bytes: int | None = None
    exit_bytes: int | None = None
    through: Stage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    """How far the fastest chain gives way to one with fewer sessions, so that clients do not herd.

    ``near``: a chain this share slower than the best still counts as as fast, and the fewest sessions decide.
    ``spread``: stages this share slower than others count as equal to them and are drawn by lot, for clients that share
    a stale view; 0 draws only among exact equals, and then the answer to a view without sessions is the optimum.
    ``detour``: instead of a chain at its knee none is taken that is this many times slower. ``rounds``: so many chains
    at their knee are passed over before the best is taken as it is; 0 takes no notice of knees. ``standbys``: whether
    to look for them at all.
    """

    near: float = 0.05
    spread: float = 0.0
    detour: float = 4.0
    rounds: int = 8
    standbys: bool = True


@dataclass(frozen=True, slots=True)
class Stage:
    """One server's part of a chain: ``span`` is what it computes, within what it holds."""

    peer: PeerId
    span: Span


@dataclass(frozen=True, slots=True)
class Standby:
    """Who would take over one stage: ``stages`` tile its span.

    ``latency_s`` is what they cost, from the stage's predecessor to its successor, hops included.
    """

    stages: tuple[Stage, ...]
    latency_s: float


@dataclass(frozen=True, slots=True)
class Route:
    """Stages in order; their spans tile the model.

    ``latency_s`` is one decode step's time from the client and back. ``exact``: all declare one numerics class.
    ``standbys`` holds one per stage, None where nobody could take over.
    """

    stages: tuple[Stage, ...]
    latency_s: float
    exact: bool
    standbys: tuple[Standby | None, ...]

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(stage.peer for stage in self.stages)
