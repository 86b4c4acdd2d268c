"""What a comparison means: pass, soft or hard; and who is wrong when three answers do not agree (DESIGN 9)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.verification.verdicts.calibration import Floats
from swarm.verification.verdicts.whitening import Comparison

AGREEMENT = 0.045
"""e up to which two answers are the same work."""
LOSSY_FLOOR = 0.05
"""e that a lossy wire codec alone costs an honest server whose rows are compared as sent, not as committed."""


LOGIT_ERROR = {"float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""By declared dtype: how far honest kernels' logits lie apart. SmolLM2's are rounded to 1/8 in bfloat16, and lie 0.33
apart at most; what that does to a CDF or to two near the maximum stays within half of what this allows for."""


class Outcome(StrEnum):
    """Of one window. ``SOFT`` is no strike, but evidence for the sequential test like every window that counts."""

    PASS = "pass"
    SOFT = "soft"
    HARD = "hard"
    UNCOUNTED = "uncounted"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where windows pass and fail: e up to ``pass_error``, e above ``fail_error`` (None: nothing fails hard)."""

    pass_error: float
    fail_error: float | None

    def __post_init__(self) -> None:
        if not 0 < self.pass_error <= (self.pass_error if self.fail_error is None else self.fail_error):
            raise MisuseError(f"thresholds {self.pass_error} and {self.fail_error} are not in order")


DENSE = Thresholds(pass_error=AGREEMENT, fail_error=0.10)
"""Measured (DESIGN 9): honest up to 0.025, int8 0.047, fp8 0.05 to 0.09, nf4 from 0.21, a skipped layer from 0.42."""
SOFT_ONLY = Thresholds(pass_error=AGREEMENT, fail_error=None)
"""For mixtures of experts without thresholds of their own: a rounding that changes a row's expert changes the row."""
INT8 = Thresholds(pass_error=0.13, fail_error=0.20)
"""For declared int8. LLM.int8 rounds activations too, and leaves out columns in which any row of the forward is large:
so a row depends on who shares its forward. Measured: honest servers 0.056 to 0.117 apart, by other chunks or companions
alone 0.075 to 0.098; a layer that is missing is 0.25."""
LOSSY = Thresholds(pass_error=AGREEMENT + LOSSY_FLOOR, fail_error=None)
"""For rows as a lossy codec left them: they tell who to look at, but cannot fail anybody."""


def thresholds_for(*, experts: bool, own: Thresholds | None = None, before_codec: bool = True) -> Thresholds:
    """The thresholds of a span. ``own``: those measured for this very model, which a mixture of ``experts`` needs.

    ``before_codec``: the rows compared are the ones committed before a lossy wire codec (or there was none).
    """
    if not before_codec:
        return LOSSY
    if own is not None:
        return own
    return SOFT_ONLY if experts else DENSE


def declared_thresholds(thresholds: Thresholds, declared: Numerics) -> Thresholds:
    """Those of a dense model, or own ones, as they are for a server that declares these numerics."""
    return INT8 if declared.quantization == "int8" and thresholds == DENSE else thresholds


def check_comparable(declared: Numerics, reference: Numerics) -> None:
    """Raise ``MisuseError`` unless the reference was computed with the quantization the suspect declared.

    Dtypes may differ, that is within the honest range; declared int8 weights compared with whole ones would not be.
    """
    if declared.quantization != reference.quantization:
        raise MisuseError(
            f"a server that declares {declared} cannot be judged by one of {reference}",
            hint=f"audit it with quantization {declared.quantization}",
        )


def judge_window(found: Comparison, thresholds: Thresholds, *, counts: bool) -> Outcome:
    """The outcome of one window: what ``whitening.compare`` found, judged only if ``counts``.

    That is ``whitening.inputs_count``, and ``whitening.outputs_count`` of the reference.
    """
    if not counts or found.rows == 0:
        return Outcome.UNCOUNTED
    if found.error <= thresholds.pass_error:
        return Outcome.PASS
    hard = thresholds.fail_error is not None and not found.error <= thresholds.fail_error
    return Outcome.HARD if hard else Outcome.SOFT


@dataclass(frozen=True, slots=True)
class Ruling:
    """Of three answers to the same inputs. ``struck``: who is wrong, None if that cannot be said.

    ``void``: nobody can be trusted to be right; then only the local preference of ``suspects`` falls.
    """

    struck: PeerId | None = None
    void: bool = False
    suspects: tuple[PeerId, ...] = field(default=())
    reason: str = ""


Pair = tuple[PeerId, PeerId]


