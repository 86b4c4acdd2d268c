"""When an idle engine should wait for more sessions before it starts. Pure: time comes in, decisions go out.

A decode forward reads every weight once, whether for one row or for several. Sessions that left a server in one batch
reach the next a moment apart, so an engine that starts on the first of them splits them for good and computes one by
one what costs the same together. Two waits prevent that:

- *Gathering*: a few per cent of a forward for the next companion of a step that has come. It keeps batches together.
- *Merging*: up to one trip around the ring, for sessions that travel apart to fall into step. It costs a session that
  delay once, so it is paid from a credit of a few per cent of the time, and only where a forward of all of them takes
  little longer than one of those that are here.

A session alone never waits.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from swarm.core.smoothing import smoothed

GATHER_SHARE = 0.05
"""Of a forward's usual time: the wait for the next companion, after each arrival."""
GATHER_LIMIT = 3.0
"""The longest gathering, in such waits."""
MERGE_SHARE = 0.05
"""Of all time, what may be spent on merging."""
MERGE_LIMIT_S = 0.5
"""The most credit for merging; an engine starts with it."""
MERGE_WAIT_S = 0.25
"""The longest merge, however long the ring."""
MERGE_SLACK = 1.2
"""How much longer than the usual trip around the ring a merge waits."""
MERGE_COST = 1.4
"""A forward of everybody may take this much longer than one of those here."""
EXPECTED_S = 1.0
"""A session that computed within this time is expected back."""
WEIGHT = 0.2
"""Of the newest measurement in smoothed times."""


@dataclass(slots=True)
class Wait:
    """One wait of an idle engine: since when, since when nobody has come, until when at most for a merge."""

    began_s: float
    arrived_s: float
    merge_until_s: float


class Companions:
    """Who is expected back at an engine, and whether to wait for them."""

    def __init__(self) -> None:
        self._seen_s: dict[Hashable, float] = {}
        self._forward_s: dict[int, float] = {}
        self._ring_s = 0.0
        self._credit_s = MERGE_LIMIT_S
        self._credited_s: float | None = None

    def computed(self, sessions: Collection[Hashable], took_s: float, now_s: float) -> None:
        """A decode forward of ``sessions``, one row each or a few, took ``took_s`` and ended at ``now_s``."""
        size = len(sessions)
        self._forward_s[size] = smoothed(self._forward_s.get(size), took_s, WEIGHT)
        for session in sessions:
            before_s = self._seen_s.get(session)
            if before_s is not None and now_s - before_s < EXPECTED_S:
                self._ring_s = smoothed(self._ring_s or None, now_s - before_s, WEIGHT)
            self._seen_s[session] = now_s

    def forget(self, session: Hashable) -> None:
        """The session is over: nobody waits for it."""
        self._seen_s.pop(session, None)

    def begin(self, ready: Collection[Hashable], now_s: float) -> Wait:
        """The engine is idle and ``ready`` sessions have a step."""
        self._earn(now_s)
        for session, seen_s in list(self._seen_s.items()):
            if now_s - seen_s > EXPECTED_S:
                del self._seen_s[session]
        merge_s = min(MERGE_SLACK * self._ring_s, MERGE_WAIT_S)
        merging = self._worth_merging(len(ready)) and 0 < merge_s <= self._credit_s
        return Wait(now_s, now_s, now_s + merge_s if merging else now_s)

    def until_s(self, wait: Wait, ready: Collection[Hashable], now_s: float) -> float:
        """When to stop waiting if nobody else comes; not after ``now_s`` if the engine should start."""
        if self._seen_s.keys() <= set(ready):
            return now_s
        gather_s = GATHER_SHARE * self._usual_s(len(ready))
        gather_until_s = min(wait.arrived_s + gather_s, wait.began_s + GATHER_LIMIT * gather_s)
        return max(gather_until_s, wait.merge_until_s)

    def end(self, wait: Wait, now_s: float) -> None:
        """The wait is over; a merge is paid for."""
        if wait.merge_until_s > wait.began_s:
            self._credit_s -= now_s - wait.began_s

    def _earn(self, now_s: float) -> None:
        if self._credited_s is not None:
            self._credit_s = min(MERGE_LIMIT_S, self._credit_s + MERGE_SHARE * (now_s - self._credited_s))
        self._credited_s = now_s

    def _worth_merging(self, here: int) -> bool:
        everybody = max(here, len(self._seen_s))
        if everybody == here:
            return False
        together_s = self._forward_s.get(everybody)
        return together_s is None or together_s <= MERGE_COST * self._usual_s(here)

    def _usual_s(self, size: int) -> float:
        """Time of a forward of ``size`` sessions: as measured, or that of the nearest size; 0 before any."""
        if not self._forward_s:
            return 0.0
        return self._forward_s[min(self._forward_s, key=lambda known: abs(known - size))]
