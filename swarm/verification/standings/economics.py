"""What an audit rate buys: how long a cheater lasts, when cheating pays, and how often the honest are hit (DESIGN 9).

Units: a *window* is 32 positions of one stage; gains and losses are in the cost of computing one window honestly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from swarm.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Stakes:
    """What a cheater weighs.

    ``saving`` g: the part of a window's cost that cheating on it saves, in (0, 1]. ``loss`` L: what ejection costs
    him, in windows: mostly the work without credit of a new identity on probation. ``detection`` d: the probability
    that an audit of a cheated window ends in a strike. ``strikes`` K: how many eject. ``ConfigError`` for others.
    """

    saving: float
    loss: float
    detection: float
    strikes: int

    def __post_init__(self) -> None:
        _within("saving", self.saving, 1.0)
        _within("loss", self.loss, math.inf)
        _within("detection", self.detection, 1.0)
        _at_least_one("strikes", self.strikes)


def cheated_windows(strikes: int, audit_rate: float, detection: float) -> float:
    """E = K / (q·d): the mean number of windows cheated until ejection, that of the last strike included.

    For a cheater who pauses while the audit rate is raised after a strike: every strike then takes a geometric number
    of windows with probability q·d. Exact if audits are independent of each other and of what he does. One who does
    not pause lasts ``escalated_windows``.
    """
    _within("audit_rate", audit_rate, 1.0)
    _within("detection", detection, 1.0)
    _at_least_one("strikes", strikes)
    return strikes / (audit_rate * detection)


def escalated_windows(strikes: int, audit_rate: float, detection: float) -> float:
    """1 / (q·d) + (K - 1) / d: the same for a cheater who goes on cheating while every window of his is audited.

    Exact as long as the raised rate lasts until the next strike: 200 windows do unless d is below a few per cent.
    """
    return cheated_windows(1, audit_rate, detection) + (strikes - 1) / detection


def deterring_rate(stakes: Stakes) -> float:
    """The audit rate q above which cheating does not pay: q > g·K / (d·L), from E·g < L.

    More than 1 where no rate is enough. For a risk-neutral cheater who knows q and d and pauses during escalation. It
    rests on L: where a new identity costs nothing, nothing deters.
    """
    return stakes.saving * stakes.strikes / (stakes.detection * stakes.loss)


def deterring_rate_escalated(stakes: Stakes) -> float:
    """The same for a cheater who does not pause: q > g / (d·L - g·(K - 1)), from ``escalated_windows``·g < L."""
    rest = stakes.detection * stakes.loss - stakes.saving * (stakes.strikes - 1)
    return stakes.saving / rest if rest > 0 else math.inf


def rate_for_mean(strikes: int, detection: float, windows: float) -> float:
    """The q at which a cheater who pauses lasts ``windows`` on average: K / (d·E). More than 1 where no rate does."""
    _within("windows", windows, math.inf)
    return cheated_windows(strikes, 1.0, detection) / windows


def rate_for_probability(strikes: int, detection: float, windows: int, probability: float) -> float:
    """The least q at which K strikes fall within ``windows`` cheated windows with ``probability``, in (0, 1).

    Solves P(Binomial(windows, q·d) >= K) = probability by bisection, to 1e-12; more than 1 (infinity) where even q =
    1 is too little. O(windows · 50).
    """
    _within("probability", probability, 1.0)
    _within("detection", detection, 1.0)
    if binomial_tail(windows, detection, strikes) < probability:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if binomial_tail(windows, middle * detection, strikes) >= probability else (middle, high)
        )
    return high


def honest_ejection(audits: int, false_rate: float, strikes: int) -> float:
    """P(Binomial(M, f) >= K): an honest server is ejected within M audits that each strike it falsely with f.

    Exact if false strikes are independent. A fault of a machine or a way to compute that fails once fails again: then
    f says nothing, which is why a session gives one strike at most.
    """
    return binomial_tail(audits, false_rate, strikes)


def honest_ejection_bound(audits: int, false_rate: float, strikes: int) -> float:
    """C(M, K)·f^K, at least ``honest_ejection``: the mean number of ways to choose K false strikes."""
    _check_binomial(audits, false_rate, strikes)
    if strikes > audits or false_rate == 0:
        return 0.0
    return math.exp(min(log_choose(audits, strikes) + strikes * math.log(false_rate), 700.0))


def binomial_tail(trials: int, probability: float, least: int) -> float:
    """P(Binomial(trials, probability) >= least). However small it is, its relative error stays below 1e-9.

    Sums the terms of the smaller side in logarithms (``math.lgamma``), for up to a million trials. O(trials).
    """
    _check_binomial(trials, probability, least)
    if least <= 0:
        return 1.0
    if least > trials or probability == 0:
        return 0.0
    if probability == 1:
        return 1.0
    if least > trials * probability:
        return min(1.0, _sum(trials, probability, range(least, trials + 1)))
    return max(0.0, 1.0 - _sum(trials, probability, range(least - 1, -1, -1)))


def _sum(trials: int, probability: float, counts: Iterable[int]) -> float:
    """The probabilities of ``counts`` together, given from the largest down; stops where the rest adds nothing."""
    log_p, log_rest = math.log(probability), math.log1p(-probability)
    total = 0.0
    for count in counts:
        term = math.exp(log_choose(trials, count) + count * log_p + (trials - count) * log_rest)
        total += term
        if term < total * 1e-17:
            break
    return total


def log_choose(total: int, chosen: int) -> float:
    """ln of the number of ways to choose ``chosen`` of ``total``."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _check_binomial(trials: int, probability: float, least: int) -> None:
    if trials < 0 or not 0 <= probability <= 1:
        raise ConfigError(f"no binomial distribution of {trials} trials with probability {probability}")
    _at_least_one("strikes", least)


def _within(name: str, value: float, most: float) -> None:
    if not (0 < value <= most and math.isfinite(value)):
        top = "" if math.isinf(most) else f" and at most {most:g}"
        raise ConfigError(f"{name} is {value:g}", hint=f"it must be above 0{top}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}", hint="it must be 1 or more")