def arbitrate(
    suspect: PeerId, auditors: Sequence[PeerId], errors: Mapping[Pair, float], thresholds: Thresholds = DENSE
) -> Ruling:
    """Who of three is wrong: the one that disagrees with the other two while those agree, whether suspect or auditor.

    ``errors`` holds e of each pair of the three, once, in either order: ``whitening.mutual_error`` of their updates
    for the same inputs. Two agree if e is at most ``thresholds.pass_error``; the third is struck only if it also
    fails hard against one of them. Void if no two agree, if all differ a little (agreement is not transitive), or if
    there are not three different identities, for two against each other prove nothing.

    It rests on a majority: two of the three who lie together strike the honest third. An auditor that covers the span
    is drawn by whoever asks, so colluders have to be many among all that cover it. Raises ``MisuseError`` if a pair
    is missing.
    """
    parties = tuple(dict.fromkeys((suspect, *auditors)))
    if len(parties) < 3:
        return Ruling(void=True, suspects=parties, reason="fewer than three identities cover the span")
    if len(parties) > 3:
        raise MisuseError(f"arbitration is between three, not {len(parties)}")
    one, two, three = parties
    pairs = {third: _error(errors, a, b) for third, a, b in ((one, two, three), (two, one, three), (three, one, two))}
    agreed = [third for third, error in pairs.items() if error <= thresholds.pass_error]
    if len(agreed) == 3:
        return Ruling(reason="all three agree")
    if len(agreed) != 1:
        why = "no two agree" if not agreed else "two that do not agree both agree with the third"
        return Ruling(void=True, suspects=parties, reason=why)
    (odd,) = agreed
    worst = max(error for third, error in pairs.items() if third != odd)
    if thresholds.fail_error is None or worst <= thresholds.fail_error:
        return Ruling(void=True, suspects=(odd,), reason="the third differs only softly")
    return Ruling(struck=odd, suspects=(odd,), reason="the other two agree")


def _error(errors: Mapping[Pair, float], one: PeerId, other: PeerId) -> float:
    found = errors.get((one, other), errors.get((other, one)))
    if found is None:
        raise MisuseError(f"nobody compared {one[-8:]} with {other[-8:]}")
    return math.inf if math.isnan(found) else found


def cdf_tolerance(logit_error: float, temperature: float) -> float:
    """How far a boundary of the CDF can move if every logit is off by at most ``logit_error``: tanh(error / 2T).

    The odds of the tokens below the boundary to those above change by a factor of at most exp(2 · error / T); a
    probability moves most from just below to just above one half. Exact in the worst case, generous for errors of
    both signs. ``temperature`` is positive.
    """
    if not (temperature > 0 and logit_error >= 0):
        raise MisuseError(f"no tolerance for a temperature of {temperature:g} and logits off by {logit_error:g}")
    return math.tanh(logit_error / (2 * temperature))


def judge_sampled_token(token: int, cumulative: Floats, uniform: float, *, tolerance: float) -> Outcome:
    """Whether the tail's ``token`` is the inverse CDF at ``uniform``, from the audited row's own distribution.

    ``cumulative`` ``[vocabulary]``: the recomputed weights summed in token-id order; its last value is the total.
    PASS for the first token whose sum exceeds uniform times total (the definition of DESIGN 8). SOFT for another one
    whose part of the CDF comes within ``tolerance`` (of the total) of that point: another kernel's rounding may have
    moved the boundary. HARD otherwise, and for an id outside the vocabulary. UNCOUNTED if there is no finite
    distribution.

    Many unlikely tokens share every stretch of a large vocabulary's CDF, so a tail that chooses among those in reach
    is only ever SOFT; but it is so far more often than an honest one, whose rate is about the mean shift of the
    boundaries. O(vocabulary).
    """
    if cumulative.ndim != 1 or not len(cumulative) or not 0 <= uniform < 1:
        raise MisuseError(f"no distribution of shape {cumulative.shape}, or no uniform: {uniform}")
    total = float(cumulative[-1])
    if not (np.isfinite(cumulative).all() and total > 0):
        return Outcome.UNCOUNTED
    if not 0 <= token < len(cumulative):
        return Outcome.HARD
    point = uniform * total
    expected = int(np.searchsorted(cumulative, point, side="right"))
    if expected == len(cumulative):  # rounded up to the total: the last token of any weight
        expected = int(np.searchsorted(cumulative, total, side="left"))
    if token == expected:
        return Outcome.PASS
    low, high = (float(cumulative[token - 1]) if token else 0.0), float(cumulative[token])
    reach = tolerance * total
    return Outcome.SOFT if low - reach <= point <= high + reach else Outcome.HARD


def judge_greedy_token(token: int, logits: Floats, *, tolerance: float) -> Outcome:
    """Whether ``token`` has the largest of the recomputed ``logits`` ``[vocabulary]``, ties to the lowest id.

    SOFT for another within ``tolerance`` of the largest (logits, not probabilities), HARD below that; UNCOUNTED if
    the logits hold a NaN or no finite maximum.
    """
    if logits.ndim != 1 or not len(logits):
        raise MisuseError(f"no logits of shape {logits.shape}")
    best = int(np.argmax(logits))
    if not math.isfinite(float(logits[best])):
        return Outcome.UNCOUNTED
    if token == best:
        return Outcome.PASS
    close = 0 <= token < len(logits) and float(logits[token]) >= float(logits[best]) - tolerance
    return Outcome.SOFT if close else Outcome.HARD
