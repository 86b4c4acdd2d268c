"""A server that moves: drained first, old weights gone before new ones come, the same identity, real answers."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from fakes import FakeClient
from harness import Node, Recorder, Swarm

from swarm.cli.hosting.loading import Loaded
from swarm.cli.hosting.mover import Mover
from swarm.core.announcement import State
from swarm.core.errors import SwarmError
from swarm.core.spans import Span
from swarm.engine.opening import OpenedSpan
from swarm.engine.speed import UNMEASURED
from swarm.engine.weights import LoadOptions
from swarm.server.config import ServerConfig
from swarm.server.placing import Placement
from swarm.server.placing_config import PlacingConfig
from swarm.wire.messages import Busy, Close

LONELY_S = 120.0
"""From a holder's end until a spare has its place: metrics run out, two looks, and slack."""
KV_TOKENS = 2048


class Console:
    """Notes the names of events, and lets one wait for them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._said: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def event(self, name: str, text: str, **fields: object) -> None:
        assert text
        self.names.append(name)
        self._said[name].set()

    def waiting(self, what: Callable[[float], str]) -> AbstractContextManager[None]:
        assert what(1.0)
        return nullcontext()

    async def heard(self, name: str) -> None:
        await asyncio.wait_for(self._said[name].wait(), LONELY_S)


class Spare:
    """A server of layers that another holds too, and what moves it."""

    def __init__(self, swarm: Swarm, node: Node) -> None:
        self.swarm, self.node = swarm, node
        self.console = Console()
        self.remembered: dict[str, Span] = {}
        self.proved: list[Span] = []
        self.weights_left: list[bool] = []
        self.broken = False
        self.alone = False
        self._old: weakref.ref[Any] = weakref.ref(node.engine._model)
        announcer = node.server.parts.announcer
        placement = Placement(announcer, swarm.clock, PlacingConfig(), lambda: 0.5)
        loader: Any = SimpleNamespace(console=self.console, load=self._load)
        blocks: Any = SimpleNamespace(remembered=SimpleNamespace(put=self.remembered.__setitem__))
        self.calm = asyncio.Lock()
        self.mover = Mover(
            node.server, placement, loader, blocks, self._prove, lambda: self.alone, self.calm, every_s=30.0
        )
        self.task = asyncio.create_task(self.mover.run(), name="mover")

    @property
    def announced(self) -> Any:
        return self.node.server.parts.announcer.current

    async def _load(self, span: Span) -> Loaded:
        await asyncio.sleep(5.0)
        if self.broken:
            raise SwarmError("the disk is gone")
        self.node.engine = Recorder(self._borrow(span), self.node.rows, 0.0)  # type: ignore[assignment]
        gc.collect()
        self.weights_left.append(self._old() is not None)
        self.node.kv_tokens = KV_TOKENS
        return Loaded(OpenedSpan(self.node.engine, "", ("cpu",)), UNMEASURED)

    def _borrow(self, span: Span) -> Any:
        return self.swarm._engines.borrow(span, kv_tokens=KV_TOKENS, weights=LoadOptions(device="cpu", dtype="float32"))

    async def _prove(self, opened: OpenedSpan) -> None:
        self.proved.append(opened.engine.info.span)
        assert not self.node.server.draining

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest_asyncio.fixture
async def trio(swarm: Swarm) -> AsyncIterator[tuple[Spare, Node]]:
    """Layers 0 to 2 twice, 3 and 4 once; the spare, and the only holder."""
    config = ServerConfig(drain_timeout_s=20.0)
    [_, only, node] = await swarm.serve("0:3", "3:5", "0:3", config=config)
    # Its weights are dropped for good, so they must not be those that other tests borrow.
    swarm._engines._keys[id(node.engine._engine)] = ("moved",)  # type: ignore[attr-defined]
    spare = Spare(swarm, node)
    yield spare, only
    await spare.stop()


async def test_it_moves_to_where_the_last_holder_died(swarm: Swarm, trio: tuple[Spare, Node]) -> None:
    spare, only = trio
    await swarm.answers()
    await asyncio.sleep(300.0)
    assert spare.console.names == [], "nobody moves while all is well"
    peer = spare.announced.peer
    await swarm.crash(only)
    await asyncio.sleep(LONELY_S)
    assert spare.console.names == ["moving", "moved"]
    assert (spare.announced.peer, spare.announced.state) == (peer, State.ONLINE)
    assert (spare.announced.span, spare.announced.head, spare.announced.intent) == (Span(3, 5), True, None)
    assert spare.proved == [Span(3, 5)]
    assert spare.weights_left == [False], "the old weights made room before the new ones came"
    assert spare.remembered == {spare.announced.model: Span(3, 5)}
    await swarm.answers()
    await asyncio.sleep(300.0)
    assert spare.console.names == ["moving", "moved"], "and stays there"


async def test_it_does_not_move_for_what_it_sees_while_it_is_cut_off(swarm: Swarm, trio: tuple[Spare, Node]) -> None:
    spare, only = trio
    spare.alone = True
    await swarm.crash(only)
    await asyncio.sleep(5 * LONELY_S)
    assert spare.console.names == []
    assert (spare.announced.state, spare.announced.intent) == (State.ONLINE, None)
    spare.alone = False
    await asyncio.sleep(LONELY_S)
    assert spare.console.names == ["moving", "moved"]


async def test_it_lets_a_session_finish_first(swarm: Swarm, trio: tuple[Spare, Node], client: FakeClient) -> None:
    spare, only = trio
    control, link = await client.session(spare.node)
    await client.ask(control, link, [10, 20, 30])
    await swarm.crash(only)
    await spare.console.heard("moving")
    await asyncio.sleep(10.0)
    assert (spare.announced.state, spare.announced.span) == (State.DRAINING, Span(0, 3))
    assert isinstance((await client.open(spare.node))[1], Busy)
    await control.send(Close())
    await asyncio.sleep(15.0)
    assert (spare.announced.state, spare.announced.span) == (State.ONLINE, Span(3, 5))


async def test_a_session_that_does_not_end_is_not_torn(
    swarm: Swarm, trio: tuple[Spare, Node], client: FakeClient
) -> None:
    spare, only = trio
    control, link = await client.session(spare.node)
    await client.ask(control, link, [10, 20, 30])
    await swarm.crash(only)
    await spare.console.heard("staying")
    assert (spare.announced.state, spare.announced.intent) == (State.ONLINE, None)
    await client.ask(control, link, [10, 20, 30], seq=1, keep=0)
    await control.send(Close())
    await asyncio.sleep(12 * 45.0 + LONELY_S)
    assert spare.console.names == ["moving", "staying", "moving", "moved"]


async def test_it_can_be_stopped_in_mid_move(swarm: Swarm, trio: tuple[Spare, Node]) -> None:
    spare, only = trio
    await swarm.crash(only)
    await spare.console.heard("moving")
    await asyncio.sleep(2.0)  # it is loading
    await spare.stop()
    await spare.node.server.stop()
    assert (spare.announced.state, spare.announced.intent) == (State.OFFLINE, None)
    listed = await spare.node.directory.servers(swarm.files.model_id)
    assert spare.node.peer not in [listing.peer for listing in listed]


async def test_a_span_that_cannot_be_loaded_ends_the_server(swarm: Swarm, trio: tuple[Spare, Node]) -> None:
    spare, only = trio
    spare.broken = True
    await swarm.crash(only)
    with pytest.raises(SwarmError, match="the disk is gone"):
        await spare.task
    await spare.node.server.leave()
