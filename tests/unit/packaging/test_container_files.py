"""packaging/container: what the image is made of, its health check, and the swarm that compose.yaml describes."""

from __future__ import annotations

import importlib.util
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from swarm.cli.main import main
from swarm.server.config import ServerConfig

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "packaging" / "container"
ALIVE = FOLDER / "alive.py"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
INSTRUCTIONS = re.sub(r"\\\n\s*", "", (FOLDER / "Containerfile").read_text())
"""One a line."""


def words(instruction: str) -> list[str]:
    """What stands after an instruction, at each of its places."""
    return re.findall(rf"^{instruction} (.*)$", INSTRUCTIONS, re.MULTILINE)


def test_the_image_runs_as_nobody_special_and_stops_as_by_ctrl_c() -> None:
    assert words("USER") == ["10001:10001"]
    assert words("STOPSIGNAL") == ["SIGINT"]
    assert words("VOLUME") == ['["/data", "/cache"]']
    assert len(words("HEALTHCHECK --interval=30s")) == 1


def test_everything_installed_has_a_pinned_version() -> None:
    installs = re.findall(r"pip install (.*)", INSTRUCTIONS)
    assert installs
    assert all(install.startswith("--constraint constraints.txt") for install in installs)


def test_what_is_copied_exists_and_reaches_the_builder() -> None:
    sent = [line[1:] for line in (FOLDER / "Containerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    copied = [name for copy in words("COPY") if "--from" not in copy for name in copy.split()[:-1]]
    assert sorted(copied) == sorted(sent)
    assert all((ROOT / name).exists() for name in copied)


def run_alive(*arguments: str) -> int:
    return subprocess.run([sys.executable, ALIVE, *arguments], capture_output=True, check=False, timeout=30).returncode


def test_alive_reads_one_port_or_url() -> None:
    assert [run_alive(), run_alive("x"), run_alive("1", "2")] == [2, 2, 2]


def alive(target: str) -> str:
    spec = importlib.util.spec_from_file_location("alive", ALIVE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.why_not(target))


def test_a_port_is_alive_while_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = str(door.getsockname()[1])
        assert alive(port) == ""
    assert "refused" in alive(port)


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False)])
def test_a_url_is_alive_if_it_answers_200(status: int, well: bool) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        why_not = alive(f"http://127.0.0.1:{server.server_port}/health")
        thread.join()
    assert (why_not == "") is well


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It starts a command that takes these options, writes to volumes that exist, and may take its time to stop."""
    service = SERVICES[name]
    command = service["command"]
    assert all(isinstance(word, str) for word in command)
    assert main([command[0], "--config", "/dev/null", "--show-config", *command[1:]]) == 0
    assert "--lan" in command
    assert "compose" in command
    volumes = {volume.partition(":")[0] for volume in service["volumes"]}
    assert volumes == {name, "cache"}
    assert volumes <= COMPOSE["volumes"].keys()
    assert set(service["networks"]) <= COMPOSE["networks"].keys()
    assert int(service["stop_grace_period"].removesuffix("s")) > ServerConfig().drain_timeout_s
    assert (ROOT / service["build"]["dockerfile"]).exists()
    assert (FOLDER / service["build"]["context"]).resolve() == ROOT
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_servers_of_the_compose_file_hold_the_whole_model() -> None:
    counts = [
        int(c[c.index("--num-blocks") + 1]) for c in (each["command"] for each in SERVICES.values()) if "server" in c
    ]
    assert sum(counts) == 30
