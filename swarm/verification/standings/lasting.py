"""How long a cheater lasts under a policy, played through window by window: what no formula covers.

The formulas of ``economics`` know one rate and independent strikes. Here probation, the decaying and the raised rate,
one strike a session and the sequential test all act, by the same transitions that a node uses (``strikes``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swarm.core.errors import ConfigError
from swarm.verification.standings.sequential import HONEST_CEILING
from swarm.verification.standings.strikes import TRUSTED, Policy, Standing, audit_rate, struck, window_audited
from swarm.verification.verdicts.verdict import DENSE, Outcome, Thresholds, judge_window
from swarm.verification.verdicts.whitening import Comparison


@dataclass(frozen=True, slots=True)
class Cheater:
    """``share`` of the windows after the first ``honest_first`` are cheated on, each by itself.

    ``cheated_errors`` and ``honest_errors`` are measured e's of such windows, drawn from with replacement: how often
    the former fail hard is the detection d. Every ``session_windows`` windows a session ends; one gives one strike.
    """

    cheated_errors: tuple[float, ...]
    honest_errors: tuple[float, ...]
    share: float = 1.0
    honest_first: int = 0
    session_windows: int = 8

    def __post_init__(self) -> None:
        if not (self.cheated_errors and self.honest_errors and 0 <= self.share <= 1 and self.session_windows >= 1):
            raise ConfigError(f"no such cheater: share {self.share}, sessions of {self.session_windows} windows")


@dataclass(frozen=True, slots=True)
class Lasted:
    """``windows`` served until ejection, ``cheated`` of them; ``reason`` is empty if nobody ejected it in time."""

    windows: int
    cheated: int
    reason: str


STRANGER = Standing()


def play(
    cheater: Cheater,
    policy: Policy,
    rng: np.random.Generator,
    *,
    most_windows: int,
    standing: Standing = STRANGER,
    thresholds: Thresholds = DENSE,
    ceiling: float | None = HONEST_CEILING,
) -> Lasted:
    """One life of ``cheater`` in the eyes of one node with a trusted replica, for ``most_windows`` at most.

    ``standing`` is where it begins: as a stranger, or ``Standing(audited=...)``. Every hard failure counts as
    confirmed. Windows that this node does not see do not count; nodes that share proofs count together. O(windows).
    """
    cheated = 0
    for window in range(most_windows):
        cheats = window >= cheater.honest_first and rng.random() < cheater.share
        cheated += cheats
        if rng.random() < audit_rate(standing, policy):
            errors = cheater.cheated_errors if cheats else cheater.honest_errors
            error = errors[int(rng.integers(len(errors)))]
            outcome = judge_window(Comparison(0.0, 0.0, error, 1), thresholds, counts=True)
            standing = window_audited(standing, policy, outcome, error, reference=TRUSTED, ceiling=ceiling)
            if outcome is Outcome.HARD:
                standing = struck(standing, policy, b"%d" % (window // cheater.session_windows))
        if standing.ejected:
            return Lasted(window + 1, cheated, standing.ejected)
    return Lasted(most_windows, cheated, "")
