"""What a comparison means, who is wrong among three, and tokens at the edges of a distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.verification.verdicts.verdict import (
    DENSE,
    LOGIT_ERROR,
    LOSSY,
    LOSSY_FLOOR,
    SOFT_ONLY,
    Outcome,
    Pair,
    Ruling,
    Thresholds,
    arbitrate,
    cdf_tolerance,
    check_comparable,
    declared_thresholds,
    judge_greedy_token,
    judge_sampled_token,
    judge_window,
    thresholds_for,
)
from swarm.verification.verdicts.whitening import NOTHING, Comparison

SUSPECT, FIRST, SECOND = (PeerId(name) for name in ("suspect", "first", "second"))


def judged(error: float, thresholds: Thresholds = DENSE, *, counts: bool = True) -> Outcome:
    return judge_window(Comparison(1.0, 0.0, error, 32), thresholds, counts=counts)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(0.0, "pass"), (0.025, "pass"), (0.045, "pass"), (0.0451, "soft"), (0.10, "soft"), (0.1001, "hard"), (1.0, "hard"),
     (math.inf, "hard"), (math.nan, "hard")],
)  # fmt: skip
def test_thresholds(error: float, outcome: str) -> None:
    assert judged(error) == outcome


@pytest.mark.parametrize("thresholds", [SOFT_ONLY, LOSSY])
def test_what_cannot_fail_hard(thresholds: Thresholds) -> None:
    assert judged(math.inf, thresholds) is Outcome.SOFT
    assert judged(0.04, thresholds) is Outcome.PASS


def test_which_windows_are_judged() -> None:
    assert judged(1.0, counts=False) is Outcome.UNCOUNTED
    assert judge_window(NOTHING, DENSE, counts=True) is Outcome.UNCOUNTED


def test_thresholds_of_a_span() -> None:
    own = Thresholds(0.06, 0.2)
    assert thresholds_for(experts=False) == DENSE
    assert thresholds_for(experts=True) == SOFT_ONLY
    assert thresholds_for(experts=True, own=own) == own
    assert thresholds_for(experts=True, own=own, before_codec=False) == LOSSY
    assert judged(LOSSY_FLOOR + 0.025, LOSSY) is Outcome.PASS  # an honest server's codec and kernels
    with pytest.raises(MisuseError):
        Thresholds(0.1, 0.05)
    with pytest.raises(MisuseError):
        Thresholds(0.0, None)


def test_declared_quantization_is_compared_with_the_same() -> None:
    int8 = Numerics("bfloat16", "int8")
    check_comparable(int8, Numerics("float32", "int8"))
    for one, other in ((int8, Numerics("bfloat16")), (Numerics("bfloat16"), int8), (int8, Numerics("bfloat16", "nf4"))):
        with pytest.raises(MisuseError, match="audit it with"):
            check_comparable(one, other)


def ruling(suspect_first: float, suspect_second: float, first_second: float, **options: Thresholds) -> Ruling:
    errors = {(SUSPECT, FIRST): suspect_first, (SECOND, SUSPECT): suspect_second, (FIRST, SECOND): first_second}
    return arbitrate(SUSPECT, (FIRST, SECOND), errors, **options)


def test_a_cheater_is_struck() -> None:
    assert ruling(0.4, 0.41, 0.02) == Ruling(SUSPECT, suspects=(SUSPECT,), reason="the other two agree")
    assert ruling(math.inf, math.nan, 0.0).struck == SUSPECT


def test_an_auditor_that_frames_is_struck() -> None:
    assert ruling(0.4, 0.02, 0.4).struck == FIRST
    assert ruling(0.02, 0.4, 0.4).struck == SECOND


@pytest.mark.parametrize(
    ("errors", "suspects"),
    [
        ((0.4, 0.4, 0.4), 3),  # no two agree
        ((0.4, 0.02, 0.02), 3),  # the suspect and the first both agree with the second
        ((0.08, 0.09, 0.02), 1),  # the third differs, but softly
        ((math.nan, math.nan, math.nan), 3),
    ],
)
def test_void_windows_strike_nobody(errors: tuple[float, float, float], suspects: int) -> None:
    found = ruling(*errors)
    assert found.void
    assert found.struck is None
    assert len(found.suspects) == suspects


def test_all_agree() -> None:
    assert ruling(0.02, 0.045, 0.01) == Ruling(reason="all three agree")


def test_models_without_hard_failures_strike_nobody() -> None:
    assert ruling(0.4, 0.4, 0.02, thresholds=SOFT_ONLY) == Ruling(
        void=True, suspects=(SUSPECT,), reason="the third differs only softly"
    )


@pytest.mark.parametrize("auditors", [(), (FIRST,), (FIRST, FIRST), (SUSPECT, FIRST)])
def test_two_against_each_other_prove_nothing(auditors: tuple[PeerId, ...]) -> None:
    found = arbitrate(SUSPECT, auditors, {(SUSPECT, FIRST): 0.9})
    assert found.void
    assert set(found.suspects) == {SUSPECT, *auditors}


def test_arbitration_needs_every_pair() -> None:
    with pytest.raises(MisuseError, match="compared"):
        arbitrate(SUSPECT, (FIRST, SECOND), {(SUSPECT, FIRST): 0.4, (SUSPECT, SECOND): 0.4})
    with pytest.raises(MisuseError, match="not 4"):
        arbitrate(SUSPECT, (FIRST, SECOND, PeerId("third")), {})


errors_of_pairs = st.one_of(st.floats(0, 0.2), st.sampled_from([0.045, 0.1, math.inf, math.nan]))


@given(errors_of_pairs, errors_of_pairs, errors_of_pairs)
def test_roles_make_no_difference(one: float, two: float, three: float) -> None:
    """Whoever of the three is the suspect, the same one is struck; and never one that agrees with another."""
    errors: dict[Pair, float] = {(SUSPECT, FIRST): one, (SUSPECT, SECOND): two, (FIRST, SECOND): three}
    rulings = {
        (found.struck, found.void)
        for suspect, *auditors in itertools.permutations((SUSPECT, FIRST, SECOND))
        for found in [arbitrate(suspect, auditors, errors)]
    }
    assert len(rulings) == 1
    ((struck, void),) = rulings
    assert not (struck and void)
    if struck:
        own = [error for pair, error in errors.items() if struck in pair]
        (other,) = (error for pair, error in errors.items() if struck not in pair)
        assert other <= 0.045
        assert all(not error <= 0.045 for error in own)
        assert any(not error <= 0.10 for error in own)


def sampled(token: int, uniform: float, tolerance: float = 0.01) -> Outcome:
    weights = np.array([0.25, 0.0, 0.25, 0.5, 0.0]) * 4  # sums need not be 1
    return judge_sampled_token(token, np.cumsum(weights), uniform, tolerance=tolerance)


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.24, 0), (0.25, 2), (0.49, 2), (0.5, 3), (1 - 2**-53, 3)])
def test_the_token_of_the_uniform_passes(uniform: float, token: int) -> None:
    assert sampled(token, uniform) is Outcome.PASS
    others = {other: sampled(other, uniform, tolerance=0.0) for other in range(5) if other != token}
    assert Outcome.PASS not in others.values()


def test_only_near_a_boundary_another_is_tolerated() -> None:
    assert sampled(2, 0.245) is Outcome.SOFT
    assert sampled(0, 0.255) is Outcome.SOFT
    assert sampled(2, 0.235) is Outcome.HARD
    assert sampled(3, 0.3) is Outcome.HARD
    assert sampled(1, 0.3) is Outcome.HARD  # has no weight, and its place is not near
    assert sampled(-1, 0.3) is Outcome.HARD
    assert sampled(5, 0.3) is Outcome.HARD


def test_no_distribution_no_verdict() -> None:
    for cumulative in (np.array([0.0, np.nan, 1.0]), np.zeros(3), np.array([0.5, np.inf])):
        assert judge_sampled_token(0, cumulative, 0.3, tolerance=0.01) is Outcome.UNCOUNTED
    with pytest.raises(MisuseError):
        judge_sampled_token(0, np.zeros(0), 0.3, tolerance=0.01)
    with pytest.raises(MisuseError):
        judge_sampled_token(0, np.ones(3), 1.0, tolerance=0.01)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 2), st.floats(0.2, 2), st.floats(0, 1, exclude_max=True))
def test_a_boundary_never_moves_further_than_its_bound(seed: int, error: float, temperature: float, u: float) -> None:
    """So an honest token is never a hard failure while no logit is off by more than stated."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, 50)
    off = logits + rng.choice([-error, error], 50)
    ours, theirs = (np.cumsum(np.exp((row - row.max()) / temperature)) for row in (logits, off))
    tolerance = cdf_tolerance(error, temperature)
    assert np.abs(ours / ours[-1] - theirs / theirs[-1]).max() <= tolerance + 1e-9
    token = int(np.searchsorted(theirs, u * theirs[-1], side="right"))
    assert judge_sampled_token(token, ours, u, tolerance=tolerance + 1e-9) is not Outcome.HARD


