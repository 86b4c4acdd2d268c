"""How many groups servers make, all ways looked at."""

from __future__ import annotations

import itertools
from functools import lru_cache


@lru_cache(maxsize=100_000)
def most_groups(capacities: tuple[int, ...], layers: int) -> int:
    """The most groups of at least ``layers`` together that these servers make."""
    if sum(capacities) < layers:
        return 0
    # The first server is in some group, or in none.
    best = most_groups(capacities[1:], layers)
    for size in range(len(capacities)):
        for others in itertools.combinations(range(1, len(capacities)), size):
            if capacities[0] + sum(capacities[index] for index in others) >= layers:
                rest = tuple(c for i, c in enumerate(capacities) if i and i not in others)
                best = max(best, 1 + most_groups(rest, layers))
    return best
