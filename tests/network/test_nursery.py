"""Processes that are forked where everything is imported are like any others: streams, signals, exit codes."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from processes_at_hand import Launcher

from benchmarks.nursery import Nursery

ECHO = """
import atexit, os, sys
from beside import GREETING
assert __name__ == "__main__"
atexit.register(lambda: print("bye", len(os.listdir("/proc/self/fd")), flush=True))
print(GREETING, *sys.argv[1:], os.getpid(), len(sys.modules) > 2000, flush=True)
for line in sys.stdin:
    if line == "exit\\n":
        raise SystemExit(3)
    print(line.upper(), end="", flush=True)
    print("error", file=sys.stderr)
"""


@pytest.fixture
def echo(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("GREETING = 'hello'\n")
    script = tmp_path / "echo.py"
    script.write_text(ECHO)
    return str(script)


@pytest.fixture(autouse=True)
def possible(nursery: Nursery | None) -> None:
    if nursery is None:
        pytest.skip("needs Linux")


def test_streams_arguments_and_exit_codes_are_its_own(launcher: Launcher, echo: str) -> None:
    first, second = (launcher.run(echo, word) for word in ("one", "two words"))
    assert first.line(20.0) == f"hello one {first.pid} True"
    assert second.line(20.0) == f"hello two words {second.pid} True"
    first.process.stdin.write("abc\nexit\n")
    first.process.stdin.close()
    assert first.wait() == 3
    assert first.rest() == ["ABC", "bye 4"]  # what it has open: three streams, and the folder it looks at
    assert first.stderr == "error\n"
    assert second.process.poll() is None
    second.process.stdin.close()
    assert second.wait() == 0
    assert second.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_signals_do_what_they_do(launcher: Launcher, echo: str, number: signal.Signals) -> None:
    process = launcher.run(echo)
    process.line(20.0)
    with pytest.raises(subprocess.TimeoutExpired):
        process.process.wait(0.05)
    process.signal(number)
    assert process.wait() == -number
    assert ("KeyboardInterrupt" in process.stderr) is (number is signal.SIGINT)
    process.signal(number)  # nobody's any more


def test_a_module_that_is_not_there(launcher: Launcher) -> None:
    process = launcher.run("swarm.nothing")
    assert process.wait() == 1
    assert "swarm.nothing" in process.stderr
