"""How good a placement is, and where one more server does the most for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

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
    inverse = np.divide(1.0, rates, out=np.zeros(layers), where=rates > 0)
    summed = np.concatenate(([0.0], np.cumsum(inverse)))
    before = np.concatenate(([np.inf], np.minimum.accumulate(rates)))
    after = np.concatenate((np.minimum.accumulate(rates[::-1])[::-1], [np.inf]))
    missing = np.concatenate(([0], np.cumsum(rates == 0)))
    within = np.full(layers, np.inf)
    best: tuple[int, float, float] | None = None
    chosen = Span(0, 1)
    for length in range(1, min(capacity, layers) + 1):
        starts = layers - length + 1
        within = np.minimum(within[:starts], rates[length - 1 :])
        added = power / length
        weakest = np.minimum(np.minimum(before[:starts], after[length:]), within + added)
        fuller = np.concatenate(([0.0], np.cumsum(1.0 / (rates + added))))
        thinness = summed[-1] - (summed[length:] - summed[:starts]) + fuller[length:] - fuller[:starts]
        filled = missing[length:] - missing[:starts]
        at = _first_best(filled, weakest, thinness)
        found = (int(filled[at]), float(weakest[at]), float(thinness[at]))
        if best is None or not _worse(found, best):
            best, chosen = found, Span(at, at + length)
    return chosen


def _first_best(filled: npt.NDArray[np.int64], weakest: Rates, thinness: Rates) -> int:
    usable = filled == filled.max()
    usable &= weakest >= weakest[usable].max() * (1 - SAME)
    usable &= thinness <= thinness[usable].min() * (1 + SAME)
    return int(usable.argmax())


def _worse(a: tuple[int, float, float], b: tuple[int, float, float]) -> bool:
    if a[0] != b[0]:
        return a[0] < b[0]
    if not _near(a[1], b[1], SAME):
        return a[1] < b[1]
    return a[2] > b[2] * (1 + SAME)
