"""A health page's life: watch, listen, tell, and end at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

from swarm.core.clock import Clock
from swarm.health.options import HealthOptions
from swarm.health.source import Source
from swarm.health.web.app import HealthApp
from swarm.health.web.errors import error_body
from swarm.runtime.http_server import HttpLimits, HttpServer

FAREWELL_S = 1.0


class HealthService:
    """An HTTP server over ``watch``, which runs as long as ``run`` does."""

    def __init__(self, watch: Source, clock: Clock, options: HealthOptions, *, farewell_s: float = FAREWELL_S) -> None:
        self._watch = watch
        self._app = HealthApp(watch, clock, options)
        limits = HttpLimits(farewell_s=farewell_s, per_address=options.connections_per_address)
        self._server = HttpServer(self._app.build(), limits, error_body)

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host``; returns the port, which the system chooses for 0. ``ConfigError`` if it cannot be had."""
        return await self._server.listen(host, port)

    async def listen_at(self, path: Path) -> None:
        """Listen on a Unix socket."""
        await self._server.listen_at(path)

    async def run(self) -> NoReturn:
        """Watch until cancelled; raises what ends the watch."""
        tasks = [
            asyncio.create_task(self._watch.run(), name="watch"),
            asyncio.create_task(self._app.feed.follow(), name="feed"),
        ]
        try:
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended.pop().result()
            raise AssertionError("the watch ended by itself")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Let every reader go, and be gone. Idempotent."""
        self._app.feed.close()
        await self._server.end()
