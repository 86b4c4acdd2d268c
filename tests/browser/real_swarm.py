"""Three servers, the health page and the gateway over them, each a process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from processes_at_hand import Command, Launcher, ServerProcess

NAMES = ("first", "<img src=x onerror=alert(1)>", "third")
SPANS = ("0:10", "10:20", "20:30")
ALL_READY_S = 300.0
"""Five processes start on few cores at once, beside a browser."""
TALKATIVE = {"max_tokens": 1500, "logit_bias": {"2": -100}}
"""Fields of a request whose answer does not end by itself: token 2 ends the demo model's."""


@dataclass
class RealSwarm:
    """``servers`` in the order of their layers."""

    launcher: Launcher
    servers: list[ServerProcess] = field(default_factory=list)
    health_url: str = ""
    gateway_url: str = ""

    @classmethod
    def start(cls, launcher: Launcher) -> RealSwarm:
        """Everything at once; READY, listening."""
        swarm = cls(launcher)
        swarm.servers.append(swarm._server(0, ""))
        address = swarm.servers[0].address
        swarm.servers += [swarm._server(i, address) for i in (1, 2)]
        joined = ("--initial-peers", address, "--port", "0", "--json")
        health = swarm.launcher.run("swarm.health", *joined, "--no-history")
        gateway = swarm.launcher.run("swarm.gateway", "--model", "demo", *joined)
        for server in swarm.servers:
            server.event("ready", ALL_READY_S)
            server.ready()
        swarm.health_url = _listening(health)
        swarm.gateway_url = _listening(gateway)
        return swarm

    def restart(self, i: int) -> None:
        """The same server again, with its name, its key and its layers; READY."""
        self.servers[i] = self._server(i, self.servers[0].address).ready()

    def _server(self, i: int, join: str) -> ServerProcess:
        options = ("--dtype", "float32", "--public-name", NAMES[i])
        return self.launcher.server(SPANS[i], *options, join=join, key=f"server{i}.key")


def _listening(process: Command) -> str:
    for _ in range(10):
        said: dict[str, Any] = json.loads(process.line(120.0) or "{}")
        if said.get("event") == "listening":
            return str(said["url"])
    raise AssertionError(process.stderr)
