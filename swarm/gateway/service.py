"""A gateway's life: listen, answer, and end without cutting an answer short."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from swarm.client.model import AsyncSwarmModel
from swarm.gateway.app import GatewayApp
from swarm.gateway.errors import closing, error_body
from swarm.gateway.options import GatewayOptions
from swarm.runtime.http_server import HttpLimits, HttpServer

FAREWELL_S = 3.0
"""How long answers that are cut at the end have to say so."""


class Gateway:
    """An HTTP server over ``model``, which stays its owner's to close."""

    def __init__(self, model: AsyncSwarmModel, options: GatewayOptions) -> None:
        self.app = GatewayApp(model, options)
        limits = HttpLimits(farewell_s=FAREWELL_S, per_address=options.connections_per_address)
        self._server = HttpServer(self.app.build(), limits, error_body)

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host``; returns the port, which the system chooses for 0. ``ConfigError`` if it cannot be had."""
        return await self._server.listen(host, port)

    async def listen_at(self, path: Path) -> None:
        """Listen on a Unix socket."""
        await self._server.listen_at(path)

    async def stop(self, drain_timeout_s: float) -> None:
        """Take nobody new, let answers under way end, cut them after ``drain_timeout_s``, and be gone. Idempotent."""
        self.app.gate.close()
        self._server.close_doors()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout_s):
                await self.app.gate.emptied()
        for answers in list(self.app.running):
            answers.abort(closing())
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self.app.gate.emptied()
        await self._server.end()

    def hurry(self) -> None:
        """Cut what is under way at once."""
        for answers in list(self.app.running):
            answers.abort(closing())
