"""Where server processes are forked: ``python -m benchmarks.nursery`` has imported everything a server needs.

Imports are most of what a server's start costs, and whoever restarts servers all the time would measure little else.
It reads orders, one JSON object a line, from standard input and answers each with the new process's id; when standard
input ends, so do the servers. Needs ``fork``.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil

from swarm.core.errors import NetworkError

READY = "imported"
EXIT_EVENT = "exit"
_IMPORTS_S = 60.0
_CRASHED = 70


class Nursery:
    """The nursery's process, seen from outside. Use it in a ``with`` block: at its end every server is dead."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.nursery"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._imported = False

    def server(self, arguments: Sequence[str], out: Path, errors: Path, cheat: str = "") -> psutil.Process:
        """A new ``python -m swarm.server`` with ``arguments``, its output in two files.

        With the name of a ``cheat``, ``python -m benchmarks.cheaters`` instead. The last line of ``out`` is the event
        ``exit`` with its ``code``, unless it is killed.
        """
        self._imported = self._imported or self._answer() == READY
        if self._process.stdin is None or not self._imported:
            raise NetworkError("the process that starts the servers did not start itself", hint="see what it printed")
        order = {"arguments": list(arguments), "out": str(out), "errors": str(errors), "cheat": cheat}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return psutil.Process(int(self._answer()))

    def _answer(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise NetworkError("the process that starts the servers has ended", hint="see what it printed")
        return line.rstrip("\n")

    def close(self) -> None:
        """End it, and with it every server. Idempotent."""
        if not self._imported:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_IMPORTS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def main() -> int:
    """Fork a server for every order; kill those that are left when no more come."""
    import benchmarks.cheaters.catalogue  # noqa: F401 - this is what the servers are spared
    import swarm.cli.hosting.host  # noqa: F401

    gc.freeze()  # shared with every child for as long as nobody writes to it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    print(READY, flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become_server(json.loads(line))
        print(child, flush=True)
    for server in psutil.Process().children():
        server.kill()
    return 0


def _become_server(order: dict[str, object]) -> None:
    """Never returns: what stands on the stack below belongs to the nursery."""
    code = _CRASHED
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect(os.devnull, os.O_RDONLY, 0)
        _redirect(str(order["out"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1)
        _redirect(str(order["errors"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 2)
        arguments = order["arguments"]
        code = _serve([str(argument) for argument in arguments] if isinstance(arguments, list) else [], order["cheat"])
        print(json.dumps({"event": EXIT_EVENT, "code": code}), flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(arguments: list[str], cheat: object) -> int:
    from benchmarks.cheaters.__main__ import main as cheating
    from swarm.cli.main import serve

    return cheating([str(cheat), *arguments]) if cheat else serve(arguments)


def _redirect(path: str, flags: int, to: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, to)
    os.close(opened)


if __name__ == "__main__":
    raise SystemExit(main())
