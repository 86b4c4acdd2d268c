"""Rotary tables per session.

transformers chooses ``longrope`` and ``dynamic`` tables from the largest position of the whole call, so one long
session would bend its neighbours' rows. Here the family's own rotary module computes every table, but for one length
at a time, and its answer depends on nothing that ran before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from swarm.engine.batch import RaggedState, Segment

Tables = tuple[torch.Tensor, ...]
"""Usually cosine and sine, each ``[1, positions, size]``."""

MIN_TABLE_ROWS = 256


class SessionRotary(nn.Module):
    """Stands where the family's rotary module stood and answers for the running batch.

    A row at position ``t`` of a session gets the table for ``max(t + 1, horizon)`` tokens: what one whole-model call
    over the prompt, followed by single decode steps, would use.
    """

    def __init__(self, inner: nn.Module, state: RaggedState) -> None:
        super().__init__()
        self.inner = inner
        self.state = state
        self._tables: dict[tuple[Any, ...], Tables | None] = {}
        self._fresh = _snapshot(inner)
        self._single = False

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None) -> Any:
        """Tables of all packed rows; ``x`` gives dtype and device, ``position_ids`` are ``[1, T]``."""
        if self.state.probe is not None:  # on meta only shapes matter, and the family's module may look at values
            rows = torch.arange(position_ids.shape[1])
            return self._as_family([table.to(x.device) for table in self._compute(torch.empty(0), rows, 0, layer_type)])
        batch = self.state.current()
        kind = self._kind(layer_type)
        if kind == "dynamic" or kind == "longrope":
            limit = self._original_length(layer_type)
            parts = [
                self._rows(x, first, last, length, layer_type)
                for segment in batch.segments
                for first, last, length in _runs(segment, limit, kind)
            ]
            return self._as_family([batch.pad(list(column), dim=1) for column in zip(*parts, strict=True)])
        return self._static(x, position_ids, layer_type)

    def _static(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None) -> Any:
        """Rows of a cached table that depends on positions only."""
        batch = self.state.current()
        segments = batch.segments
        tables = self._table(x, max(segment.length for segment in segments) + batch.padding, 0, layer_type)
        if tables is None:
            return self._whole(x, position_ids, layer_type)
        if len(segments) == 1:  # what padding rows read does not matter
            first, last = segments[0].past, segments[0].length + batch.padding
            return self._as_family([table[:, first:last] for table in tables])
        return self._as_family([table[:, position_ids[0]] for table in tables])

    def _rows(self, x: torch.Tensor, first: int, last: int, length: int, layer_type: str | None) -> Tables:
        """Rows ``[first, last)`` of the table for ``length`` tokens (0: any length the model was made for)."""
        if length == 0 or self._kind(layer_type) == "longrope":
            tables = self._table(x, last, length, layer_type)
            if tables is not None:
                return tuple(table[:, first:last] for table in tables)
        return self._compute(x, torch.arange(first, last, device=x.device), length, layer_type)

    def _table(self, x: torch.Tensor, rows: int, length: int, layer_type: str | None) -> Tables | None:
        """A cached table of at least ``rows`` positions, grown by doubling; None if it cannot be cut by position."""
        place = (layer_type, length, x.dtype, x.device)
        tables = self._tables.get(place, ())
        if tables is None or (tables and tables[0].shape[1] >= rows):
            return tables
        size = max(MIN_TABLE_ROWS, 1 << (rows - 1).bit_length())
        if length == 0 and self._kind(layer_type) in ("dynamic", "longrope"):
            size = min(size, self._original_length(layer_type))
        found = self._compute(x, torch.arange(size, device=x.device), length, layer_type)
        self._tables[place] = found if _by_position(found, size) else None
        return self._tables[place]

    def _compute(self, x: torch.Tensor, positions: torch.Tensor, length: int, layer_type: str | None) -> Tables:
        """Ask the family's module, as if the call reached ``length`` tokens: one more row, dropped from the answer."""
        self._restore()
        count = positions.shape[0]
        if length:
            positions = torch.cat((positions, positions.new_tensor([length - 1])))
        answer = self._whole(x, positions[None], layer_type)
        self._single = isinstance(answer, torch.Tensor)
        tables = (answer,) if self._single else tuple(answer)
        return tuple(table[:, :count] for table in tables) if length else tables

    def _as_family(self, tables: list[torch.Tensor]) -> Any:
        """One tensor where the family's module answers with one (complex numbers, say), else a tuple."""
        return tables[0] if self._single else tuple(tables)

    def _whole(self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None) -> Any:
        if layer_type is None:
            return self.inner(x, position_ids)
        return self.inner(x, position_ids, layer_type)

    def _restore(self) -> None:
        """Undo what an earlier, longer call left in the family's module."""
        for name, value in self._fresh.items():
            if isinstance(value, torch.Tensor):
                self.inner._buffers[name] = value.clone()
            else:
                setattr(self.inner, name, value)

    def _kind(self, layer_type: str | None) -> str:
        kind = getattr(self.inner, "rope_type", "default")
        if isinstance(kind, dict):
            kind = kind.get(layer_type, "default")
        return "dynamic" if "dynamic" in str(kind) else str(kind)

    def _original_length(self, layer_type: str | None) -> int:
        """Up to how many tokens the table of the original training length holds."""
        config: Any = self.inner.config
        if self._kind(layer_type) == "dynamic":
            return int(config.max_position_embeddings)
        parameters = config.rope_parameters
        return int((parameters[layer_type] if layer_type else parameters)["original_max_position_embeddings"])


def _runs(segment: Segment, limit: int, kind: str) -> Iterator[tuple[int, int, int]]:
    """Cut a segment into runs of rows ``(first, last, length)`` that share one table; length 0 is the original one.

    Beyond ``limit``, ``longrope`` has one long table; ``dynamic`` has one for every length.
    """
    first = segment.past
    while first < segment.length:
        length = max(first + 1, segment.horizon)
        if length <= limit:
            last = min(segment.length, limit)
            length = 0
        elif kind == "longrope":
            last, length = segment.length, limit + 1
        else:
            last = min(segment.length, max(first + 1, segment.horizon))
        yield first, last, length
        first = last


def _snapshot(module: nn.Module) -> dict[str, Any]:
    """The state a dynamic rotary module may change: its buffers and its numbers."""
    numbers = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    buffers = {name: value.clone() for name, value in module._buffers.items() if value is not None}
    return {**numbers, **buffers}


def _by_position(tables: Tables, size: int) -> bool:
    return all(table.dim() >= 2 and table.shape[:2] == (1, size) for table in tables)
