"""One packed forward as the layers see it: which rows belong to which session, and where their KV lies."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from swarm.engine.kv import Buffers


@dataclass
class Segment:
    """Rows ``[start, end)`` of the packed sequence: one session's, at positions ``past, past + 1, …``.

    ``horizon`` is the prompt length that chooses the rotary table (see ``Work``). ``layers`` are the session's
    buffers, ``masks`` the boolean masks built so far, shared by the layers: key ``(window, first key visible)``.
    """

    start: int
    end: int
    past: int
    horizon: int
    capacity: int
    layers: list[Buffers | None]
    masks: dict[tuple[int, int, torch.device], torch.Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def length(self) -> int:
        """Rows the session holds once this segment is appended."""
        return self.past + self.end - self.start


@dataclass
class Batch:
    """All segments of one packed forward, in order and without gaps; ``positions`` int64 ``[total_rows]``.

    The last ``padding`` rows belong to nobody: copies of row 0, which fill a matrix product up to the number of rows
    that costs no more. They read no KV, write none, and take the same experts as row 0.
    """

    segments: list[Segment]
    positions: torch.Tensor
    padding: int = 0

    def pad(self, rows: list[torch.Tensor], dim: int) -> torch.Tensor:
        """Join per-segment results along ``dim``, the first row repeated for the padding."""
        if self.padding:
            shape = list(rows[0].shape)
            shape[dim] = self.padding
            rows = [*rows, rows[0].narrow(dim, 0, 1).expand(shape)]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=dim)


@dataclass
class LayerShape:
    """What one layer's attention handles: its KV heads and sizes, and its sliding window (0: none)."""

    kv_heads: int
    key_size: int
    value_size: int
    window: int


class RaggedState:
    """Handed to a span's attention and rotary modules; holds the batch while a forward runs.

    ``probe`` collects what layers attend with while a probe runs, else it is None. ``windows`` are the layers' sliding
    windows in tokens, 0 for none.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.probe: list[LayerShape] | None = None
        self.windows: list[int] = []

    def current(self) -> Batch:
        """The running batch; a ``RuntimeError`` if the layers are called outside the executor."""
        if self.batch is None:
            raise RuntimeError("a span's layers run inside SpanEngine.run only")
        return self.batch
