"""When a volunteer wants to serve: windows of local time, repeated every week."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from swarm.core.errors import ConfigError

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
WEEK_MIN = 7 * DAY_MIN
AHEAD_S = 15 * 86_400
"""How far ``next_change`` looks: a window of one day a week that a clock change swallows comes again the week after."""
MAX_CHARS = 500
EXAMPLE = 'write it like "22:00-08:00" or "mon-fri 18:00-08:00, sat-sun"'
_TIMES = re.compile(r"([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True, slots=True)
class Hours:
    """Weekly windows of local time. ``edges`` are minutes after Monday 00:00 at which it opens and closes in turn."""

    text: str
    edges: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``"22:00-08:00"`` or ``"mon-fri 18:00-08:00, sat-sun"``.

        Windows are separated by commas. A window is days (``sat``, ``mon-fri``; none: every day), times (none: all
        day), or both. One that ends before it begins goes on into the next morning, and belongs to the day on which it
        begins. Raises ``ConfigError`` that quotes what cannot be read.
        """
        if len(text) > MAX_CHARS:
            raise ConfigError(f"a schedule of {len(text)} characters", hint=EXAMPLE)
        minutes = [False] * WEEK_MIN
        for window in text.lower().split(","):
            for start, length in _windows(window.split(), window.strip()):
                for minute in range(start, start + length):
                    minutes[minute % WEEK_MIN] = True
        if all(minutes):
            return cls(text, (0, WEEK_MIN))
        return cls(text, tuple(at for at in range(WEEK_MIN + 1) if _at(minutes, at) != _at(minutes, at - 1)))

    @property
    def always(self) -> bool:
        """True if it never closes."""
        return self.edges == (0, WEEK_MIN)

    def open_at(self, week_min: int) -> bool:
        """True if a window holds the minute ``week_min`` of the week, by the clock on the wall. O(log windows)."""
        return bisect_right(self.edges, week_min) % 2 == 1

    def next_change(self, now_s: float, wall: Callable[[float], int]) -> float | None:
        """When, after ``now_s`` (seconds since 1970), it opens if it is shut now, or shuts if it is open.

        ``wall`` says which minute of the week the clock on the wall shows at such a time: so where clocks are put
        forward or back, a window begins and ends by the wall, and one that lies in the hour that is left out does not
        come. None if it never changes within ``AHEAD_S``. O(minutes until then): some 10 ms for a week.
        """
        if self.always:
            return None
        is_open = self.open_at(wall(now_s))
        first_s = int(now_s // 60 + 1) * 60
        for at_s in range(first_s, first_s + AHEAD_S, 60):
            if self.open_at(wall(at_s)) != is_open:
                return float(at_s)
        return None


def _at(minutes: list[bool], at: int) -> bool:
    """Whether that minute is inside; nothing is before the week's first and after its last."""
    return 0 <= at < WEEK_MIN and minutes[at]


def _windows(words: list[str], window: str) -> list[tuple[int, int]]:
    """First minute in the week and length of one window, for each of its days."""
    if not words or len(words) > 2:
        raise ConfigError(f"cannot read the window {window!r} of the schedule", hint=EXAMPLE)
    days, start, end = list(range(7)), 0, DAY_MIN
    if words[0][0].isdigit() and len(words) == 2:
        raise ConfigError(f"days come before times in {window!r}", hint=EXAMPLE)
    if not words[0][0].isdigit():
        days = _days(words[0], window)
    if words[-1][0].isdigit():
        start, end = _times(words[-1], window)
    elif len(words) == 2:
        raise ConfigError(f"cannot read the times {words[-1]!r} of the schedule", hint=EXAMPLE)
    length = end - start if end > start else end - start + DAY_MIN
    return [(day * DAY_MIN + start, length) for day in days]


def _days(word: str, window: str) -> list[int]:
    first, dash, last = word.partition("-")
    last = last if dash else first
    if first not in DAYS or last not in DAYS:
        raise ConfigError(
            f"no day {word!r} in the window {window!r} of the schedule", hint=f"days are {', '.join(DAYS)}"
        )
    count = (DAYS.index(last) - DAYS.index(first)) % 7 + 1
    return [(DAYS.index(first) + step) % 7 for step in range(count)]


def _times(word: str, window: str) -> tuple[int, int]:
    match = _TIMES.fullmatch(word)
    if match is None:
        raise ConfigError(f"cannot read the times {word!r} of the schedule", hint=EXAMPLE)
    start, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    whole_minutes = int(match[2]) < 60 and int(match[4]) < 60
    if not whole_minutes or start >= DAY_MIN or end > DAY_MIN:
        raise ConfigError(f"no such time of day in {window!r}", hint="00:00 to 23:59; a window may end at 24:00")
    if start == end:
        raise ConfigError(f"the window {window!r} is empty", hint="leave the times out for the whole day")
    return start, end