def test_the_bound_is_reached() -> None:
    """Two tokens, one a little too likely, the other too unlikely, and even in the middle of that."""
    error, temperature = 0.3, 0.7
    low, high = 1 / (1 + math.exp(error / temperature)), 1 / (1 + math.exp(-error / temperature))
    assert high - low == pytest.approx(cdf_tolerance(error, temperature))
    with pytest.raises(MisuseError):
        cdf_tolerance(0.1, 0.0)
    assert LOGIT_ERROR["float32"] < LOGIT_ERROR["float16"] < LOGIT_ERROR["bfloat16"]


def test_greedy_tokens() -> None:
    logits = np.array([1.0, 7.0, 6.9, 7.0, 2.0])
    assert [judge_greedy_token(token, logits, tolerance=0.2) for token in (1, 2, 3, 4, -1, 5)] == [
        "pass", "soft", "soft", "hard", "hard", "hard",
    ]  # fmt: skip
    assert judge_greedy_token(0, np.array([1.0, np.nan]), tolerance=0.2) is Outcome.UNCOUNTED
    assert judge_greedy_token(0, np.array([np.inf, 0.0]), tolerance=0.2) is Outcome.UNCOUNTED
    with pytest.raises(MisuseError):
        judge_greedy_token(0, np.zeros(0), tolerance=0.2)


def test_declared_int8_has_thresholds_of_its_own() -> None:
    """Between honest ones, 0.117 apart at most, and a missing layer, 0.25; own thresholds of a model stay."""
    int8 = declared_thresholds(DENSE, Numerics("bfloat16", "int8"))
    assert 0.117 < int8.pass_error < (int8.fail_error or 0.0) < 0.25
    assert declared_thresholds(DENSE, Numerics("bfloat16", "nf4")) is DENSE
    assert declared_thresholds(SOFT_ONLY, Numerics("bfloat16", "int8")) is SOFT_ONLY
