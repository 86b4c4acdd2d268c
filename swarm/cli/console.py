"""What a server says: text for a person, or one JSON object a line for a program."""

from __future__ import annotations

import json
import time
from typing import Protocol, TextIO

from swarm.runtime.logs import printable


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


class HumanConsole:
    """Plain text, a blank line around blocks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def event(self, name: str, text: str, **fields: object) -> None:
        block = "\n" in text
        lines = [printable(line) for line in text.split("\n")]
        self._write("\n".join(["", *lines, ""] if block else lines))

    def warning(self, text: str) -> None:
        line = f"!!  {printable(text)}  !!"
        self._write("\n".join(["", "!" * len(line), line, "!" * len(line)]))

    def progress(self, label: str, done: int, total: int) -> None:
        """Drawn elsewhere (``ProgressLine``), on standard error."""

    def _write(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class JsonConsole:
    """One object a line: ``event``, ``time`` (seconds since 1970) and the event's own fields."""

    PROGRESS_EVERY_S = 1.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progressed_s = 0.0

    def event(self, name: str, text: str, **fields: object) -> None:
        line = json.dumps({"event": name, "time": round(time.time(), 3), **fields})
        print(line, file=self._stream, flush=True)

    def warning(self, text: str) -> None:
        self.event("warning", text, message=text)

    def progress(self, label: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done >= total or now_s - self._progressed_s >= self.PROGRESS_EVERY_S:
            self._progressed_s = now_s
            self.event("progress", label, label=label, done_bytes=done, total_bytes=total)
