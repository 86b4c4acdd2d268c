"""A health page's eyes on a swarm in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from harness import Swarm

from swarm.dht.memory import MemoryDirectory
from swarm.health.state import ModelState, ServerState, SwarmState
from swarm.health.watching.watch import Watch, WatchOptions, WatchParts
from swarm.runtime.reputation import ReputationStore

SETTLED_S = 20.0
"""By then a watch tells what happens, and does not only show it."""


@asynccontextmanager
async def watching(
    swarm: Swarm, *, reputation: ReputationStore | None = None, settled: bool = True, **options: Any
) -> AsyncIterator[Watch]:
    """A watch at work, on a node of its own; ``settled`` waits until what changes becomes an event."""
    identity = swarm.identity()
    transport, directory = swarm.network.transport(identity), MemoryDirectory(swarm.store)
    options.setdefault("models", (str(swarm.files.model_id),))
    watch = Watch(WatchParts(transport, directory, swarm.clock, reputation), WatchOptions(**options))
    task = asyncio.create_task(watch.run(), name="watch")
    try:
        if settled:
            await asyncio.sleep(SETTLED_S)
        yield watch
    finally:
        task.cancel()
        [ended] = await asyncio.gather(task, return_exceptions=True)
        await directory.close()
        await transport.close()
    assert isinstance(ended, asyncio.CancelledError), ended


async def seen(watch: Watch, condition: Callable[[SwarmState], bool], within_s: float) -> SwarmState:
    """The first state for which ``condition`` holds."""
    async with asyncio.timeout(within_s):
        state = watch.state()
        while not condition(state):
            state = await watch.changed(state.revision)
    return state


def only(state: SwarmState) -> ModelState:
    [model] = state.models
    return model


def named(state: SwarmState, peer: str) -> ServerState:
    [server] = [server for server in only(state).servers if server.peer == peer]
    return server


def kinds(state: SwarmState) -> list[str]:
    """What happened so far, in order."""
    return [event.kind for event in state.events]
