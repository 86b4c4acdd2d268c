"""The formulas of audit rates: known figures, exact probabilities, and a simulation of each."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.verification.standings.economics import (
    Stakes,
    binomial_tail,
    cheated_windows,
    deterring_rate,
    deterring_rate_escalated,
    escalated_windows,
    honest_ejection,
    honest_ejection_bound,
    rate_for_mean,
    rate_for_probability,
)

RUNS = 20_000
SIGMAS = 5.0


def measured(found: np.ndarray, expected: float) -> None:
    """The mean of the runs is the expected one, within five of its standard errors."""
    assert abs(found.mean() - expected) < SIGMAS * found.std() / math.sqrt(len(found))


def test_the_rates_of_the_design() -> None:
    """Saving 60 % of a window, losing 300 at ejection, detection 0.95: FACTS, Verification."""
    three, one = Stakes(0.6, 300, 0.95, strikes=3), Stakes(0.6, 300, 0.95, strikes=1)
    assert deterring_rate(three) == pytest.approx(0.0063, abs=5e-5)
    assert deterring_rate(one) == pytest.approx(0.0021, abs=5e-5)
    assert deterring_rate_escalated(three) == pytest.approx(0.0021, abs=5e-5)


def test_honest_ejections_of_the_design() -> None:
    assert honest_ejection(200, 1e-2, 3) == pytest.approx(0.32, abs=0.005)
    assert honest_ejection(500, 1e-4, 3) == pytest.approx(2e-5, rel=0.01)


@pytest.mark.parametrize(("strikes", "rate", "detection"), [(1, 0.03, 0.95), (2, 0.1, 0.5), (3, 0.05, 0.8)])
def test_cheated_windows_simulated(strikes: int, rate: float, detection: float) -> None:
    """Every cheated window is audited with q, every audit finds it with d, and K findings eject."""
    rng = np.random.default_rng(1)
    audited = rng.random((RUNS // 10, 2000)) < rate
    found = np.cumsum(audited & (rng.random(audited.shape) < detection), axis=1)
    assert (found[:, -1] >= strikes).all()  # or the runs were too short to tell
    measured((found < strikes).sum(axis=1) + 1, cheated_windows(strikes, rate, detection))


def test_escalation_simulated() -> None:
    """After the first strike every window is audited."""
    rng = np.random.default_rng(2)
    strikes, rate, detection = 3, 0.05, 0.6
    lasted = []
    for _ in range(4000):
        windows = struck = 0
        while struck < strikes:
            windows += 1
            struck += bool((struck or rng.random() < rate) and rng.random() < detection)
        lasted.append(windows)
    measured(np.array(lasted), escalated_windows(strikes, rate, detection))


def profit(rate: float, stakes: Stakes, rng: np.random.Generator) -> np.ndarray:
    """What a cheater who pauses gains in each run: the saving of every window he lasts, less the loss."""
    waits = rng.geometric(rate * stakes.detection, (RUNS, stakes.strikes))
    return np.asarray(stakes.saving * waits.sum(axis=1) - stakes.loss)


def test_above_the_deterring_rate_cheating_loses() -> None:
    stakes, rng = Stakes(0.6, 300, 0.95, strikes=2), np.random.default_rng(3)
    rate = deterring_rate(stakes)
    measured(profit(rate, stakes, rng), 0.0)
    assert profit(1.2 * rate, stakes, rng).mean() < 0 < profit(rate / 1.2, stakes, rng).mean()


def test_above_the_escalated_rate_going_on_loses() -> None:
    stakes, rng = Stakes(0.6, 20, 0.5, strikes=4), np.random.default_rng(4)
    first = rng.geometric(deterring_rate_escalated(stakes) * stakes.detection, RUNS)
    later = rng.geometric(stakes.detection, (RUNS, stakes.strikes - 1)).sum(axis=1)
    measured(stakes.saving * (first + later) - stakes.loss, 0.0)


@pytest.mark.parametrize(("audits", "false_rate", "strikes"), [(200, 1e-2, 3), (500, 1e-3, 1), (60, 0.05, 2)])
def test_honest_ejection_simulated(audits: int, false_rate: float, strikes: int) -> None:
    rng = np.random.default_rng(5)
    struck = (rng.random((RUNS // 2, audits)) < false_rate).sum(axis=1)
    measured((struck >= strikes).astype(float), honest_ejection(audits, false_rate, strikes))


@given(st.integers(1, 60), st.integers(1, 60), st.fractions(0, 1, max_denominator=1000))
def test_the_tail_is_exact(trials: int, least: int, chance: Fraction) -> None:
    exact = sum(
        (
            math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count)
            for count in range(least, trials + 1)
        ),
        Fraction(0),
    )
    assert binomial_tail(trials, float(chance), least) == pytest.approx(float(exact), rel=1e-9, abs=1e-15)


def test_tiny_tails_keep_their_digits() -> None:
    """One minus the rest would be zero, or noise."""
    chance = Fraction(1, 10**6)
    exact = sum(math.comb(1000, count) * chance**count * (1 - chance) ** (1000 - count) for count in range(6, 30))
    assert binomial_tail(1000, 1e-6, 6) == pytest.approx(float(exact), rel=1e-9)
    assert binomial_tail(1_000_000, 1e-9, 1) == pytest.approx(-math.expm1(1e6 * math.log1p(-1e-9)), rel=1e-9)


@given(st.integers(1, 2000), st.floats(0, 1), st.integers(1, 10))
def test_the_bound_is_one(audits: int, false_rate: float, strikes: int) -> None:
    found, bound = honest_ejection(audits, false_rate, strikes), honest_ejection_bound(audits, false_rate, strikes)
    assert 0 <= found <= 1
    assert found <= bound * (1 + 1e-9) + 1e-300


@given(st.integers(1, 5), st.floats(0.05, 1), st.integers(1, 500), st.floats(0.01, 0.99))
def test_the_rate_for_a_probability_is_the_least(strikes: int, detection: float, windows: int, wanted: float) -> None:
    rate = rate_for_probability(strikes, detection, windows, wanted)
    if math.isinf(rate):
        assert binomial_tail(windows, detection, strikes) < wanted
        return
    assert binomial_tail(windows, rate * detection, strikes) >= wanted
    assert binomial_tail(windows, 0.999 * rate * detection, strikes) < wanted


@given(st.integers(1, 5), st.floats(0.05, 1), st.floats(10, 1e6))
def test_the_rate_for_a_mean_gives_that_mean(strikes: int, detection: float, windows: float) -> None:
    rate = rate_for_mean(strikes, detection, windows)
    if rate <= 1:
        assert cheated_windows(strikes, rate, detection) == pytest.approx(windows)
    else:
        assert cheated_windows(strikes, 1.0, detection) > windows


def test_where_nothing_is_lost_nothing_deters() -> None:
    assert deterring_rate(Stakes(0.6, 1, 0.95, strikes=3)) > 1
    assert deterring_rate_escalated(Stakes(0.6, 1, 0.95, strikes=3)) == math.inf


@pytest.mark.parametrize(
    "changes", [{"saving": 0.0}, {"saving": 1.1}, {"loss": -1.0}, {"detection": math.nan}, {"strikes": 0}]
)
def test_what_cannot_be_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Stakes(**({"saving": 0.6, "loss": 300.0, "detection": 0.95, "strikes": 2} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("audits", "rate", "strikes"), [(-1, 0.1, 1), (10, 1.1, 1), (10, math.nan, 1), (10, 0.1, 0)])
def test_no_such_distribution(audits: int, rate: float, strikes: int) -> None:
    with pytest.raises(ConfigError):
        honest_ejection(audits, rate, strikes)
