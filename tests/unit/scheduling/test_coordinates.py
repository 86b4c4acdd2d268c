"""Vivaldi with height: it finds a plane from round trips alone, and neither noise nor lies carry it away."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import Coordinate
from swarm.scheduling.cluster import distance_s
from swarm.scheduling.coordinates import MAX_RTT_S, MAX_STEP_S, START, direction, update

NAMES = [f"peer{number}" for number in range(36)]


class Planet:
    """Nodes at true places, and what they have learnt of their own by measuring a few neighbours in turn."""

    def __init__(self, seed: int, *, heights: bool, noise: float = 0.0) -> None:
        self.dice = random.Random(seed)
        self.noise = noise
        self.true = {
            name: Coordinate(
                self.dice.uniform(0, 0.2), self.dice.uniform(0, 0.2), self.dice.uniform(0.002, 0.03) * heights, 0.0
            )
            for name in NAMES
        }
        self.learnt = dict.fromkeys(NAMES, START)

    def rtt_s(self, a: str, b: str) -> float:
        return distance_s(self.true[a], self.true[b]) * self.dice.uniform(1.0, 1.0 + self.noise)

    def measure(self, rounds: int, nodes: list[str]) -> None:
        for _ in range(rounds):
            for a in nodes:
                b = self.dice.choice([name for name in nodes if name != a])
                self.learnt[a] = update(self.learnt[a], self.learnt[b], self.rtt_s(a, b), toward=direction(a, b))

    def errors(self, nodes: list[str]) -> list[float]:
        """Relative, of every pair."""
        return [
            abs(distance_s(self.learnt[a], self.learnt[b]) / distance_s(self.true[a], self.true[b]) - 1.0)
            for a in nodes
            for b in nodes
            if a < b
        ]


@pytest.mark.parametrize("heights", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_round_trips_of_a_plane_are_found_again(seed: int, heights: bool) -> None:
    planet = Planet(seed, heights=heights)
    assert statistics.median(planet.errors(NAMES)) > 0.9, "at the start nobody knows anything"
    planet.measure(300, NAMES)
    assert statistics.median(planet.errors(NAMES)) < 0.10
    assert statistics.median(place.error for place in planet.learnt.values()) < 0.15, "and they know it"


def test_noise_costs_little_more_than_itself() -> None:
    planet = Planet(7, heights=True, noise=0.2)
    planet.measure(300, NAMES)
    assert statistics.median(planet.errors(NAMES)) < 0.20


def test_a_tenth_of_liars_does_not_carry_the_others_away() -> None:
    planet = Planet(3, heights=True)
    honest, liars = NAMES[5:], NAMES[:5]
    planet.measure(300, honest)
    for _ in range(100):
        for liar in liars:  # sure of themselves, and far away in a new direction each time
            planet.learnt[liar] = Coordinate(planet.dice.uniform(-9, 9), planet.dice.uniform(-9, 9), 0.0, 0.0)
        planet.measure(1, NAMES[5:] if planet.dice.random() < 0.9 else NAMES)
        assert all(math.hypot(planet.learnt[a].x_s, planet.learnt[a].y_s) < 2.0 for a in honest)
    planet.measure(50, honest)
    assert statistics.median(planet.errors(honest)) < 0.10, "without them the truth comes back"


anything = st.floats(allow_nan=True, allow_infinity=True)
places = st.builds(Coordinate, anything, anything, anything, anything)
sane = st.builds(
    Coordinate,
    st.floats(-MAX_RTT_S, MAX_RTT_S), st.floats(-MAX_RTT_S, MAX_RTT_S), st.floats(1e-5, MAX_RTT_S), st.floats(0.02, 1),
)  # fmt: skip


@settings(max_examples=500)
@given(sane, places, anything, st.floats(0, 2 * math.pi))
def test_whatever_it_is_told_a_step_is_bounded_and_the_result_is_sane(
    own: Coordinate, other: Coordinate, rtt_s: float, angle: float
) -> None:
    moved = update(own, other, rtt_s, toward=(math.cos(angle), math.sin(angle)))
    assert abs(moved.x_s) <= MAX_RTT_S
    assert abs(moved.y_s) <= MAX_RTT_S
    assert 0 < moved.height_s <= MAX_RTT_S
    assert 0 < moved.error <= 1
    step_s = math.hypot(moved.x_s - own.x_s, moved.y_s - own.y_s) + abs(moved.height_s - own.height_s)
    assert step_s <= 1.5 * MAX_STEP_S


@given(sane, sane, st.floats(1e-4, 1.0))
def test_a_step_goes_toward_the_measurement_and_not_beyond(own: Coordinate, other: Coordinate, rtt_s: float) -> None:
    before_s = distance_s(own, other) - rtt_s
    after_s = distance_s(update(own, other, rtt_s), other) - rtt_s
    assert abs(after_s) <= abs(before_s) + 2e-5  # the least height
    assert after_s * before_s >= -1e-9


def test_two_at_one_point_part_in_directions_of_their_own() -> None:
    a, b = (update(START, START, 0.1, toward=direction(*pair)) for pair in (("a", "b"), ("b", "a")))
    assert (a.x_s, a.y_s) != (b.x_s, b.y_s)
    assert update(START, START, 0.1, toward=direction("a", "b")) == a, "the same every time"
    assert math.hypot(*direction("a", "b")) == pytest.approx(1.0)
