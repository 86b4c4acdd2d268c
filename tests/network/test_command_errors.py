"""What a person sees who mistyped something: one line that says what to do, the right exit code, no traceback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.core.errors import SwarmError

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i"
SERVER = ("swarm.server", "--host", "127.0.0.1")
JOIN = (*SERVER, "--model", "demo", "--blocks", "0:10", "--initial-peers")
FIRST = (*SERVER, "--model", "demo", "--blocks", "0:10", "--new-swarm")


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m`` with ``arguments`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL
    )


Late = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def late(launcher: Any) -> Late:
    """The same for what comes to light only when everything is imported: that need not be done anew."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        process = launcher.run(*arguments)
        process.process.stdin.close()
        code = process.wait(180.0)
        return subprocess.CompletedProcess(arguments, code, "\n".join(process.rest()), process.stderr)

    return run


def check_one_line(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """The exit code, and a single line on standard error that starts with ``error:`` and holds ``parts`` in order."""
    assert done.returncode == code, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    rest = line
    for part in parts:
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is not in {line!r}, or not in this order"
    assert line.endswith(")"), "the next step stands at the end, in parentheses"


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """An identity of this test's own, so that no server of the machine's owner is in the way."""
    return ("--identity", str(tmp_path / "own.key"))


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        ((*SERVER, "--model", "demo", "--blocks", "0:10"), 2, ("needs either", "--new-swarm", "start a swarm")),
        ((*FIRST, "--initial-peers", NOBODY), 2, ("not both of", "join with an address")),
        ((*SERVER, "--model", "demo", "--new-swarm", "--blocks", "0-10"), 2, ("span '0-10'", "0:10")),
        ((*SERVER, "--model", "demo", "--new-swarm", "--blocks", "10:10"), 2, ("10:10 is empty", "a < b")),
        ((*SERVER, "--model", "demo", "--new-swarm", "--blocks", "25:35"), 2, ("25:35", "30 layers", "within 0:30")),
        ((*SERVER, "--model", "/no/such/folder", "--new-swarm", "--blocks", "0:1"), 2, ("/no/such/folder", "(")),
        ((*FIRST, "--announce", "example.org"), 2, ("--announce: 'example.org'", "write it like /ip4/")),
        ((*FIRST, "--relay", "/ip4/203.0.113.7/tcp/31337"), 2, ("--relay", "whose it is", "copy it whole")),
        ((*JOIN, "x"), 2, ("--initial-peers: 'x'", "/p2p/")),
        ((*FIRST, "--kv-tokens", "0"), 2, ("--kv-tokens is 0", "at least 1")),
        ((*FIRST, "--idle-timeout", "nan"), 2, ("--idle-timeout is nan", "seconds")),
        ((*FIRST, "--port", "70000"), 2, ("--port 70000", "any free one")),
        (("swarm", "generate", " ", "--model", "demo", "--initial-peers", NOBODY), 2, ("prompt is empty", "pipe")),
        (("swarm", "generate", "x", "--model", "demo", "--initial-peers", "x"), 2, ("--initial-peers: 'x'", "/p2p/")),
        (("swarm", "generate", "--initial-peers", NOBODY), 2, ("prompt is empty", "pipe")),
        (("swarm", "fetch", "/no/such/folder"), 2, ("/no/such/folder", "(")),
        (("swarm", "status", "--initial-peers", "x"), 2, ("--initial-peers: 'x'", "/p2p/")),
        (("swarm.health", "--initial-peers", NOBODY, "--allow-host", "a:1"), 2, ("--allow-host 'a:1'", "like")),
        (("swarm", "route", "--cluster", "/no/such/file"), 2, ("cannot read '/no/such/file'", "cluster-format.md")),
        (("swarm", "plan", "--cluster", "/no/such/file"), 2, ("cannot read '/no/such/file'", "cluster-format.md")),
    ],
)  # fmt: skip
def test_told_at_once(arguments: tuple[str, ...], code: int, parts: tuple[str, ...], own: tuple[str, ...]) -> None:
    done = ended(*arguments, *(own if "swarm.server" in arguments else ()))
    check_one_line(done, code, *parts)
    assert done.stdout == ""


