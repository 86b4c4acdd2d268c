"""Water-filling: layers are conserved, more power never means fewer layers, and lambda is exact."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.scheduling.allocation.waterfill import water_fill

POWER = st.one_of(st.just(0.0), st.floats(1, 1000), st.floats(0, 1e9), st.just(1e-300), st.integers(1, 9).map(float))


@st.composite
def shared(draw: st.DrawFn) -> tuple[list[int], list[float], int]:
    capacities = draw(st.lists(st.integers(0, 40), min_size=1, max_size=8))
    powers = draw(st.lists(POWER, min_size=len(capacities), max_size=len(capacities)))
    return capacities, powers, draw(st.integers(0, sum(capacities)))


@pytest.mark.parametrize(
    ("capacities", "powers", "layers", "shares"),
    [
        ((24, 16, 8), (100.0, 50.0, 25.0), 30, [17, 9, 4]),
        ((5, 100, 100), (1.0, 1.0, 1.0), 90, [5, 43, 42]),
        ((10, 10), (0.0, 5.0), 12, [2, 10]),
        ((10, 10), (0.0, 5.0), 10, [0, 10]),
        ((10, 10), (0.0, 0.0), 10, [5, 5]),
        ((4, 4), (1.0, 1e-300), 4, [4, 0]),
        ((7,), (3.0,), 7, [7]),
    ],
)
def test_known_shares(capacities: tuple[int, ...], powers: tuple[float, ...], layers: int, shares: list[int]) -> None:
    assert water_fill(capacities, powers, layers) == shares


@given(shared())
def test_layers_are_conserved_and_capacities_respected(case: tuple[list[int], list[float], int]) -> None:
    capacities, powers, layers = case
    shares = water_fill(capacities, powers, layers)
    assert sum(shares) == layers
    assert all(0 <= share <= capacity for share, capacity in zip(shares, capacities, strict=True))


@given(shared(), st.integers(0, 7), st.one_of(st.floats(0, 1e-6), st.floats(0, 1e9)))
def test_more_power_never_means_fewer_layers(case: tuple[list[int], list[float], int], who: int, more: float) -> None:
    capacities, powers, layers = case
    who %= len(capacities)
    stronger = [power + more * (index == who) for index, power in enumerate(powers)]
    assert water_fill(capacities, stronger, layers)[who] >= water_fill(capacities, powers, layers)[who]


@given(shared())
def test_shares_are_within_one_layer_of_the_exact_water_level(case: tuple[list[int], list[float], int]) -> None:
    """The certificate: a lambda with x_i = min(c_i, lambda * F_i) that sums to the layers, each share its rounding."""
    capacities, powers, layers = case
    strong = [index for index, power in enumerate(powers) if power > 0]
    layers = min(layers, sum(capacities[index] for index in strong))
    if not strong:
        return
    shares = water_fill(capacities, powers, layers)
    weights = {index: Fraction(powers[index]) for index in strong}
    full = sorted(strong, key=lambda index: capacities[index] / weights[index])
    rest, total = Fraction(layers), sum(weights.values(), Fraction(0))
    while full and capacities[full[0]] * total <= rest * weights[full[0]]:
        rest -= capacities[full[0]]
        total -= weights[full.pop(0)]
    for index in strong:
        exact = rest * weights[index] / total if index in full else Fraction(capacities[index])
        assert exact <= capacities[index]
        assert abs(shares[index] - exact) < 1


@pytest.mark.parametrize(
    ("capacities", "powers", "layers"),
    [
        ([3, 3], [1.0, 1.0], 7),
        ([3, 3], [1.0, float("nan")], 3),
        ([3, 3], [1.0, float("inf")], 3),
        ([3, 3], [1.0, -1.0], 3),
        ([-1, 3], [1.0, 1.0], 1),
        ([3, 3], [1.0, 1.0], -1),
    ],
)
def test_what_cannot_be_shared_is_refused(capacities: list[int], powers: list[float], layers: int) -> None:
    with pytest.raises(ConfigError):
        water_fill(capacities, powers, layers)
