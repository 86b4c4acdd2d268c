"""Three real servers of the demo model and any number of clients in one process, over the in-memory network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from swarm.client.model import AsyncSwarmModel
from swarm.client.parts import ClientOptions, ClientParts
from swarm.client.tokenizer import Tokenizer
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.progress import silent
from swarm.runtime.clock import SystemClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer, first_announcement
from swarm.server.service import Server, ServerParts
from swarm.transport.memory import MemoryNetwork

KV_TOKENS = 8192


@dataclass(slots=True)
class Place:
    """A running swarm; ``servers`` in the order of their layers."""

    files: ModelFiles
    tokenizer: Tokenizer
    clock: SystemClock
    network: MemoryNetwork
    store: MemoryDirectoryStore
    servers: list[PeerId]
    spans: list[Span]

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[AsyncSwarmModel]:
        """A client with a key of its own, as ``connect`` makes one; it leaves at the end."""
        identity = _identity(name)
        model = AsyncSwarmModel(
            ClientParts(
                self.network.transport(identity),
                MemoryDirectory(self.store),
                self.clock,
                self.files,
                self.tokenizer,
                identity=identity,
            ),
            ClientOptions(),
        )
        try:
            yield model
        finally:
            await model.close()


@asynccontextmanager
async def place_of(files: ModelFiles, count: int) -> AsyncIterator[Place]:
    """``count`` servers with equal spans, one thread each, until the block ends."""
    clock = SystemClock()
    cuts = [files.layer_count * index // count for index in range(count + 1)]
    spans = [Span(a, b) for a, b in pairwise(cuts)]
    place = Place(files, Tokenizer.of(files), clock, MemoryNetwork(clock), MemoryDirectoryStore(clock), [], spans)
    running: list[Server] = []
    try:
        for span in spans:
            running.append(await _serve(place, span))
        yield place
    finally:
        await asyncio.gather(*(server.stop() for server in running), return_exceptions=True)
        await place.network.close()


async def _serve(place: Place, span: Span) -> Server:
    request = SpanRequest(
        span=span,
        embeddings=span.start == 0,
        head=span.end == place.files.layer_count,
        weights=LoadOptions(device="cpu", dtype="float32", quantization="none"),
        kv_tokens=KV_TOKENS,
        threads=1,
    )
    engine = (await asyncio.to_thread(open_span, place.files, request, silent)).engine
    identity, config = _identity(f"server {span}"), ServerConfig()
    transport = place.network.transport(identity)
    first = first_announcement(place.files.model_id, engine, transport, place.clock.wall_s(), instance=1)
    announcer = Announcer(MemoryDirectory(place.store), identity, place.clock, first, config)
    server = Server(ServerParts(transport, engine, announcer, place.clock), config)
    await server.start()
    await server.announce()
    place.servers.append(identity.peer_id)
    return server


def _identity(name: str) -> Identity:
    return Identity(hashlib.sha256(name.encode()).digest())
