"""A first peer without layers: a server and a client find each other through it, and it comes back where it was."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from swarm.cli.commands.bootstrap import Bootstrap, running
from swarm.cli.main import build_parser, main
from swarm.cli.output.console import JsonConsole
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
    with redirect_stdout(StringIO()) as status:
        assert main(["status", "--host", "127.0.0.1", "--initial-peers", address, "--json"]) == 0
    told = json.loads(status.getvalue())
    assert [found["id"] for found in told["servers"]] == [server.peer]
    while (health := event(first, "health"))["peers"] < 1 or not health["records"]:
        pass
    assert health["refused"] == 0
    first.signal(signal.SIGINT)
    assert first.wait() == 0


@asynccontextmanager
async def begun(key: Path, address: str, other: str) -> AsyncIterator[tuple[Bootstrap, StringIO]]:
    """A bootstrap peer in this process that joins through ``other``, and what it says."""
    port = address.split("/")[4]
    parser = build_parser(typed := ["bootstrap", "--host", "127.0.0.1", "--port", port, "--initial-peers", other])
    told = StringIO()
    async with running(parser.parse_args(typed), JsonConsole(told), key) as node:
        work = node.start(60.0)
        try:
            yield node, told
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def test_two_may_name_each_other_and_keep_their_addresses(tmp_path: Path) -> None:
    """Whichever starts first finds nobody and goes on. Key and port make the address, so it outlives the process."""
    keys = tmp_path / "a", tmp_path / "b"
    one, other = (f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{load_or_create(key).peer_id}" for key in keys)
    async with begun(keys[0], one, other) as (first, said), begun(keys[1], other, one) as (second, _):
        assert "none of --initial-peers answers yet" in said.getvalue()
        async with asyncio.timeout(START_S):
            while not (first.directory.known() and second.directory.known() and one in said.getvalue()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert second.directory.known() == {first.transport.peer_id}
