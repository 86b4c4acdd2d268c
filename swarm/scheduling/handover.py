"""When a server that lives is too slow to stay in a chain, and which one holds up a step (DESIGN 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SLOWER = 2.0
"""A stage is slow that takes over so many times as long as the best alternative would."""
WORTH_S = 0.02
"""And by at least so much: to save less than this a step pays for no pause."""
SLOW_FOR_S = 3.0
"""It must stay so for this long, without a quick step between."""
SILENT_S = 2.5
"""Two slow reports that are further apart, by more than a quick step takes, are not one slowness: in between the stage
had no work, or told nothing."""
BETWEEN_S = 60.0
"""So long a session keeps whom it has after it handed a stage over."""
RECENT_S = 2.0
"""A report that is older says nothing about who holds a step now."""


@dataclass(frozen=True, slots=True)
class Report:
    """One PACE as it came, at ``at_s`` of the receiver's clock.

    ``step_s`` is the mean of the decode steps since the last one (None: there was none), ``held_s`` for how long the
    oldest step there has been there.
    """

    at_s: float
    step_s: float | None
    held_s: float


def limit_s(alternative_s: float, alternative_hops_s: float, own_hops_s: float) -> float:
    """What a stage's step may take at most, in seconds, before its best alternative is preferred.

    ``alternative_s`` is what the view predicts for the alternative, from the stage's predecessor to its successor, of
    which ``alternative_hops_s`` are hops. The stage pays ``own_hops_s`` besides its step. Hops are predicted on both
    sides, and a stage is never slow for them alone: its step must also exceed ``SLOWER`` times the alternative's own
    computing, and by ``WORTH_S``.
    """
    computes_s = alternative_s - alternative_hops_s
    return max(SLOWER * alternative_s - own_hops_s, SLOWER * computes_s, computes_s + WORTH_S)


@dataclass(slots=True)
class _Streak:
    """Slow reports of one stage in a row."""

    since_s: float
    last_s: float


class Handovers:
    """One session's judgement of its stages, by place. It has no clock: the reports say what time it is.

    A report is slow if its step or what it holds takes longer than the limit, quick if a step took less; one of a stage
    that has finished no step and holds none for long says nothing.
    """

    def __init__(self) -> None:
        self._streaks: dict[int, _Streak] = {}
        self._reports: dict[int, Report] = {}
        self._handed_s: float | None = None

    def note(self, place: int, report: Report, limit_s: float | None) -> bool:
        """Take a report of a stage that decodes; True if the stage is to be handed over now.

        ``limit_s`` None: there is nobody else. True comes once in ``BETWEEN_S`` at most.
        """
        self._reports[place] = report
        takes_s = max(report.step_s or 0.0, report.held_s)
        if limit_s is None or takes_s <= limit_s:
            if limit_s is None or report.step_s is not None:
                self._streaks.pop(place, None)
            return False
        streak = self._streaks.get(place)
        if streak is None or report.at_s - streak.last_s > SILENT_S + limit_s:
            streak = self._streaks[place] = _Streak(report.at_s, report.at_s)
        streak.last_s = report.at_s
        rested = self._handed_s is None or report.at_s - self._handed_s >= BETWEEN_S
        if not rested or report.at_s - streak.since_s < SLOW_FOR_S:
            return False
        self._handed_s = report.at_s
        self.restart()
        return True

    def see(self, place: int, report: Report) -> None:
        """Take a report that says nothing about decoding, as while a prompt is computed: it ends every streak."""
        self._streaks.clear()
        self._reports[place] = report

    def restart(self) -> None:
        """Other servers stand in the chain, or other work begins: what was reported is of no use any more."""
        self._streaks.clear()
        self._reports.clear()

    def holder(self, now_s: float) -> int | None:
        """Who holds up the steps under way: of the stages that reported lately, the one that holds its oldest longest.

        None if nobody admits to holding any.
        """
        return holder(self._reports, now_s)


def holder(reports: Mapping[int, Report], now_s: float) -> int | None:
    """See ``Handovers.holder``. Ties go to the later stage: what it holds has passed all before it."""
    holding = [
        (report.held_s, place)
        for place, report in reports.items()
        if report.held_s > 0 and now_s - report.at_s <= RECENT_S
    ]
    return max(holding)[1] if holding else None
