"""From windows that were audited to how long such a server lasts: lives played under the default policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.inspector import Inspected
from swarm.verification.standings.lasting import Cheater, Lasted, play
from swarm.verification.standings.strikes import Policy, Standing, audit_asked, struck, traffic_asked, window_audited
from swarm.verification.verdicts.verdict import Outcome

KNOWN = Standing(audited=1_000_000)
"""Of a server that has been good for long: audited at the lowest rate."""
MOST_WINDOWS = 20_000
MOST_REQUESTS = 4096


@dataclass(frozen=True, slots=True)
class Seen:
    """What audits saw of one server: e of windows cheated on and of others, infinite where tokens failed them."""

    cheated: Sequence[float]
    honest: Sequence[float]
    ceiling: float | None
    share: float = 1.0
    honest_first: int = 0
    session_windows: int = 8


def windows_until_ejection(seen: Seen, lives: int, policy: Policy | None = None) -> dict[str, Any]:
    """Means over ``lives`` of a newcomer and of one known for long, as one node with a trusted replica sees them.

    ``lasted`` counts those that were still there after ``MOST_WINDOWS``; their windows count as that many.
    """
    cheater = Cheater(
        cheated_errors=tuple(seen.cheated),
        honest_errors=tuple(seen.honest) or (0.0,),
        share=seen.share,
        honest_first=seen.honest_first,
        session_windows=seen.session_windows,
    )
    rng = np.random.default_rng(17)
    return {
        name: _mean(
            [
                play(
                    cheater,
                    policy or Policy(),
                    rng,
                    most_windows=MOST_WINDOWS,
                    standing=standing,
                    ceiling=seen.ceiling,
                )
                for _ in range(lives)
            ]
        )
        for name, standing in (("newcomer", Standing()), ("known", KNOWN))
    }


def _mean(lives: Sequence[Lasted]) -> dict[str, Any]:
    reasons = Counter(life.reason or "lasted" for life in lives)
    return {
        "windows": float(np.mean([life.windows for life in lives])),
        "cheated": float(np.mean([life.cheated for life in lives])),
        "lasted": reasons.pop("lasted", 0),
        "found_by": reasons.most_common(1)[0][0] if reasons else "",
    }


def live(found: Sequence[Inspected], policy: Policy | None = None) -> dict[str, Any]:
    """The life of the server that was just audited, every window in the order of auditing: a newcomer's at q = 1.

    ``windows`` until it was ejected, all of them if it was not, and why. A session gives one strike.
    """
    rules, standing, windows = policy or Policy(), Standing(), 0
    for number, whole in enumerate(found):
        for window in whole.windows:
            windows += 1
            standing = window_audited(
                standing,
                rules,
                window.outcome,
                window.found.error,
                reference=whole.audit.reference,
                ceiling=whole.audit.ceiling,
            )
            if window.outcome is Outcome.HARD:
                standing = struck(standing, rules, b"%d" % number)
            if standing.ejected:
                return {"windows": windows, "found_by": standing.ejected}
    return {"windows": windows, "found_by": ""}


def audits_until_ejection(refused: float, policy: Policy | None = None) -> int | None:
    """Audits until a server is ejected that answers all traffic and refuses a share of audits; None if it never is.

    ``refused`` is that share; nine requests of traffic come to one audit. Refusals are spread evenly.
    """
    rules, standing = policy or Policy(), Standing()
    for asked in range(1, MOST_REQUESTS + 1):
        for _ in range(9):
            standing = traffic_asked(standing, answered=True)
        refuses = math.floor(asked * refused) > math.floor((asked - 1) * refused)
        standing = audit_asked(standing, rules, answered=not refuses)
        if standing.ejected:
            return asked
    return None
