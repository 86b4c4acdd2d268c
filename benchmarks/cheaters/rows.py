"""Rows that are not the ones asked for, and layers that are left out only now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from benchmarks.cheaters.cheat import Cheat
from benchmarks.cheaters.weights import layers_of, place_of
from swarm.core.spans import Span
from swarm.engine.executor import SpanEngine
from swarm.engine.kv import KVSlot
from swarm.engine.work import Output, Work
from swarm.verification.signed.receipts import WINDOW_ROWS

HONEST_WINDOWS = 50
RARE = 0.05

Forward = Callable[[Span, Sequence[Work]], list[Output]]


def around(wrap: Callable[[SpanEngine, Forward], Forward]) -> Callable[[SpanEngine], None]:
    """A cheat's ``engine``: its packed forward is what ``wrap`` makes of the honest one."""

    def change(engine: SpanEngine) -> None:
        setattr(engine, "_forward", wrap(engine, engine._forward))  # noqa: B010 - a method of this one object

    return change


def stale() -> Cheat:
    """Rows are those of earlier sessions at the same positions, where they had any."""

    def wrap(_: SpanEngine, forward: Forward) -> Forward:
        earlier: dict[int, bytes] = {}
        last: dict[int, bytes] = {}
        of: list[KVSlot] = []  # whose rows ``last`` are

        def forward_stale(span: Span, batch: Sequence[Work]) -> list[Output]:
            outputs = forward(span, batch)
            for work, output in zip(batch, outputs, strict=True):
                if output.hidden is None:
                    continue
                if of != [work.slot]:
                    earlier.update(last)
                    last.clear()
                    of[:] = [work.slot]
                rows = _rows(output.hidden, _answered(work))
                first = work.keep + work.rows - len(rows)
                last.update(enumerate(rows, first))
                output.hidden = b"".join(earlier.get(first + place, row) for place, row in enumerate(rows))
            return outputs

        return forward_stale

    return Cheat(summary="answers with the rows of the session before", engine=around(wrap))


def another() -> Cheat:
    """Rows are those of another session: of the same forward if there is one, else the last ones of any."""

    def wrap(_: SpanEngine, forward: Forward) -> Forward:
        last: list[tuple[KVSlot, bytes, int]] = []

        def forward_another(span: Span, batch: Sequence[Work]) -> list[Output]:
            outputs = forward(span, batch)
            pairs = list(zip(batch, outputs, strict=True))
            made = [(work.slot, output.hidden, _answered(work)) for work, output in pairs if output.hidden]
            for work, output in pairs:
                others = [entry for entry in (*last, *made) if entry[0] is not work.slot]
                if output.hidden and others:
                    _, rows, count = others[-1]
                    cycle = np.resize(np.arange(count), _answered(work))
                    output.hidden = b"".join(_rows(rows, count)[place] for place in cycle)
            last[:] = [*last, *made][-2:]
            return outputs

        return forward_another

    return Cheat(summary="answers with the rows of another request", engine=around(wrap))


def other_ids() -> Cheat:
    def wrap(engine: SpanEngine, forward: Forward) -> Forward:
        def forward_others(span: Span, batch: Sequence[Work]) -> list[Output]:
            return forward(span, [_with_other_ids(work, engine.info.vocab_size) for work in batch])

        return forward_others

    return Cheat(summary="embeds other token ids than it was given", engine=around(wrap))


def late(layer: int) -> Cheat:
    """Its self-probe and its measure of its own speed are among the first windows."""
    summary = f"honest on its first {HONEST_WINDOWS} windows, then leaves out layer {layer}"
    return _now_and_then(layer, summary, lambda seen, _: seen >= HONEST_WINDOWS)


def rarely(layer: int) -> Cheat:
    summary = f"leaves out layer {layer} in {RARE:.0%} of its windows"
    return _now_and_then(layer, summary, lambda _, first_row: is_rare(first_row))


def is_rare(first_row: bytes) -> bool:
    """Whether ``rarely`` cheats in a window, by the bytes of the first row that came in: so a measurement knows too."""
    return int.from_bytes(sha256(first_row).digest()[:8], "big") < RARE * 2**64


class _Sometimes(nn.Module):
    """A decoder layer that is left out of the rows that ``mask`` ``[T]`` marks."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.mask = torch.zeros(0, dtype=torch.bool)

    def forward(self, hidden_states: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        """``[1, T, hidden]`` to the same; rows beyond the mask are padding."""
        done: torch.Tensor = self.layer(hidden_states, *arguments, **options)
        marked = torch.nn.functional.pad(self.mask, (0, hidden_states.shape[1] - len(self.mask)))
        return torch.where(marked[None, :, None], hidden_states, done)


def _now_and_then(layer: int, summary: str, cheats: Callable[[int, bytes], bool]) -> Cheat:
    """``cheats`` is asked once for each window of each session: the number of windows begun before it, its first row.

    The layer's keys and values are computed all the same: nobody could cheat less visibly. Those of the layers above
    are off, so windows after a cheated one are too, a little.
    """

    def wrap(engine: SpanEngine, forward: Forward) -> Forward:
        model = engine._model
        stack, place = layers_of(model), place_of(layer, model)
        sometimes = stack[place] = _Sometimes(stack[place])
        decided: WeakKeyDictionary[KVSlot, dict[int, bool]] = WeakKeyDictionary()
        seen = 0

        def marks(work: Work) -> list[bool]:
            nonlocal seen
            windows = decided.setdefault(work.slot, {})
            numbers = [position // WINDOW_ROWS for position in range(work.keep, work.keep + work.rows)]
            for row, number in enumerate(numbers):
                if number not in windows:
                    windows[number] = cheats(seen, _input_row(work, row))
                    seen += 1
            return [windows[number] for number in numbers]

        def forward_sometimes(span: Span, batch: Sequence[Work]) -> list[Output]:
            sometimes.mask = torch.tensor([mark for work in batch for mark in marks(work)])
            return forward(span, batch)

        return forward_sometimes

    return Cheat(summary=summary, engine=around(wrap))


def _input_row(work: Work, row: int) -> bytes:
    if work.token_ids is not None:
        return int(work.token_ids[row]).to_bytes(4, "little")
    return _rows(bytes(work.hidden or b""), work.rows)[row]


def _answered(work: Work) -> int:
    """How many rows come back of it."""
    return work.rows if work.record else work.want


def _rows(data: bytes, count: int) -> list[bytes]:
    size = len(data) // max(count, 1)
    return [data[start : start + size] for start in range(0, len(data), size)] if size else []


def _with_other_ids(work: Work, vocabulary: int) -> Work:
    return work if work.token_ids is None else replace(work, token_ids=(work.token_ids + 1) % vocabulary)
