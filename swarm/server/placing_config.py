"""What a server that chooses its own layers may be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarm.scheduling.intents_future import PlacingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingConfig:
    """``look_s`` is at least what a write to the directory takes to be seen by every reader.

    Every wait is stretched by up to ``jitter`` of itself, so that servers that start together do not stay in step.
    """

    look_s: float = 3.0
    jitter: float = 0.5
    rebalance_every_s: float = 30.0
    options: PlacingOptions = field(default_factory=PlacingOptions)
