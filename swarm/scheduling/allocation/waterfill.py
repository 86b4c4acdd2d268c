"""How many layers each server of one pipeline takes: water-filling, in exact arithmetic."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from swarm.core.errors import ConfigError


def water_fill(capacities: Sequence[int], powers: Sequence[float], layers: int) -> list[int]:
    """Share ``layers`` among servers so that the slowest is as fast as can be: x_i = min(c_i, lambda * F_i).

    ``capacities`` in layers, ``powers`` F_i in layers per second, both in the order of the result, which sums to
    ``layers``. A server without power counts only if the others do not suffice, and then like its equals; a share of
    zero means that the server is not needed.

    lambda is the exact solution of sum x_i = layers, found by sorting c_i / F_i; shares are rounded down and the
    missing layers go to the largest remainders, ties to the earlier server. All of it is done in integers (a float is
    one over a power of two), so nothing depends on rounding: layers are conserved, and more power never means fewer
    layers. Optimal before rounding (it maximises min F_i / x_i where no capacity binds); the rounding is not tuned for
    it. O(n log n). Source: DESIGN 7.

    Raises ``ConfigError`` if the capacities do not suffice, or a figure is negative or not finite.
    """
    if not all(math.isfinite(power) and power >= 0 for power in powers) or min(capacities, default=0) < 0:
        raise ConfigError("capacities and powers are finite numbers of at least 0")
    if layers < 0 or sum(capacities) < layers:
        raise ConfigError(f"{sum(capacities)} layers of capacity cannot hold {layers}")
    strong = [index for index, power in enumerate(powers) if power > 0]
    weak = [index for index, power in enumerate(powers) if power == 0]
    shares = [0] * len(capacities)
    for group, weights in ((strong, _integers([powers[index] for index in strong])), (weak, [1] * len(weak))):
        room = min(layers, sum(capacities[index] for index in group))
        for index, share in zip(group, _fill([capacities[index] for index in group], weights, room), strict=True):
            shares[index] = share
        layers -= room
    return shares


def _integers(powers: Sequence[float]) -> list[int]:
    """The same proportions in whole numbers, exactly."""
    ratios = [float(power).as_integer_ratio() for power in powers]
    scale = max((denominator for _, denominator in ratios), default=1)  # powers of two: the largest fits them all
    return [numerator * (scale // denominator) for numerator, denominator in ratios]


def _fill(capacities: Sequence[int], weights: Sequence[int], layers: int) -> list[int]:
    """``water_fill`` with weights above zero and ``layers`` of at most all the capacity."""

    def fuller(a: int, b: int) -> int:
        return capacities[a] * weights[b] - capacities[b] * weights[a]

    shares = list(capacities)
    total, rest = sum(weights), layers
    order = sorted(range(len(capacities)), key=functools.cmp_to_key(fuller))
    full = 0  # servers whose capacity is at most lambda times their weight
    while full < len(order) and capacities[order[full]] * total <= rest * weights[order[full]]:
        rest -= capacities[order[full]]
        total -= weights[order[full]]
        full += 1
    open_ones = order[full:]
    remainders = {}
    for index in open_ones:
        shares[index], remainders[index] = divmod(rest * weights[index], total)
    missing = rest - sum(shares[index] for index in open_ones)
    for index in sorted(open_ones, key=lambda index: (-remainders[index], index))[:missing]:
        shares[index] += 1
    return shares
