"""A test of every window, however many: does a server's error lie, on average, above what honest servers reach?

Undeclared int8 weights give e of 0.025 to 0.047, below what fails a window. But they give it in every window.

The evidence is an e-process, a bet that starts at 1 and cannot grow on average while the server is honest:

    x = log(e / ceiling), cut to [-0.35, 0.63]          one window
    L(k..n) = (1 + b·x_k) · … · (1 + b·x_n)             a bet of b on each window since the k-th
    M_n = sum over k <= n of w_k·L(k..n) + sum over k > n of w_k,  w_k = 1 / (k(k + 1)),  the mean over three b

Null hypothesis: given everything before it, an honest window's x has a mean of at most 0. Nothing else is assumed:
neither a distribution nor independence. Then E M_n <= M_0 = 1, and by Ville's inequality P(M_n >= 1 / α for some n)
<= α, however many windows there are. The w_k let the cheating begin at any window: honest windows before it buy no
credit beyond ln k(k + 1).

Sources: Ville, "Étude critique de la notion de collectif" (1939); Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting" (JRSS B, 2024); Shin, Ramdas and Rinaldo, "E-detectors" (NEJSDS, 2023), whose sum
over starting points, of Shiryaev and Roberts, here has weights that add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from swarm.core.errors import ConfigError
from swarm.core.numerics import Numerics

HONEST_CEILING = 0.025
"""e that honest servers reach at most, across kernels, dtypes, prefill and decode (DESIGN 9)."""
CEILINGS = {"float32": 0.001, "float16": 0.005, "bfloat16": HONEST_CEILING}
"""The same by the coarsest dtype that takes part; else bfloat16 could be sold as float32. Measured on SmolLM2 against
float32: below 0.0001, 0.002 and 0.016 for ten layers. Two of one dtype lie up to sqrt(2) times further apart."""
INT8_CEILING = 0.13
"""For declared int8: its rows depend on who shares a forward (``verdict.INT8``)."""
NF4_CEILING = 0.07
"""For nf4 in two dtypes, 0.055 to 0.060 apart: scales are rounded to the dtype. In one, 0.017."""
FALSE_ALARM = 1e-6
"""P(an honest server is ever accused)."""
LOWEST, HIGHEST = -0.35, 0.63
"""Where x is cut off. Below: what one good window can take back. Above, ln(0.047 / 0.025): a single freak window must
not decide, nor a few; what is worse than int8 weights is for the strikes."""
BETS = (0.7, 1.4, 2.6)
"""Each below 1 / 0.35, so that no window takes all. Large ones find large differences soon, small ones small ones."""


class Suspicion(msgspec.Struct, frozen=True, array_like=True):
    """What the windows of one server so far say: their number, and the logarithm of every bet's sum over k <= n.

    Feed it every window that counted, in order, whichever way it was judged: leaving out good or bad ones breaks the
    bound. ``ceiling`` may differ from window to window, as long as it does not depend on the window's own rows.
    """

    windows: int = 0
    log_sums: tuple[float, float, float] = (-math.inf, -math.inf, -math.inf)

    def after(self, error: float, *, ceiling: float = HONEST_CEILING) -> Suspicion:
        """The suspicion after one more window with ``error`` (e; infinity where nothing could be compared). O(1).

        Raises ``ConfigError`` unless ``ceiling`` is positive.
        """
        if not 0 < ceiling < math.inf:
            raise ConfigError(f"an honest ceiling of {ceiling:g}", hint="give a positive number, like 0.025")
        excess = log_excess(error, ceiling)
        number = self.windows + 1
        log_weight = -math.log(number * (number + 1))
        grown = (
            _log_add(total, log_weight) + math.log1p(bet * excess)
            for bet, total in zip(BETS, self.log_sums, strict=True)
        )
        first, second, third = grown
        return Suspicion(number, (first, second, third))

    @property
    def log_evidence(self) -> float:
        """ln M_n: 0 before the first window; an honest server's exceeds ln(1/α) ever with probability α at most."""
        together = -math.inf
        for total in self.log_sums:
            together = _log_add(together, total)
        return _log_add(together - math.log(len(BETS)), -math.log(self.windows + 1))

    def accuses(self, false_alarm: float = FALSE_ALARM) -> bool:
        """True once the evidence reaches 1 / ``false_alarm``. It may fall again; the first time is what counts."""
        return self.log_evidence >= -math.log(false_alarm)


def honest_ceiling(declared: Numerics, reference: Numerics) -> float:
    """The ceiling for a server of ``declared`` numerics against a ``reference``: that of the coarsest dtype of both.

    Quantized weights are computed with in other ways on other machines, so for them it is the largest, or one of
    their own. For dtypes that are ``known``.
    """
    both = (declared, reference)
    if any(numerics.quantization == "int8" for numerics in both):
        return INT8_CEILING
    if any(numerics.quantization != "none" for numerics in both):
        return HONEST_CEILING if declared.dtype == reference.dtype else NF4_CEILING
    return max(CEILINGS[dtype] for numerics in both for dtype in (numerics.dtype, numerics.kv_dtype or numerics.dtype))


def log_excess(error: float, ceiling: float) -> float:
    """x of one window: ln(error / ceiling), cut to [``LOWEST``, ``HIGHEST``]; what is not a number counts as worst."""
    if not error > 0:
        return LOWEST if error == 0 else HIGHEST
    return min(max(math.log(error / ceiling), LOWEST), HIGHEST) if error < math.inf else HIGHEST


def windows_to_accuse(
    errors: Sequence[float],
    *,
    honest_before: int = 0,
    ceiling: float = HONEST_CEILING,
    false_alarm: float = FALSE_ALARM,
) -> float:
    """About how many windows a cheater lasts whose errors are like ``errors``, after ``honest_before`` honest ones.

    (ln(1/α) + ln 3 + ln k(k + 1)) / max over b of the mean of ln(1 + b·x), with k the first cheated window: Wald's
    approximation without the overshoot, for the best of the three bets and the best start. Infinite where no bet
    grows. Simulations lie within a fifth of it (tests). O(len(errors)).
    """
    excesses = [log_excess(error, ceiling) for error in errors]
    growth = max(math.fsum(math.log1p(bet * excess) for excess in excesses) / len(excesses) for bet in BETS)
    if growth <= 0:
        return math.inf
    start = honest_before + 1
    return (-math.log(false_alarm) + math.log(len(BETS)) + math.log(start * (start + 1))) / growth


def _log_add(one: float, other: float) -> float:
    """ln(e^one + e^other)."""
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
