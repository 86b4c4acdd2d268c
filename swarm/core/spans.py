"""Spans: contiguous half-open ranges of layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.core.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Layers ``[start, end)``; never empty, never negative."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ConfigError(
                f"span {self.start}:{self.end} is empty or negative", hint="a span is a:b with 0 <= a < b, half-open"
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"

    def covers(self, other: Span) -> bool:
        """True if every layer of ``other`` is in this span."""
        return self.start <= other.start and other.end <= self.end

    @classmethod
    def parse(cls, text: str) -> Span:
        """Read ``a:b``; raise ``ConfigError`` with an example if it is anything else."""
        start, colon, end = text.partition(":")
        readable = len(text) <= 32 and start.strip().isdecimal() and end.strip().isdecimal()
        if not (colon and readable):
            raise ConfigError(
                f"cannot read the span {text[:32]!r}", hint="write it as a:b, half-open, for example 0:10"
            )
        return cls(int(start), int(end))

    def within(self, layer_count: int) -> Span:
        """Return self, or raise ``ConfigError`` if it leaves a model of ``layer_count`` layers."""
        if self.end > layer_count:
            raise ConfigError(
                f"span {self} is outside the model, which has {layer_count} layers",
                hint=f"choose blocks within 0:{layer_count}",
            )
        return self


def missing_layers(spans: Iterable[Span], layer_count: int) -> list[Span]:
    """The maximal spans of ``[0, layer_count)`` that no given span holds, in order. O(n log n).

    ``layer_count`` is at least 1; spans may overlap and may reach beyond it.
    """
    holes: list[Span] = []
    reached = 0
    for span in sorted(spans):
        if span.start > reached:
            holes.append(Span(reached, min(span.start, layer_count)))
        reached = max(reached, span.end)
        if reached >= layer_count:
            break
    if reached < layer_count:
        holes.append(Span(reached, layer_count))
    return holes
