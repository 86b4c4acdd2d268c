"""How good a placement is, and where one more server does the most for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from swarm.core.spans import Span
from swarm.scheduling.allocation.throughput import layer_rates
from swarm.scheduling.cluster import Node

Rates: TypeAlias = npt.NDArray[np.float64]
"""Tokens per second by layer, shape ``[layers]``; see ``allocation.throughput.layer_rates``."""

SAME = 1e-9
"""Relative difference below which two figures count as equal: sums of floats differ with their order."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What a placement is worth: layers held at all, then the weakest layer's rate, then the layers' thinness.

    ``thinness_s`` is the sum over held layers of 1 / rate in seconds: of two swarms with one weakest rate, the one
    whose other layers have more to spare has the smaller.
    """

    covered: int
    tokens_per_s: float
    thinness_s: float

    def better_than(self, other: Quality, by: float = SAME) -> bool:
        """True if this holds more layers, or as many and serves more by the share ``by``, or no less and is less thin
        by it.

        So steps that are each better than the last never lead back, and with ``by`` above ``SAME`` they are few.
        """
        if self.covered != other.covered:
            return self.covered > other.covered
        if self.tokens_per_s > other.tokens_per_s * (1 + by):
            return True
        no_less = self.tokens_per_s >= other.tokens_per_s * (1 - SAME)
        return no_less and self.thinness_s < other.thinness_s * (1 - by)


def _near(a: float, b: float, by: float) -> bool:
    return abs(a - b) <= by * max(a, b)


def quality(rates: Rates) -> Quality:
    """The quality of what ``rates`` describe."""
    held = rates > 0
    return Quality(int(held.sum()), float(rates.min(initial=np.inf)), float((1.0 / rates[held]).sum()))


def rates_of(nodes: Iterable[Node], layers: int) -> Rates:
    """``layer_rates`` in the one order of ids, so that every machine adds the same figures in the same order."""
    return layer_rates(sorted(nodes, key=lambda node: node.id), layers)


def best_window(rates: Rates, capacity: int, power: float) -> Span:
    """Where a server of ``power`` layers per second that holds at most ``capacity`` (at least 1) adds the most.

    Holding n layers it adds power / n to each. The optimum over all windows of 1 to ``capacity`` layers, by
    ``Quality``: missing layers first, then the least rate, then thinness; of equals the longest, then the first.
    O(layers · capacity).
    """
    layers = len(rates)
    most = min(capacity, layers)
    windows = _Windows(rates, power)
    best, chosen = (-1, 0.0, np.inf), Span(0, 1)
    block = max(1, _BLOCK // layers)
    for first in range(1, most + 1, block):
        found, span = windows.best(first, min(first + block, most + 1))
        if not _worse(found, best):
            best, chosen = found, span
    return chosen


_BLOCK = 65536
"""Windows looked at in one go: what a model of very many layers takes in memory stays small."""


class _Windows:
    """All windows of some lengths at once, as matrices by length and start."""

    def __init__(self, rates: Rates, power: float) -> None:
        self._rates, self._power, self._layers = rates, power, len(rates)
        inverse = np.divide(1.0, rates, out=np.zeros(len(rates)), where=rates > 0)
        self._thinness = _summed(inverse)
        self._missing = _summed(rates == 0)
        self._before = np.concatenate(([np.inf], np.minimum.accumulate(rates)))
        self._after = np.concatenate((np.minimum.accumulate(rates[::-1])[::-1], [np.inf]))
        self._within = np.full(len(rates), np.inf)  # the least rate of the longest windows so far, by start

    def best(self, first: int, end: int) -> tuple[tuple[int, float, float], Span]:
        """What the best window of ``first`` to ``end`` - 1 layers comes to (layers filled, rate, thinness); it."""
        lengths, starts = np.arange(first, end)[:, None], np.arange(self._layers)[None]
        stops = np.minimum(starts + lengths, self._layers)
        added = self._power / lengths
        ahead = np.append(self._rates, np.full(end, np.inf))
        reached = np.lib.stride_tricks.sliding_window_view(ahead, self._layers)[first - 1 : end - 1]
        within = np.minimum(np.minimum.accumulate(reached, axis=0), self._within)
        self._within = within[-1]
        weakest = np.minimum(np.minimum(self._before[starts], self._after[stops]), within + added)
        fuller = _summed(1.0 / (self._rates + added))
        thinness = self._thinness[-1] - (self._thinness[stops] - self._thinness[starts])
        thinness = thinness + np.take_along_axis(fuller, stops, 1) - fuller[:, :-1]
        filled = np.where(starts + lengths <= self._layers, self._missing[stops] - self._missing[starts], -1.0)
        usable = filled == filled.max()
        usable &= weakest >= weakest[usable].max() * (1 - SAME)
        usable &= thinness <= thinness[usable].min() * (1 + SAME) + SAME * self._thinness[-1]
        row = int(np.flatnonzero(usable.any(axis=1))[-1])
        start = int(usable[row].argmax())
        found = (int(filled[row, start]), float(weakest[row, start]), float(thinness[row, start]))
        return found, Span(start, start + row + first)


def _summed(values: npt.NDArray[Any]) -> Rates:
    """Sums of the values before each index, along the last axis: one longer than ``values``."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


def _worse(a: tuple[int, float, float], b: tuple[int, float, float]) -> bool:
    if a[0] != b[0]:
        return a[0] < b[0]
    if not _near(a[1], b[1], SAME):
        return a[1] < b[1]
    return a[2] > b[2] * (1 + SAME)
