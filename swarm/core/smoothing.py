"""A measurement smoothed over time."""

from __future__ import annotations


def smoothed(before: float | None, new: float, weight: float) -> float:
    """The exponential moving average once ``new`` came, which counts for ``weight`` of it; the first stands for itself.

    After n more measurements ``before`` counts for (1 - weight)^n.
    """
    return new if before is None else before + weight * (new - before)
