"""A health page over states made by hand: real sockets, and a clock that moves when told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from health_states import BEGAN_AT, HandWatch, state

from swarm.health.options import HealthOptions
from swarm.health.service import HealthService
from swarm.health.state import SwarmState
from swarm.runtime.clock import VirtualClock


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    kind: str
    data: Any
    id: str


class Reader:
    """A stream's events, one by one."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def block(self) -> dict[str, str] | None:
        """The fields of the next one, also if it is no event; None at the end."""
        fields: dict[str, str] = {}
        while line := (await self.response.content.readuntil(b"\n")).decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            assert name not in fields, "one line a field"
            fields[name] = value
        return None

    async def event(self) -> Event:
        """The next event."""
        while (fields := await self.block()) is not None:
            if "data" in fields:
                return Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id", ""))
        raise AssertionError("the stream ended")


@dataclass
class Desk:
    """The page, a client of it, and what it shows. Its clock stands still until it is told to move."""

    watch: HandWatch
    clock: VirtualClock
    service: HealthService
    port: int
    client: aiohttp.ClientSession
    readers: list[Reader] = field(default_factory=list)

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        """The answer, read. ``headers`` are written with underscores."""
        response = await self.client.get(path, headers={name.replace("_", "-"): to for name, to in headers.items()})
        await response.read()
        return response

    async def reader(self, **headers: str) -> Reader:
        """A stream that was accepted."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = await self.client.get("/api/v1/stream", headers=named)
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        self.readers.append(Reader(response))
        return self.readers[-1]

    async def show(self, shown: SwarmState) -> SwarmState:
        """A new state, and time enough for it to be told."""
        self.watch.show(shown)
        await self.clock.advance(1.0)
        return shown


@asynccontextmanager
async def desk_of(first: SwarmState | None = None, *, farewell_s: float = 0.5, **options: Any) -> AsyncIterator[Desk]:
    watch, clock = HandWatch(first or state()), VirtualClock(wall_s=BEGAN_AT)
    service = HealthService(watch, clock, HealthOptions(**options), farewell_s=farewell_s)
    port = await service.listen("127.0.0.1", 0)
    life = asyncio.create_task(service.run())
    await clock.settle()
    try:
        timeout = aiohttp.ClientTimeout(total=60.0)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", timeout=timeout) as client:
            desk = Desk(watch, clock, service, port, client)
            try:
                yield desk
            finally:
                for reader in desk.readers:
                    reader.response.close()
    finally:
        await service.stop()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
