"""One line about what goes on now: redrawn every second on a terminal, written now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from swarm.models.progress import columns_of, fit, human_s
from swarm.runtime.logs import printable

Text = Callable[[float], str]
"""What the line says after so many seconds."""

TICK_S = 1.0
QUIET_S = 0.5
"""What takes less than this is not worth a line."""
LOG_AFTER_S = 5.0
"""Without a terminal: when the first line is written; the next ones after four times as long each."""
LOG_FACTOR = 4.0


class LiveLine:
    """Says what is being waited for, and for how long, until it is cleared.

    It has a thread of its own, because those who wait block one, or an event loop. ``logs`` False writes nothing where
    no terminal is.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        columns: Callable[[TextIO], int] = columns_of,
        tick_s: float = TICK_S,
        logs: bool = True,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._columns = columns
        self._tick_s = tick_s
        self._terminal = stream.isatty()
        self._logs = logs
        self._lock = threading.RLock()
        self._text: Text | None = None
        self._began_s = 0.0
        self._drawn = ""
        self._log_s = LOG_AFTER_S
        self.muted = False
        """True while something else is redrawn on the same terminal."""
        self._stop: threading.Event | None = None
        """Ends the thread, while there is one."""

    @property
    def text(self) -> Text | None:
        """What is said now."""
        return self._text

    def show(self, text: Text) -> None:
        """Say ``text`` from now on, in place of what was said before."""
        with self._lock:
            self._text, self._began_s, self._log_s = text, self._clock(), LOG_AFTER_S
            if self._drawn:
                self.tick()
            if self._stop is None and (self._terminal or self._logs):
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=[self._stop], daemon=True, name="live line").start()

    def clear(self) -> None:
        """Say nothing any more, and leave no trace of it on a terminal."""
        with self._lock:
            self._text = None
            self.lift()
            if self._stop is not None:
                self._stop.set()
                self._stop = None

    def lift(self) -> None:
        """Make room for other output; the line comes back below it with the next tick."""
        with self._lock:
            if self._drawn:
                self._write("\r\x1b[K")
                self._drawn = ""

    def tick(self) -> None:
        """Draw the line as it is now."""
        with self._lock:
            if self._text is None or self.muted:
                return
            seconds = self._clock() - self._began_s
            if not self._terminal:
                if self._logs and seconds >= self._log_s:
                    self._log_s = seconds * LOG_FACTOR
                    self._write(f"{printable(self._text(seconds))}\n")
                return
            drawn = fit(printable(self._text(seconds)), self._columns(self._stream))
            if drawn != self._drawn:
                self._write(f"\r\x1b[K{drawn}")
                self._drawn = drawn

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream closed: nobody looks
            self._text = None

    def _run(self, stop: threading.Event) -> None:
        if not stop.wait(QUIET_S):
            self.tick()
        while not stop.wait(self._tick_s):
            self.tick()


@contextmanager
def waiting(line: LiveLine, what: str | Text) -> Iterator[None]:
    """Inside, ``line`` says what is being waited for: ``joining the swarm, 12 s``; afterwards what it said before."""
    before = line.text
    line.show(what if callable(what) else lambda seconds: f"{what}, {human_s(seconds)}")
    try:
        yield
    finally:
        line.clear()
        if before is not None:
            line.show(before)
