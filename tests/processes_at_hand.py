"""Our commands as processes on loopback: started, watched and ended."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from benchmarks.nursery import Nursery

READY_S = 120.0
"""From launch to READY. Imports alone take five seconds of a free core, and the cores are shared."""
END_S = 30.0

# What clients learn of servers is kept for them all: not among what the person who runs these tests has learnt.
_DATA = tempfile.TemporaryDirectory(prefix="swarm-tests-")
os.environ["XDG_DATA_HOME"] = _DATA.name

QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

# Children die with this process, however it dies.
_GUARD = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery | None]:
    """Where processes are forked that would else import everything anew; None where that is not possible."""
    if sys.platform != "linux":
        yield None
        return
    with Nursery(_GUARD) as nursery:
        yield nursery


@dataclass
class Command:
    """A process of ours (a module or a script): standard output line by line as it comes, standard error in a file.

    With ``folder`` it is what a person typed there instead: one argument, for a shell. With a ``nursery`` it is forked
    there.
    """

    arguments: Sequence[str]
    errors: Path
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    family: list[psutil.Process] = field(default_factory=list)
    prefix: Sequence[str] = ()
    folder: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    nursery: Nursery | None = None
    said: list[str] = field(default_factory=list)
    """Lines that ``until`` has read."""

    def __post_init__(self) -> None:
        with self.errors.open("wb") as errors:
            self.process = self._start(errors) if self.nursery is None else self.nursery.run(self.arguments, errors)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, errors: IO[bytes]) -> subprocess.Popen[str]:
        how = [] if self.arguments[0].endswith(".py") else ["-m"]
        program = ["bash", "-c"] if self.folder is not None else [sys.executable, *how]
        return subprocess.Popen(
            [*_GUARD, *self.prefix, *program, *self.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**QUIET, **self.environment}, cwd=self.folder,
        )  # fmt: skip

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self.errors.read_text(errors="replace")

    def line(self, timeout_s: float) -> str | None:
        """The next line, or None at the end of the output; fails after ``timeout_s``."""
        try:
            return self.lines.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"nothing said in {timeout_s:g} s; standard error: {self.stderr}") from None

    def until(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Wait for a line that matches ``pattern`` somewhere; fails if the output ends, or after ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while (line := self.line(max(deadline_s - time.monotonic(), 0.01))) is not None:
            self.said.append(line)
            if (found := re.search(pattern, line)) is not None:
                return found
        raise AssertionError(f"ended before {pattern!r}; standard error: {self.stderr}")

    def rest(self) -> list[str]:
        """What it said to its end that nobody has read yet."""
        said: list[str] = []
        while (line := self.line(END_S)) is not None:
            said.append(line)
        return said

    def note_children(self) -> None:
        """Remember the daemons, to see later that none is left."""
        self.family = psutil.Process(self.pid).children(recursive=True)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = END_S) -> int:
        """The exit code; fails if the process does not end in time."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:g} s; standard error: {self.stderr}") from None
        self._reader.join(END_S)
        return code

    def end(self) -> None:
        """Whatever happened before: the process and its daemons are gone after this."""
        if self.process.poll() is None:
            self.family += psutil.Process(self.pid).children(recursive=True)
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.family:
            if process.is_running():
                process.kill()
        self._reader.join(END_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue


class ServerProcess(Command):
    """``python -m swarm.server --json``: its events as they come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.events: list[dict[str, Any]] = []
        self.peak_bytes = 0  # resident, from the start to READY

    def event(self, name: str, timeout_s: float = READY_S) -> dict[str, Any]:
        """Wait for the event ``name``, or find it among those seen; fails if the output ends or time runs out."""
        for event in self.events:
            if event["event"] == name:
                return event
        deadline_s = time.monotonic() + timeout_s
        while (line := self.line(max(deadline_s - time.monotonic(), 0.01))) is not None:
            self.events.append(json.loads(line))  # each line of --json is an object, or the test fails here
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError(f"ended before {name!r}; events {self.events}; standard error: {self.stderr}")

    def ready(self) -> ServerProcess:
        """Wait until it is READY."""
        self.event("ready")
        self.note_children()
        self.peak_bytes = _peak_bytes(self.pid)
        return self

    @property
    def address(self) -> str:
        address: str = self.event("banner")["addresses"][0]
        return address

    @property
    def peer(self) -> str:
        peer: str = self.event("banner")["peer"]
        return peer


def _peak_bytes(pid: int) -> int:
    """The highest resident size so far, as the kernel counted it (what ``ru_maxrss`` is after the end)."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@dataclass
class Launcher:
    """Starts processes with files in one folder, and ends them all.

    They are forked in the ``nursery``, which spares each some five seconds of imports. ``anew`` asks for one that
    imports as on a user's machine, for what happens meanwhile.
    """

    folder: Path
    nursery: Nursery | None = None
    started: list[Command] = field(default_factory=list)

    def server(
        self,
        blocks: str,
        *options: str,
        join: str = "",
        key: str = "",
        lan: str = "",
        model: str = "demo",
        program: Sequence[str] = ("swarm.server",),
        prefix: Sequence[str] = (),
        anew: bool = False,
    ) -> ServerProcess:
        """A server for ``blocks``; it joins through the address ``join``, or starts a swarm. Not READY yet.

        With ``lan``, the name of a swarm, it does what the local network asks for.

        ``key`` names the identity file in the launcher's folder; by default every server has its own. ``program`` is a
        module or a script that takes the arguments of ``swarm.server`` after its own, ``prefix`` a command to run it
        with.
        """
        identity = self.folder / (key or f"{len(self.started)}.key")
        where = ["--initial-peers", join] if join else ["--new-swarm"]
        where = ["--lan", "--lan-name", lan] if lan else where
        arguments = [*program, "--model", model, "--blocks", blocks, "--json", "--identity", str(identity)]
        arguments += ["--host", "127.0.0.1", "--threads", "1", *where, *options]
        process = ServerProcess(arguments, self._errors(), prefix=prefix, nursery=self._nursery(anew, prefix))
        self.started.append(process)
        return process

    def run(self, *arguments: str, prefix: Sequence[str] = (), anew: bool = False) -> Command:
        """Any other command, ``prefix`` and ``python -m`` before it."""
        process = Command(arguments, self._errors(), prefix=prefix, nursery=self._nursery(anew, prefix))
        self.started.append(process)
        return process

    def shell(self, command: str, *, folder: Path, environment: Mapping[str, str]) -> Command:
        """What a person typed in ``folder``."""
        process = Command([command], self._errors(), folder=folder, environment=environment)
        self.started.append(process)
        return process

    def chain(self, *spans: str, options: Sequence[str] = ()) -> list[ServerProcess]:
        """READY servers for ``spans``, the first one starting the swarm that the others join."""
        first = self.server(spans[0], *options).ready()
        rest = [self.server(span, *options, join=first.address) for span in spans[1:]]
        return [first, *(server.ready() for server in rest)]

    def _errors(self) -> Path:
        return self.folder / f"{len(self.started)}.err"

    def _nursery(self, anew: bool, prefix: Sequence[str]) -> Nursery | None:
        return None if anew or prefix else self.nursery

    def end(self) -> None:
        for process in reversed(self.started):
            process.end()