def encoder_only(folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    return "not a causal language model"


def no_config(folder: Path) -> str:
    (folder / "README").write_text("weights are elsewhere")
    return "config.json"


def damaged_config(folder: Path) -> str:
    (folder / "config.json").write_text('{"model_type": ')
    return "config.json"


@pytest.mark.parametrize("spoil", [encoder_only, no_config, damaged_config])
def test_a_folder_that_is_no_model(spoil: Callable[[Path], str], tmp_path: Path, own: tuple[str, ...]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    reason = spoil(folder)
    done = ended(*SERVER, "--model", str(folder), "--blocks", "0:1", "--new-swarm", *own)
    check_one_line(done, 2, reason, "(")


def test_a_taken_port(own: tuple[str, ...], late: Late) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = late(*FIRST, "--port", str(port), *own)
    check_one_line(done, 2, f"127.0.0.1 port {port}", "in use", "choose another port")


@pytest.mark.parametrize(
    "arguments",
    [
        (*JOIN, NOBODY),
        ("swarm", "generate", "Hello", "--model", "demo", "--initial-peers", NOBODY),
        ("swarm", "generate", "--initial-peers", NOBODY, "Hello"),
        ("swarm", "status", "--initial-peers", NOBODY),
    ],
    ids=["server", "generate", "generate, prompt last", "status"],
)
def test_nobody_answers(arguments: tuple[str, ...], own: tuple[str, ...], late: Late) -> None:
    done = late(*arguments, *own)
    check_one_line(done, 4, "no initial peer answered", NOBODY, "refused", "check that one of them is running")
    assert "failed to dial" not in done.stderr


def test_never_ready_if_strangers_cannot_reach_it(own: tuple[str, ...], late: Late) -> None:
    """A wrong ``--announce``, a closed port: the self-probe dials what others are told, and nothing is announced."""
    closed = "/ip4/127.0.0.1/tcp/1"
    arguments = ("--model", "demo", "--blocks", "10:11", "--new-swarm", "--announce", closed, "--json")
    done = late(*SERVER, *arguments, *own)
    check_one_line(done, 4, "does not answer strangers", closed, "check that its port is open")
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert "banner" in events
    assert "ready" not in events
    assert events[-1] == "failed"


def test_v_shows_the_traceback(own: tuple[str, ...]) -> None:
    done = ended(*SERVER, "--model", "/no/such/folder", "--blocks", "0:1", "--new-swarm", "-v", *own)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    "command", ["swarm.server", "swarm.gateway", "swarm.health", "swarm", "swarm generate", "swarm chat", "swarm demo"]
)
def test_help_comes_without_torch(command: str) -> None:
    code = f"""
import runpy, sys
sys.argv = ["x", *{command.split()[1:]!r}, "--help"]
try:
    runpy.run_module({command.split()[0]!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == 0
heavy = {{"torch", "hivemind", "transformers"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout


def test_an_identity_in_use_on_this_machine(swarm30: list[Any]) -> None:
    key = next(Path(server.arguments[server.arguments.index("--identity") + 1]) for server in swarm30[:1])
    done = ended(*FIRST, "--identity", str(key))
    check_one_line(done, 2, str(key), f"in use by process {swarm30[0].pid}", "its own --identity")


def test_a_copied_identity(swarm30: list[Any], launcher: Any, model30: Any) -> None:
    """As on another machine, where no lock can tell: the later process goes, says why, and withdraws nothing."""
    first, original = swarm30[0], swarm30[1]
    key = Path(original.arguments[original.arguments.index("--identity") + 1])
    shutil.copy(key, launcher.folder / "copy.key")
    copy = launcher.server("10:20", "--dtype", "float32", join=first.address, key="copy.key")
    copy.event("ready")
    assert copy.peer == original.peer
    assert copy.event("failed", 60.0)["message"] == "another machine already serves with this identity"
    assert copy.wait() == 2
    [line] = copy.stderr.splitlines()
    assert line.startswith("error: another machine already serves with this identity (give this server its own key")
    assert original.process.poll() is None
    # The copy's last metrics stand in the original's place until that writes its own again, 4 s at most.
    deadline_s = time.monotonic() + 10.0
    while True:
        try:
            assert model30.generate("Hello", max_new_tokens=2).token_ids
            break
        except SwarmError as error:
            if time.monotonic() > deadline_s:
                pytest.fail(f"the original was withdrawn with the copy: {error}")
            time.sleep(0.5)
