"""What a person reads first of a model: one sentence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from swarm.core.spans import Span
from swarm.core.text import clip
from swarm.scheduling.bounds import Bounds
from swarm.scheduling.reasons import layers_text

MAX_REASON_CHARS = 200
UNIT = " tokens/s"
MANY_SESSIONS = 1_000_000
"""No swarm is known to take so many: servers that say so have not measured themselves."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the sentence is about; ``step`` None: no chain, and ``reason`` says why though no layer is missing."""

    layers: int
    missing: Sequence[Span]
    step: Bounds | None
    sessions: int
    knee_sessions: float | None
    reason: str


def sentence(outlook: Outlook) -> str:
    """``Usable now: …`` or ``Not usable: …``, in words for anybody."""
    if not outlook.layers or (outlook.missing and sum(map(len, outlook.missing)) == outlook.layers):
        return "Not usable: nobody serves it at present."
    if outlook.missing:
        return f"Not usable: nobody serves {layers_text(outlook.missing)}."
    step = outlook.step
    if step is None:
        reason = clip(outlook.reason, MAX_REASON_CHARS)
        return f"Not usable: {reason}." if reason else "Not usable: no way through its servers was found."
    doubts = f" ({step.doubts})" if step.vague else ""
    return f"Usable now: {_rates(step)} for a new session{doubts}; {_room(outlook)}."


def _rates(step: Bounds) -> str:
    least, most = _rate(1 / step.most_s), _rate(1 / step.least_s)
    if not step.vague or least == most:
        return f"about {_rate(1 / step.middle_s)}"
    return f"{least.removesuffix(UNIT)} to {most}"


def _rate(tokens_per_s: float) -> str:
    """Two significant digits: it is a prediction."""
    value = float(f"{tokens_per_s:.1e}")
    if value >= 0.01:
        return f"{value:g}{UNIT}" if value < 1e6 else "over a million tokens/s"
    return "one token in over a minute and a half"


def _room(outlook: Outlook) -> str:
    """How full it is."""
    sessions, most = outlook.sessions, outlook.knee_sessions
    if most is None:
        return f"{_counted(sessions)} {'runs' if sessions == 1 else 'run'}"
    limit = max(round(most), 1)
    if limit > MANY_SESSIONS:
        return f"{_counted(sessions)}, with room for a great many"
    if sessions >= limit:
        return f"full: {_counted(sessions)} where {limit} fit before all get slower"
    return f"{sessions} of about {_counted(limit)} before it gets slower"


def _counted(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"
