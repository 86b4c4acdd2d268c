"""The sequential test: its bound on false alarms, and how soon it finds undeclared int8 weights."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.core.numerics import Numerics
from swarm.verification.standings.sequential import (
    BETS,
    FALSE_ALARM,
    HIGHEST,
    HONEST_CEILING,
    INT8_CEILING,
    LOWEST,
    NF4_CEILING,
    Suspicion,
    honest_ceiling,
    log_excess,
    windows_to_accuse,
)

Floats = npt.NDArray[np.float64]


def alarms(errors: Floats, false_alarm: float = FALSE_ALARM) -> npt.NDArray[np.int64]:
    """In which window (from 1) each row of ``errors`` ``[servers, windows]`` is accused, 0 for never: all at once.

    The test that one row of it equals ``Suspicion`` is below.
    """
    excess = np.clip(np.log(errors / HONEST_CEILING), LOWEST, HIGHEST)
    bets = np.array(BETS)[:, None]
    sums, first = np.zeros((len(BETS), len(errors))), np.zeros(len(errors), np.int64)
    for number in range(1, errors.shape[1] + 1):
        sums = (sums + 1 / (number * (number + 1))) * (1 + bets * excess[:, number - 1])
        crossed = sums.mean(axis=0) + 1 / (number + 1) >= 1 / false_alarm
        first[(first == 0) & crossed] = number
    return first


def log_uniform(rng: np.random.Generator, low: float, high: float, shape: tuple[int, int]) -> Floats:
    return np.exp(rng.uniform(math.log(low), math.log(high), shape))


def test_many_servers_at_once_are_the_same_test() -> None:
    errors = log_uniform(np.random.default_rng(1), 0.02, 0.06, (3, 300))
    for row, window in zip(errors, alarms(errors), strict=True):
        suspicion, first = Suspicion(), 0
        for number, error in enumerate(row, start=1):
            suspicion = suspicion.after(float(error))
            first = first or (number if suspicion.accuses() else 0)
        assert first == window > 0


@pytest.mark.parametrize("excesses", [(LOWEST, 0.2), (-0.1, HIGHEST), (LOWEST, 0.0, HIGHEST), (-0.01, 0.01)])
def test_the_evidence_of_the_worst_honest_server_has_a_mean_of_one(excesses: tuple[float, ...]) -> None:
    """Exactly, over all paths of six windows whose x has a mean of 0: the bound follows by Ville's inequality."""
    low, high = excesses[0], excesses[-1]
    chances = {low: high / (high - low), high: -low / (high - low)}
    if len(excesses) == 3:
        chances = {excess: 0.5 * chance for excess, chance in chances.items()} | {0.0: 0.5}
    mean = 0.0
    for path in itertools.product(chances, repeat=6):
        suspicion = Suspicion()
        for excess in path:
            suspicion = suspicion.after(HONEST_CEILING * math.exp(excess))
        mean += math.prod(chances[excess] for excess in path) * math.exp(suspicion.log_evidence)
    assert mean == pytest.approx(1.0)


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_false_alarms_of_the_worst_honest_server_stay_below_the_bound(spread: float) -> None:
    """x is ± ``spread`` with equal chances, its mean exactly 0; 600 windows, at bounds that a simulation can see."""
    signs = np.random.default_rng(2).choice([-spread, spread], (2000, 600))
    errors = HONEST_CEILING * np.exp(signs)
    for bound in (0.05, 0.01):
        rate = np.mean(alarms(errors, bound) > 0)
        assert rate <= bound + 3 * math.sqrt(bound / len(errors))


def test_honest_servers_are_not_accused() -> None:
    """e from 0.008 to 0.025 (log-uniform), as measured across kernels and dtypes: 2,000 servers, 2,000 windows each."""
    errors = log_uniform(np.random.default_rng(3), 0.008, 0.025, (2000, 2000))
    assert not alarms(errors).any()


def test_freak_windows_do_not_accuse() -> None:
    """One window in fifty is far above, and five bad ones in a row are not enough either."""
    rng = np.random.default_rng(4)
    errors = log_uniform(rng, 0.008, 0.025, (500, 1000))
    errors[rng.random(errors.shape) < 0.02] = 0.09
    errors[:, 500:505] = 0.09
    assert not alarms(errors).any()


