"""The health page as a process: over a swarm of processes, over nobody, and when what it stands on goes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import httpx2
from directory_nodes import Create, address_of
from prometheus_client.parser import text_string_to_metric_families

SEEN_S = 30.0


def said(process: Any, name: str) -> dict[str, Any]:
    """The event ``name`` of a process that prints them as JSON."""
    for _ in range(10):
        line = process.line(120.0)
        assert line is not None, process.stderr
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            return event
    raise AssertionError(f"never said {name!r}; standard error: {process.stderr}")


def test_three_servers_on_a_page(
    launcher: Any, swarm30: list[Any], eventually: Callable[[Callable[[], bool], float], None]
) -> None:
    process = launcher.run(
        "swarm.health", "--initial-peers", swarm30[1].address, "--port", "0", "--json", "--no-history"
    )  # fmt: skip
    script = launcher.run("swarm.health", "--initial-peers", swarm30[0].address, "--once")
    url = said(process, "listening")["url"]
    watching = said(process, "watching")
    assert (watching["models"], watching["servers"]) == (1, 3)
    process.note_children()

    with httpx2.Client(base_url=url, trust_env=False, timeout=30.0) as client:

        def servers() -> dict[str, Any]:
            [model] = client.get("/api/v1/state").json()["models"]
            return {server["peer"]: server for server in model["servers"]}

        peers = {server.peer for server in swarm30}
        eventually(lambda: all(one["stats"] for one in servers().values()) and set(servers()) == peers, SEEN_S)
        assert {one["condition"] for one in servers().values()} == {"serving"}
        assert sorted((one["start"], one["end"]) for one in servers().values()) == [(0, 10), (10, 20), (20, 30)]

        with client.stream("GET", "/api/v1/stream") as stream:
            lines = stream.iter_lines()
            [data] = [line for line, _ in zip(lines, range(6), strict=False) if line.startswith("data: {")]
            assert {one["peer"] for one in json.loads(data[6:])["models"][0]["servers"]} == peers

        metrics = client.get("/metrics").text
        families = {one.name: one.samples for one in text_string_to_metric_families(metrics)}
        assert [sample.value for sample in families["swarm_layers_missing"]] == [0.0]
        counted = {sample.labels["condition"]: sample.value for sample in families["swarm_servers"]}
        assert counted["serving"] == 3.0
        assert not [peer for peer in peers if peer in metrics]

        assert client.get("/healthz").status_code == 200
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]

    line = script.line(60.0)
    assert line is not None, script.stderr
    assert {server["peer"] for server in json.loads(line)["models"][0]["servers"]} == peers
    assert script.wait() == 0, script.stderr

    process.signal(signal.SIGINT)
    assert process.wait() == 0, process.stderr
    assert process.stderr == ""
    assert not [child for child in process.family if child.is_running()]


async def test_a_page_over_nobody_and_its_daemon_dies(launcher: Any, create: Create) -> None:
    transport, _ = await create()
    process = launcher.run(
        "swarm", "health", "--initial-peers", address_of(transport), "--port", "0", "--json", "--no-history"
    )  # fmt: skip
    # In a thread: the node that it joins through lives in this process.
    url = (await asyncio.to_thread(said, process, "listening"))["url"]
    assert (await asyncio.to_thread(said, process, "watching"))["servers"] == 0
    process.note_children()
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=30.0) as client:
        state = (await client.get("/api/v1/state")).json()
        assert state["models"] == []
        assert (await client.get("/healthz")).status_code == 200
    [daemon] = [child for child in process.family if child.name() == "p2pd"]
    daemon.kill()
    assert await asyncio.to_thread(process.wait) == 4
    [line] = process.stderr.splitlines()
    assert line.startswith("error: ")
    assert "daemon" in line
