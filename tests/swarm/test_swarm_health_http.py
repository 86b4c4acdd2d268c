"""The health page's interface over a real watch and a swarm in memory: who reads the stream knows the state."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
from harness import Node, Swarm
from msgspec.structs import replace
from trouble import PROMPT
from watching import SETTLED_S, kinds, named, only

from swarm.dht.memory import MemoryDirectory
from swarm.engine.speed import SpanSpeed
from swarm.health.options import HealthOptions
from swarm.health.service import HealthService
from swarm.health.state import Patch, SwarmState
from swarm.health.watching.archive import STEP_S
from swarm.health.watching.watch import Watch, WatchOptions, WatchParts
from swarm.health.web.patches import apply

SPEED = SpanSpeed(tau_s=0.004, fixed_s=0.01)
KILLED_S = 12.0
Events = AsyncIterator[tuple[str, bytes]]


@asynccontextmanager
async def page(swarm: Swarm, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a page at work over ``swarm``, on a node of its own."""
    transport, directory = swarm.network.transport(swarm.identity()), MemoryDirectory(swarm.store)
    options = WatchOptions(models=(str(swarm.files.model_id),), history=folder / "history.sqlite")
    service = HealthService(
        Watch(WatchParts(transport, directory, swarm.clock), options), swarm.clock, HealthOptions(hosts=("page",))
    )
    await service.listen_at(folder / "page.sock")
    running = asyncio.create_task(service.run())
    uds = httpx2.AsyncHTTPTransport(verify=False, trust_env=False, uds=str(folder / "page.sock"))
    client = httpx2.AsyncClient(transport=uds, trust_env=False, verify=False, timeout=3600.0, base_url="http://page")
    try:
        async with client:
            yield client
    finally:
        await service.stop()
        running.cancel()
        [ended] = await asyncio.gather(running, return_exceptions=True)
        await directory.close()
        await transport.close()
    assert isinstance(ended, asyncio.CancelledError), ended


@asynccontextmanager
async def stream_of(client: httpx2.AsyncClient) -> AsyncIterator[Events]:
    """The kinds and data of a stream's events."""

    async def events(response: httpx2.Response) -> Events:
        kind = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, value.encode()

    async with client.stream("GET", "/api/v1/stream") as response:
        assert response.status_code == 200
        yield events(response)


async def followed(events: Events, known: SwarmState | None, until: Callable[[SwarmState], bool]) -> SwarmState:
    """What a reader knows once that holds; a state may come first only."""
    while known is None or not until(known):
        kind, data = await anext(events)
        if kind == "state":
            assert known is None, "it never fell behind"
            known = msgspec.json.decode(data, type=SwarmState)
        elif kind == "patch":
            assert known is not None
            patch = msgspec.json.decode(data, type=Patch)
            assert patch.base == known.revision
            known = apply(known, patch)
    return known


def same(one: SwarmState, other: SwarmState) -> bool:
    """Equal but for the order of servers and links, which says nothing."""
    sorts = [
        replace(
            state,
            models=[
                replace(
                    model,
                    servers=sorted(model.servers, key=lambda server: server.peer),
                    links=sorted(model.links, key=lambda link: (link.source, link.target)),
                )
                for model in state.models
            ],
        )
        for state in (one, other)
    ]
    return sorts[0] == sorts[1]


async def state_of(client: httpx2.AsyncClient) -> SwarmState:
    return msgspec.json.decode((await client.get("/api/v1/state")).content, type=SwarmState)


def dark(node: Node) -> Callable[[SwarmState], bool]:
    return lambda state: bool(state.models) and named(state, node.peer).condition == "silent"


async def test_a_reader_sees_answers_a_killed_server_and_its_return(swarm: Swarm, tmp_path: Path) -> None:
    _, middle, _ = await swarm.serve(speed=SPEED)
    async with page(swarm, tmp_path) as client, stream_of(client) as events:
        known = await followed(events, None, lambda state: bool(state.models) and only(state).usable)
        await asyncio.sleep(SETTLED_S)

        session = swarm.client().session()
        answering = asyncio.create_task(session.generate(PROMPT, max_new_tokens=400, ignore_eos=True))
        known = await followed(events, known, lambda state: any(chain.complete for chain in only(state).chains))
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await session.close()

        await swarm.crash(middle)
        async with asyncio.timeout(KILLED_S):
            known = await followed(events, known, dark(middle))
        assert only(known).missing == [(1, 3)]
        assert same(known, await state_of(client)), "patch by patch it came to the same"
        metrics = (await client.get("/metrics")).text
        assert f'swarm_layers_missing{{model="{swarm.files.model_id}"}} 2.0' in metrics

        await swarm.serve("1:3", speed=SPEED)
        known = await followed(events, known, lambda state: only(state).usable)
        assert kinds(known)[-2:] == ["joined", "usable"]
        told = json.loads((await client.get("/api/v1/events", params={"after": known.events[0].number})).content)
        assert [one["number"] for one in told["events"]] == [event.number for event in known.events[1:]]
        await asyncio.sleep(STEP_S)
        history = (await client.get("/api/v1/history", params={"model": str(swarm.files.model_id)})).json()
        assert len(history["at"]) == len(history["servers"]) >= 1


async def test_the_page_ends_while_readers_listen(swarm: Swarm, tmp_path: Path) -> None:
    await swarm.serve(speed=SPEED)
    async with page(swarm, tmp_path) as client:
        began_s = swarm.clock.monotonic_s()
        response = await client.send(client.build_request("GET", "/api/v1/stream"), stream=True)
    assert swarm.clock.monotonic_s() - began_s < 1.0
    await response.aclose()
