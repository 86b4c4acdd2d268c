"""A first peer without layers: a server and a client find each other through it, and it comes back where it was."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Any

from swarm.runtime.identity import load_or_create

START_S = 60.0


def event(process: Any, name: str, within_s: float = START_S) -> dict[str, Any]:
    """Wait for the event ``name`` of a process with ``--json``."""
    deadline_s = time.monotonic() + within_s
    while (line := process.line(max(deadline_s - time.monotonic(), 0.01))) is not None:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == name:
            return found
    raise AssertionError(f"ended before {name!r}: {process.stderr}")


def bootstrap(launcher: Any, key: str, *options: str) -> Any:
    identity = str(launcher.folder / key)
    arguments = ("swarm", "bootstrap", "--host", "127.0.0.1", "--identity", identity, "--json", "--report-every", "0.3")
    return launcher.run(*arguments, *options)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_server_and_a_client_meet_through_it(launcher: Any) -> None:
    first = bootstrap(launcher, "first.key", "--port", "0")
    [address] = event(first, "ready")["addresses"]
    server = launcher.server("0:1", join=address).ready()
    status = launcher.run("swarm", "status", "--host", "127.0.0.1", "--initial-peers", address, "--json")
    assert status.wait(START_S) == 0, status.stderr
    told = json.loads("".join(iter(lambda: status.lines.get_nowait() or "", "")))
    assert [found["id"] for found in told["servers"]] == [server.peer]
    while (health := event(first, "health"))["peers"] < 1 or not health["records"]:
        pass
    assert health["refused"] == 0
    first.signal(signal.SIGINT)
    assert first.wait() == 0


def test_two_may_name_each_other_and_keep_their_addresses(launcher: Any) -> None:
    """Whichever starts first finds nobody and goes on. Key and port make the address, so it outlives the process."""
    one, other = (
        f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{load_or_create(launcher.folder / key).peer_id}" for key in ("a", "b")
    )
    first = bootstrap(launcher, "a", "--port", one.split("/")[4], "--initial-peers", other)
    assert "none of --initial-peers answers yet" in event(first, "warning")["message"]
    assert event(first, "ready")["addresses"] == [one]
    second = bootstrap(launcher, "b", "--port", other.split("/")[4], "--initial-peers", one)
    assert event(second, "ready")["addresses"] == [other]
    for process in (first, second):
        while event(process, "health")["peers"] < 1:
            pass
