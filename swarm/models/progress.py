"""Progress in bytes: who moves bytes reports them through one plain callable, who owns a terminal draws them."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""``progress(label, done_bytes, total_bytes)``; ``total_bytes`` is 0 while unknown. May be called from any thread."""

REDRAW_S = 0.2
LOG_S = 5.0
"""Between two lines of one label where no terminal is."""
LOG_LATER_S = 30.0
"""The same after ``LOG_SOON_S``."""
LOG_SOON_S = 60.0
SPEED_S = 10.0
"""The speed is that of so long before."""
USUAL_COLUMNS = 80


def silent(label: str, done: int, total: int) -> None:
    """Report to nobody."""


def human_bytes(count: float) -> str:
    """A byte count for people, in powers of 1000: ``92.9 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_s(seconds: float) -> str:
    """A time for people, in its two largest units: ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = max(0, round(seconds))
    for large, small, names in ((86_400, 3600, "d h"), (3600, 60, "h min"), (60, 1, "min s")):
        if whole >= large:
            first, second = names.split()
            rest = whole % large // small
            return f"{whole // large} {first}" + (f" {rest} {second}" if rest else "")
    return f"{whole} s"


def columns_of(stream: TextIO) -> int:
    """How many characters of a line ``stream``'s terminal shows; 80 if it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_COLUMNS
    except (OSError, ValueError):  # no terminal, no descriptor
        return USUAL_COLUMNS


def fit(text: str, columns: int) -> str:
    """``text`` cut to one column less than there are, or the cursor would go on to the next line."""
    most = max(columns - 1, 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


class ProgressLine:
    """Draws one line per label: bytes, per cent, speed and time left.

    On a terminal the line is redrawn in place at most every ``REDRAW_S`` seconds, cut to its width; elsewhere (a log
    file) each label's first and last state are written, and every few seconds a line between. The speed is that of the
    last ``SPEED_S`` and counts only what moved meanwhile, so a resumed download does not boast of bytes it already had.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[TextIO], int] = columns_of,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._columns = columns
        self._terminal = stream.isatty()
        self._lock = threading.Lock()
        self._label = ""
        self._began_s = 0.0
        self._moved: deque[tuple[float, int]] = deque()
        self._drawn_s = float("-inf")
        self._finished = True

    def __call__(self, label: str, done: int, total: int) -> None:
        with self._lock:
            now_s = self._clock()
            if label != self._label:
                self._end()
                self._label, self._began_s, self._drawn_s = label, now_s, float("-inf")
                self._moved.clear()
            self._note(now_s, done)
            finished, first = 0 < total <= done, self._drawn_s == float("-inf")
            if finished and self._finished and not first:
                return
            if finished or first or now_s - self._drawn_s >= self._every_s(now_s):
                self._drawn_s, self._finished = now_s, finished
                self._draw(self._line(now_s, done, total), end=finished)

    def close(self) -> None:
        """End an unfinished line, so that what is written next starts on its own."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._terminal and not self._finished:
            self._stream.write("\n")
            self._stream.flush()
        self._finished = True

    def _every_s(self, now_s: float) -> float:
        if self._terminal:
            return REDRAW_S
        return LOG_S if now_s - self._began_s < LOG_SOON_S else LOG_LATER_S

    def _draw(self, line: str, *, end: bool) -> None:
        if self._terminal:
            line = f"\r\x1b[K{fit(line, self._columns(self._stream))}"
        self._stream.write(f"{line}\n" if end or not self._terminal else line)
        self._stream.flush()

    def _note(self, now_s: float, done: int) -> None:
        """Keep what is needed to know what moved in the last ``SPEED_S``: a point every half second."""
        if len(self._moved) > 1 and self._moved[-1][0] - self._moved[-2][0] < REDRAW_S:
            self._moved.pop()
        self._moved.append((now_s, done))
        while len(self._moved) > 2 and now_s - self._moved[1][0] >= SPEED_S:
            self._moved.popleft()

    def _line(self, now_s: float, done: int, total: int) -> str:
        parts = [f"{self._label}: {human_bytes(done)}"]
        if total:
            parts.append(f"of {human_bytes(total)} ({100 * done / total:.0f} %)")
        since_s, had = self._moved[0]
        if now_s > since_s and done > had:
            speed = (done - had) / (now_s - since_s)
            parts.append(f"at {human_bytes(speed)}/s")
            if total > done:
                parts.append(f"{human_s((total - done) / speed)} left")
        return " ".join(parts)
