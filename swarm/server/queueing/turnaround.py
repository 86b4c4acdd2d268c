"""How long steps are here, how long their sessions are away, and what forwards take. Pure: times come in.

This is what admission goes by (``swarm.scheduling.shedding``); what metrics say is the ``Meter``'s.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from swarm.core.metrics import BATCHES
from swarm.core.smoothing import smoothed
from swarm.scheduling.fair_queue import forward_s
from swarm.scheduling.shedding import Rounds

ACTIVE_S = 3.0
"""A session that computed within this time is active; whoever is silent for longer thinks, or has gone."""
NEW_S = 10.0
"""A new session counts as active for so long, until its first step has come around."""
FRESH_S = 30.0
"""Forwards of a size that were not seen for so long say nothing about now."""
WEIGHT = 0.1
"""Of one more forward in smoothed times."""


@dataclass(slots=True)
class _Means:
    away_s: float
    here_s: float
    share: float


class Turnaround:
    """Notes on one engine's sessions."""

    def __init__(self) -> None:
        self._active_until_s: dict[Hashable, float] = {}
        self._left_s: dict[Hashable, float] = {}
        self._means: _Means | None = None
        self._forward_s: dict[int, tuple[float, float]] = {}  # by size: smoothed seconds, and when seen last
        self._factor = 1.0
        """By how much forwards take longer now than a probe said."""

    def opened(self, session: Hashable, now_s: float) -> None:
        """A session has a place; its first step is on its way."""
        self._active_until_s[session] = now_s + NEW_S

    def worked(self, session: Hashable, now_s: float) -> None:
        """A step of whatever kind was computed for it."""
        self._active_until_s[session] = now_s + ACTIVE_S

    def came_around(self, session: Hashable, ready_s: float, ended_s: float, share: float) -> None:
        """A decode step was ready to be computed at ``ready_s`` and done at ``ended_s``; it ran ``share`` of the model.

        The way from its session's step before it counts, unless it took so long that somebody must have been thinking.
        """
        left_s = self._left_s.get(session)
        self._left_s[session] = ended_s
        if left_s is None or ready_s - left_s > ACTIVE_S:
            return
        new = _Means(max(ready_s - left_s, 0.0), ended_s - ready_s, share)
        old = self._means or new
        self._means = _Means(
            smoothed(old.away_s, new.away_s, WEIGHT),
            smoothed(old.here_s, new.here_s, WEIGHT),
            smoothed(old.share, new.share, WEIGHT),
        )

    def computed(self, size: int, took_s: float, now_s: float, probed_s: Sequence[float]) -> None:
        """A forward of ``size`` decode steps took ``took_s``; ``probed_s`` is t(b) as a probe has it."""
        before_s, _ = self._forward_s.get(size, (took_s, 0.0))
        self._forward_s[size] = (smoothed(before_s, took_s, WEIGHT), now_s)
        if probed_s and (expected_s := forward_s(probed_s, size)) > 0:
            self._factor = smoothed(self._factor, took_s / expected_s, WEIGHT)

    def forget(self, session: Hashable) -> None:
        """The session is over."""
        self._active_until_s.pop(session, None)
        self._left_s.pop(session, None)

    def active(self, now_s: float) -> frozenset[Hashable]:
        """Sessions that are new or computed lately: those that share the engine."""
        return frozenset(session for session, until_s in self._active_until_s.items() if until_s > now_s)

    @property
    def rounds(self) -> Rounds | None:
        """The means of late; None before any session has come around."""
        means = self._means
        return None if means is None else Rounds(means.away_s, means.here_s, means.share)

    def times_s(self, probed_s: Sequence[float], now_s: float) -> Mapping[int, float]:
        """t(b) as it is now: measured where forwards of that size came lately, else the probe's, corrected.

        Empty if nobody has measured anything.
        """
        times = {batch: step_s * self._factor for batch, step_s in zip(BATCHES, probed_s, strict=False)}
        if not times:
            return {}
        return times | {b: took_s for b, (took_s, seen_s) in self._forward_s.items() if now_s - seen_s <= FRESH_S}
