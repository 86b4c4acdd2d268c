"""What a server says of itself: before it has loaded anything, and of the span it then has."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.core.announcement import Announcement, State
from swarm.core.ids import ModelId, PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.core.version import VERSION
from swarm.engine.executor import SpanEngine
from swarm.engine.speed import SpanSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What is known of a server before it has loaded anything.

    ``span`` is any that it could hold, until it has chosen; ``instance`` is a random number of this process.
    """

    model: ModelId
    layer_count: int
    span: Span
    peer: PeerId
    numerics: Numerics
    capacity_layers: int
    power_layers_per_s: float = 0.0
    region: str = ""
    public_name: str = ""
    instance: int

    def announcement(self, now_s: float) -> Announcement:
        """What it says of itself while it joins; ``now_s`` is wall time."""
        return Announcement(
            model=str(self.model),
            layer_count=self.layer_count,
            peer=self.peer,
            start=self.span.start,
            end=self.span.end,
            state=State.JOINING,
            numerics=self.numerics,
            capacity_layers=self.capacity_layers,
            power_layers_per_s=self.power_layers_per_s,
            region=self.region,
            software=f"swarm {VERSION}",
            public_name=self.public_name,
            instance=self.instance,
            sequence=0,
            started_s=now_s,
            expires_s=now_s,
        )


def facts_of(engine: SpanEngine, speed: SpanSpeed) -> dict[str, object]:
    """What a server's announcement says of the span it has loaded."""
    info = engine.info
    return {
        "start": info.span.start,
        "end": info.span.end,
        "head": info.head,
        "embeddings": info.embeddings,
        "numerics": Numerics(info.dtype, info.quantization),
        "kv_tokens": engine.free_tokens,
        "context_tokens": info.context_tokens,
        "memory_bytes": info.memory_bytes,
        "power_layers_per_s": speed.power_layers_per_s,
    }
