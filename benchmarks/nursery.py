"""Where processes of ours are forked: ``python -m benchmarks.nursery`` has imported everything they need.

Imports are most of what a server's start costs, and whoever starts servers all the time would measure little else.
Nursery and user talk over a socket: an order is what one would type after ``python -m`` (or the path of a script), with
four descriptors: the new process's standard streams, and where its exit code shall be written. The answer is its
process id. When the socket is closed, every process is killed. Needs Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from swarm.core.errors import NetworkError

EXIT_EVENT = "exit"
_SPARED = (
    "swarm.cli.hosting.host",
    "swarm.client.blocking",
    "benchmarks.cheaters.catalogue",
    "transformers.models.llama.modeling_llama",
)
"""What processes need not import: all that takes long, and what imports it."""
_IMPORTS_S = 60.0
_ORDER_BYTES = 1 << 16
_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of ``prctl(2)``."""


class Forked:
    """A process of the nursery's. It has of ``subprocess.Popen`` what its users need, with the same meaning."""

    def __init__(self, arguments: Sequence[str], pid: int, code: int, stdin: IO[str] | None, stdout: IO[str] | None):
        self.args = arguments
        self.pid = pid
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._code = open(code, "rb", buffering=0)  # noqa: SIM115  open until the code has come
        self._ended = select.poll()
        self._ended.register(self._code, select.POLLIN)

    def poll(self) -> int | None:
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        """The exit code, a signal's number below zero; None if the process still runs after ``timeout_s``."""
        if self.returncode is None and self._ended.poll(None if timeout_s is None else timeout_s * 1000):
            said = self._code.read(8)
            self._code.close()
            self.returncode = int(said) if said else -signal.SIGKILL  # without a word it went with the nursery
        return self.returncode


class Nursery:
    """The nursery's process, seen from outside. Use it in a ``with`` block: at its end every process is dead."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        """It imports from now on; ``prefix`` is a command to run it with."""
        self._orders, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "benchmarks.nursery", str(far.fileno())],
                cwd=Path(__file__).parents[1],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
            )

    def run(self, arguments: Sequence[str], errors: IO[bytes]) -> Forked:
        """What ``python -m`` with ``arguments`` does, or ``python`` where the first is a script's path.

        Pipes lead to its standard input and from its standard output, as text; ``errors`` is its standard error.
        """
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        try:
            pid, code = self._fork(arguments, theirs_in, theirs_out, errors.fileno())
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return Forked(arguments, pid, code, open(stdin, "w"), open(stdout))

    def server(self, arguments: Sequence[str], out: Path, errors: Path, cheat: str = "") -> psutil.Process:
        """A new ``python -m swarm.server`` with ``arguments``, its output in two files.

        With the name of a ``cheat``, ``python -m benchmarks.cheaters`` instead. The last line of ``out`` is the event
        ``exit`` with its ``code``, unless it is killed.
        """
        with open(os.devnull) as nothing, out.open("ab") as said, errors.open("ab") as complained:
            streams = (nothing.fileno(), said.fileno(), complained.fileno())
            pid, code = self._fork(["benchmarks.served", cheat, *arguments], *streams)
        os.close(code)
        return psutil.Process(pid)

    def _fork(self, arguments: Sequence[str], *streams: int) -> tuple[int, int]:
        """The new process's id, and where its exit code will come."""
        code, theirs = os.pipe()
        try:
            socket.send_fds(self._orders, [json.dumps(list(arguments)).encode()], [*streams, theirs])
            answer = self._orders.recv(_ORDER_BYTES)
        except OSError:
            answer = b""
        finally:
            os.close(theirs)
        if not answer:
            os.close(code)
            raise NetworkError("the process that starts the servers has ended", hint="see what it printed")
        return int(answer), code

    def close(self) -> None:
        """End it, and with it every process. Idempotent."""
        self._orders.close()
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


class _Cradle:
    """The nursery seen from inside: what it has to tell of whom, and what a child must not keep."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._ended, self._wake = os.pipe()
        self._codes: dict[int, int] = {}
        """Where the exit code of each process goes."""
        self._prctl = ctypes.CDLL(None).prctl

    def rock(self) -> list[str]:
        """Fork for every order. It returns in each child with what to run, and in the nursery at its end, with nothing.

        Thus a child's stack is as good as empty, and it ends as Python ends.
        """
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([self._orders.fileno(), self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._bury()
            if self._orders.fileno() in ready:
                order, descriptors, _, _ = socket.recv_fds(self._orders, _ORDER_BYTES, 4)
                if not order:
                    break
                if (child := os.fork()) == 0:
                    self._become(descriptors)
                    return [str(word) for word in json.loads(order)]
                *streams, self._codes[child] = descriptors
                for stream in streams:
                    os.close(stream)
                self._orders.send(str(child).encode())
        for child in self._codes:
            os.kill(child, signal.SIGKILL)
        return []

    def _bury(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                code = self._codes.pop(pid)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(code, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(code)

    def _become(self, descriptors: Sequence[int]) -> None:
        """A process like any other, in the child."""
        self._prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._orders.close()
        for to, stream in enumerate(descriptors[:3]):
            os.dup2(stream, to)
        for other in (*descriptors, self._ended, self._wake, *self._codes.values()):
            os.close(other)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115  as long as it lives
        sys.stdout = sys.__stdout__ = _unbuffered(1, "strict")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _unbuffered(2, "backslashreplace")  # type: ignore[misc]


def _unbuffered(descriptor: int, errors: str) -> io.TextIOWrapper:
    """A standard stream as PYTHONUNBUFFERED has it: the nursery's own remember what kind of file theirs was."""
    raw = open(descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115  open as long as the process
    return io.TextIOWrapper(raw, errors=errors, write_through=True)


def main(orders: int) -> None:
    """Import, fork for every order, and become what was ordered."""
    for module in _SPARED:
        import_module(module)
    gc.freeze()  # shared with every child for as long as nobody writes to it
    program, *sys.argv[1:] = _Cradle(socket.socket(fileno=orders)).rock() or [""]
    if program.endswith(".py"):
        sys.argv[0], sys.path[0] = program, str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")
    elif program:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
