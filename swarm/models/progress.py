"""Progress in bytes: who moves bytes reports them through one plain callable, who owns a terminal draws them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]
"""``progress(label, done_bytes, total_bytes)``; ``total_bytes`` is 0 while unknown. May be called from any thread."""

REDRAW_S = 0.2


def silent(label: str, done: int, total: int) -> None:
    """Report to nobody."""


def human_bytes(count: float) -> str:
    """A byte count for people, in powers of 1000: ``92.9 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class ProgressLine:
    """Draws one line per label: bytes, per cent, speed and time left.

    On a terminal the line is redrawn in place at most every ``REDRAW_S`` seconds; elsewhere (a log file) only the
    first and last state of each label are written, each on its own line. The speed counts only what moved since the
    label's first report, so a resumed download does not boast of bytes it already had.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._terminal = stream.isatty()
        self._label = ""
        self._start = (0.0, 0)
        self._drawn_at = float("-inf")
        self._finished = True

    def __call__(self, label: str, done: int, total: int) -> None:
        now = self._clock()
        if label != self._label:
            self.close()
            self._label, self._start, self._drawn_at = label, (now, done), float("-inf")
        finished = 0 < total <= done
        first = self._drawn_at == float("-inf")
        if (finished and self._finished and not first) or not (
            finished or first or (self._terminal and now - self._drawn_at >= REDRAW_S)
        ):
            return
        self._drawn_at, self._finished = now, finished
        end = "\n" if finished or not self._terminal else ""
        lead = "\r\x1b[K" if self._terminal else ""
        self._stream.write(f"{lead}{self._line(now, done, total)}{end}")
        self._stream.flush()

    def close(self) -> None:
        """End an unfinished line, so that what is written next starts on its own."""
        if self._terminal and not self._finished:
            self._stream.write("\n")
            self._stream.flush()
        self._finished = True

    def _line(self, now: float, done: int, total: int) -> str:
        parts = [f"{self._label}: {human_bytes(done)}"]
        if total:
            parts.append(f"of {human_bytes(total)} ({100 * done / total:.0f} %)")
        elapsed, moved = now - self._start[0], done - self._start[1]
        if elapsed > 0 and moved > 0:
            speed = moved / elapsed
            parts.append(f"at {human_bytes(speed)}/s")
            if total > done:
                parts.append(f"{(total - done) / speed:.0f} s left")
        return " ".join(parts)
