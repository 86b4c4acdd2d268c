"""A gateway over a test's swarm, behind a Unix socket: bytes are there at once, so virtual time does not run ahead."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from harness import Swarm
from openai import AsyncOpenAI

from swarm.client.model import AsyncSwarmModel
from swarm.gateway.options import GatewayOptions
from swarm.gateway.service import Gateway

MODEL = "toy"
NO_END = {"1": -100}
"""A bias that keeps the toy model from ending its answer."""
HELLO = [{"role": "user", "content": "Hello"}]
ASKED: dict[str, Any] = {"model": MODEL, "messages": HELLO, "temperature": 0, "logit_bias": NO_END, "max_tokens": 12}
ENDLESS = ASKED | {"max_tokens": 400}


class Desk:
    """One gateway, and clients of it. ``model`` is the gateway's own client of the swarm."""

    def __init__(self, swarm: Swarm, folder: Path) -> None:
        self.swarm = swarm
        self.path = folder / "gateway.sock"
        self.beats = 0
        self._clients: list[AsyncOpenAI] = []
        self.gateway: Gateway
        self.model: AsyncSwarmModel

    async def open(self, *, head: str = "remote", busy_timeout_s: float = 60.0, **options: Any) -> AsyncOpenAI:
        """Start the gateway; gives a client of it."""
        self.model = self.swarm.client(head, busy_timeout_s=busy_timeout_s, heal_timeout_s=5.0)
        self.gateway = Gateway(
            self.model, GatewayOptions(**{"model_names": (MODEL,), "hosts": ("gateway",), **options})
        )
        await self.gateway.listen_at(self.path)
        return self.client()

    def client(self, key: str = "none") -> AsyncOpenAI:
        """One more OpenAI client. It never asks twice."""
        transport = httpx2.AsyncHTTPTransport(verify=False, trust_env=False, uds=str(self.path))
        http = httpx2.AsyncClient(transport=transport, trust_env=False, verify=False, timeout=3600.0)
        client = AsyncOpenAI(api_key=key, base_url="http://gateway/v1", http_client=http, max_retries=0)
        self._clients.append(client)
        return client

    @property
    def http(self) -> httpx2.AsyncClient:
        """Plain HTTP."""
        return self.client()._client

    async def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx2.Response:
        """A request of any body, bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | headers
        return await self.http.post(f"http://gateway{path}", content=content, headers=sent)

    async def events(self, body: Any, path: str = "/v1/chat/completions") -> list[str]:
        """The data of every event of a stream; comments among them are counted in ``beats``."""
        response = await self.post(body | {"stream": True}, path)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        blocks = response.text.split("\n\n")
        assert blocks.pop() == ""
        self.beats = blocks.count(": alive")
        data = [block for block in blocks if block != ": alive"]
        assert all(block.startswith("data: ") for block in data)
        return [block.removeprefix("data: ") for block in data]

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        if hasattr(self, "gateway"):
            await self.gateway.stop(0.0)


@asynccontextmanager
async def desk_of(swarm: Swarm, folder: Path) -> AsyncIterator[Desk]:
    desk = Desk(swarm, folder)
    try:
        yield desk
    finally:
        await desk.close()
