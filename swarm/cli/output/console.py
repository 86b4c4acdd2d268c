"""What a server says: text for a person, or one JSON object a line for a program."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from swarm.cli.output.live_line import LiveLine, Text, waiting
from swarm.models.progress import ProgressLine
from swarm.runtime.logs import make_room, printable

STATUS_EVERY_S = 300.0


class Console(Protocol):
    """Where a long-running command reports to."""

    def event(self, name: str, text: str, **fields: object) -> None:
        """Something happened: ``text`` for people, ``name`` and ``fields`` for programs."""
        ...

    def warning(self, text: str) -> None:
        """Something a person must not overlook."""
        ...

    def progress(self, label: str, done: int, total: int) -> None:
        """Bytes moved."""
        ...

    def waiting(self, what: str | Text) -> AbstractContextManager[None]:
        """Inside, something is being waited for; it is told with the seconds that have passed, if they are many.

        ``what`` may be a function of those seconds that gives the whole text.
        """
        ...

    def status(self, text: Text | None) -> None:
        """How things are while nothing happens, for people at a terminal; None: no more."""
        ...

    @property
    def status_every_s(self) -> float | None:
        """How often to tell that as an event instead; None where ``status`` shows it."""
        ...


class HumanConsole:
    """Plain text, a blank line around blocks. What goes on now is redrawn on ``errors``, standard error by default;
    where that is no terminal, what takes long is written to ``stream`` like anything else."""

    def __init__(self, stream: TextIO, errors: TextIO | None = None) -> None:
        errors = sys.stderr if errors is None else errors
        self._stream = stream
        self._terminal = errors.isatty()
        self._live = LiveLine(errors if self._terminal else stream)
        self._quiet = LiveLine(errors, logs=False)
        self._bytes = ProgressLine(errors)
        make_room(self._lift)

    def event(self, name: str, text: str, **fields: object) -> None:
        block = "\n" in text
        lines = [printable(line) for line in text.split("\n")]
        self._write("\n".join(["", *lines, ""] if block else lines))

    def warning(self, text: str) -> None:
        line = f"!!  {printable(text)}  !!"
        self._write("\n".join(["", "!" * len(line), line, "!" * len(line)]))

    def progress(self, label: str, done: int, total: int) -> None:
        self._mute(not 0 < total <= done)
        self._bytes(label, done, total)

    def waiting(self, what: str | Text) -> AbstractContextManager[None]:
        return waiting(self._live, what)

    @property
    def status_every_s(self) -> float | None:
        return None if self._terminal else STATUS_EVERY_S

    def status(self, text: Text | None) -> None:
        if text is None:
            self._quiet.clear()
        else:
            self._quiet.show(text)

    def _write(self, text: str) -> None:
        self._lift()
        self._mute(False)
        print(text, file=self._stream, flush=True)

    def _mute(self, muted: bool) -> None:
        for line in (self._live, self._quiet):
            line.lift()
            line.muted = muted

    def _lift(self) -> None:
        """Make room for a line of something else."""
        self._live.lift()
        self._quiet.lift()
        self._bytes.close()


class JsonConsole:
    """One object a line: ``event``, ``time`` (seconds since 1970) and the event's own fields."""

    PROGRESS_EVERY_S = 1.0
    status_every_s: float | None = 60.0
    WAITING_AFTER_S = 2.0
    WAITING_EVERY_S = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progressed_s = 0.0
        self._lock = threading.Lock()

    def event(self, name: str, text: str, **fields: object) -> None:
        line = json.dumps({"event": name, "time": round(time.time(), 3), **fields})
        with self._lock:
            print(line, file=self._stream, flush=True)

    def warning(self, text: str) -> None:
        self.event("warning", text, message=text)

    def progress(self, label: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done >= total or now_s - self._progressed_s >= self.PROGRESS_EVERY_S:
            self._progressed_s = now_s
            self.event("progress", label, label=label, done_bytes=done, total_bytes=total)

    @contextmanager
    def waiting(self, what: str | Text) -> Iterator[None]:
        over, began_s = threading.Event(), time.monotonic()

        def tell() -> None:
            pause_s = self.WAITING_AFTER_S
            while not over.wait(pause_s):
                pause_s = self.WAITING_EVERY_S
                seconds = time.monotonic() - began_s
                text = what(seconds) if callable(what) else what
                self.event("waiting", text, what=text, seconds=round(seconds, 1))

        threading.Thread(target=tell, daemon=True, name="waiting").start()
        try:
            yield
        finally:
            over.set()

    def status(self, text: Text | None) -> None:
        """A program asks for events."""