@pytest.mark.parametrize(("honest_before", "mean", "most"), [(0, 29, 40), (50, 41, 52), (1000, 52, 65)])
def test_undeclared_int8_is_found(honest_before: int, mean: float, most: int) -> None:
    """e from 0.025 to 0.047 (log-uniform) with 10 % noise, after ``honest_before`` honest windows."""
    rng = np.random.default_rng(5)
    honest = log_uniform(rng, 0.008, 0.025, (1000, honest_before))
    cheated = log_uniform(rng, 0.025, 0.047, (1000, 200)) * np.exp(rng.normal(0, 0.1, (1000, 200)))
    lasted = alarms(np.concatenate([honest, cheated], axis=1)) - honest_before
    assert lasted.min() > 0
    assert lasted.mean() == pytest.approx(mean, rel=0.05)
    assert np.quantile(lasted, 0.99) <= most
    told = windows_to_accuse(cheated[0].tolist() + cheated[1].tolist(), honest_before=honest_before)
    assert told == pytest.approx(lasted.mean(), rel=0.2)


@pytest.mark.parametrize("error", [0.028, 0.03, 0.035, 0.045])
def test_the_windows_it_takes_are_told(error: float) -> None:
    errors = np.full((1, 300), error)
    for before in (0, 200):
        window = int(alarms(np.concatenate([np.full((1, before), 0.012), errors], axis=1))[0]) - before
        assert windows_to_accuse([error], honest_before=before) == pytest.approx(window, rel=0.2)


def test_the_ceiling_is_that_of_the_coarsest_dtype() -> None:
    """So bfloat16 that is declared as float32 is found, though it passes every window."""
    whole, half, brain = (Numerics(dtype) for dtype in ("float32", "float16", "bfloat16"))
    assert honest_ceiling(brain, whole) == honest_ceiling(whole, brain) == honest_ceiling(brain, half) == 0.025
    assert honest_ceiling(whole, whole) < honest_ceiling(half, whole) < honest_ceiling(brain, whole)
    assert honest_ceiling(Numerics("float32", kv_dtype="bfloat16"), whole) == 0.025
    assert honest_ceiling(Numerics("float32", "int8"), Numerics("float32", "int8")) == INT8_CEILING
    assert honest_ceiling(Numerics("float32", "nf4"), Numerics("float32", "nf4")) == 0.025
    assert honest_ceiling(Numerics("bfloat16", "nf4"), Numerics("float32", "nf4")) == NF4_CEILING
    assert windows_to_accuse([0.013], ceiling=honest_ceiling(whole, whole)) < 17


def test_what_it_never_finds() -> None:
    assert windows_to_accuse([0.02]) == math.inf
    assert windows_to_accuse([0.03, 0.012]) == math.inf  # cheats in half of the windows: half the saving, and not found


@given(st.lists(st.floats(1e-4, 1.0), max_size=30))
def test_one_good_window_never_takes_all_and_more_error_never_helps(errors: list[float]) -> None:
    suspicion = worse = Suspicion()
    for error in errors:
        suspicion, worse = suspicion.after(error), worse.after(1.1 * error)
    assert suspicion.windows == len(errors)
    assert worse.log_evidence >= suspicion.log_evidence - 1e-9
    assert suspicion.after(0.0).log_evidence > suspicion.log_evidence - 3
    assert suspicion.log_evidence >= -math.log(len(errors) + 1) - 1e-9  # no credit is left behind


@given(st.lists(st.one_of(st.floats(0, 2), st.just(math.inf), st.just(math.nan)), max_size=5))
def test_it_can_be_stored(errors: list[float]) -> None:
    suspicion = Suspicion()
    for error in errors:
        suspicion = suspicion.after(error)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(suspicion), type=Suspicion) == suspicion


def test_errors_that_are_no_numbers() -> None:
    assert log_excess(0.0, HONEST_CEILING) == LOWEST
    for error in (math.inf, math.nan, 1e9, -1.0):
        assert log_excess(error, HONEST_CEILING) == HIGHEST
    for ceiling in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError):
            Suspicion().after(0.02, ceiling=ceiling)


def test_nothing_is_known_at_first() -> None:
    assert Suspicion().log_evidence == 0
    assert not Suspicion().accuses()
