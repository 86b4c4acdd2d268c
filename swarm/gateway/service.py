"""A gateway's life: listen, answer, and end without cutting an answer short."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import ConfigError
from swarm.gateway.app import GatewayApp
from swarm.gateway.errors import closing
from swarm.gateway.options import GatewayOptions

IDLE_S = 75.0
"""How long a connection without a request is kept."""
FAREWELL_S = 3.0
"""How long answers that are cut at the end have to say so."""


class Gateway:
    """An HTTP server over ``model``, which stays its owner's to close."""

    def __init__(self, model: AsyncSwarmModel, options: GatewayOptions) -> None:
        self.app = GatewayApp(model, options)
        # A client that leaves takes its handler with it, and so its generation: nothing is computed for nobody.
        self._runner = web.AppRunner(
            self.app.build(),
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            shutdown_timeout=FAREWELL_S,
        )
        self._sites: list[web.BaseSite] = []

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host``; returns the port, which the system chooses for 0. ``ConfigError`` if it cannot be had."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0).lower()}",
                hint="choose another --port, or 0 for any that is free",
            ) from error
        self._sites.append(site)
        return int(self._runner.addresses[0][1])

    async def listen_at(self, path: Path) -> None:
        """Listen on a Unix socket."""
        await self._runner.setup()
        site = web.UnixSite(self._runner, path)
        await site.start()
        self._sites.append(site)

    async def stop(self, drain_timeout_s: float) -> None:
        """Take nobody new, let answers under way end, cut them after ``drain_timeout_s``, and be gone. Idempotent."""
        self.app.gate.close()
        for site in self._sites:
            await site.stop()
        self._sites.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_timeout_s):
                await self.app.gate.emptied()
        for answers in list(self.app.running):
            answers.abort(closing())
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self.app.gate.emptied()
        await self._runner.cleanup()

    def hurry(self) -> None:
        """Cut what is under way at once."""
        for answers in list(self.app.running):
            answers.abort(closing())
