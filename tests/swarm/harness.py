"""Whole swarms in one process: real engines, servers and clients; only the network and the directory are in memory.

``Swarm`` is made by the ``swarm`` fixture, which checks after every test that nothing leaked.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any

import msgspec
from tiny_model import LAYERS, Reference
from virtual_time import LoopClock

from swarm.client.evidence.records import SessionRecord
from swarm.client.model import AsyncSwarmModel
from swarm.client.parts import ClientOptions, ClientParts
from swarm.core.announcement import Announcement
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.records import sign_record
from swarm.core.spans import Span
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.engine.executor import SpanEngine
from swarm.engine.kv import KVSlot
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.engine.weights import LoadOptions
from swarm.engine.work import Output
from swarm.models.files import ModelFiles
from swarm.models.progress import silent
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer, first_announcement
from swarm.server.service import Server, ServerParts
from swarm.transport.capped import CappedTransport, UplinkCap
from swarm.transport.memory import LinkShape, MemoryNetwork, MemoryTransport
from swarm.transport.protocol import Transport
from swarm.verification.verdicts.calibration import Calibration

SPANS = ("0:1", "1:3", "3:5")
"""An uneven cut of the five layers."""
METRICS_EVERY_S = 4.0
MOMENT_S = 0.01
"""Virtual: sleeping so long returns once nobody else can run."""


@dataclass(slots=True)
class Node:
    """One server and the ways to look into it."""

    identity: Identity
    transport: MemoryTransport
    directory: MemoryDirectory
    engine: SpanEngine
    server: Server
    kv_tokens: int
    rows: list[int] = field(default_factory=list)
    """Rows of each work the engine computed, in order."""

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    @property
    def short(self) -> str:
        return self.peer[-8:]

    @property
    def idle(self) -> bool:
        """Nothing reserved, nothing registered, nothing logged but for audits, no beat kept for anybody."""
        server = self.server
        reception = server._serving.reception
        logged = reception.replay_budget.used_bytes - reception.shelf.size_bytes
        kept = logged or any(pair.holds for pair in server.pulse._pairs.values())
        return not (len(server.table) or kept) and self.engine.free_tokens == self.kv_tokens


class Engines:
    """Loads a span once and lends it to one server at a time, over all tests."""

    def __init__(self, files: ModelFiles) -> None:
        self.files = files
        self._free: dict[tuple[object, ...], list[SpanEngine]] = {}
        self._keys: dict[int, tuple[object, ...]] = {}

    def borrow(self, span: Span, *, kv_tokens: int, weights: LoadOptions, ends: bool = True) -> SpanEngine:
        key = (span, kv_tokens, weights.dtype, weights.quantization, ends)
        if free := self._free.get(key):
            return free.pop()
        request = SpanRequest(
            span=span,
            embeddings=ends and span.start == 0,
            head=ends and span.end == LAYERS,
            weights=weights,
            kv_tokens=kv_tokens,
            threads=1,
        )
        engine = open_span(self.files, request, silent).engine
        self._keys[id(engine)] = key
        return engine

    def give_back(self, engine: SpanEngine) -> None:
        self._free.setdefault(self._keys[id(engine)], []).append(engine)


class Recorder:
    """A ``SpanEngine`` that notes how many rows each work of a session had, and may be held up, fail or compute
    nonsense.

    A forward takes ``takes_s`` of virtual time.
    """

    def __init__(self, engine: SpanEngine, rows: list[int], takes_s: float = 0.0) -> None:
        self._engine = engine
        self._rows = rows
        self._opened: weakref.WeakSet[KVSlot] = weakref.WeakSet()
        self._loop: Any = asyncio.get_running_loop()
        self.takes_s = takes_s
        self.before: Callable[[], None] | None = None
        self.after: Callable[[list[Output]], None] | None = None

    def open(self, tokens: int) -> KVSlot:
        slot = self._engine.open(tokens)
        self._opened.add(slot)
        return slot

    def run(self, batch: Sequence[Any]) -> Any:
        if self.before is not None:
            self.before()
        outputs = self._engine.run(batch)
        if self.takes_s:
            self._loop.now_s += self.takes_s  # nobody else moves it while a thread is at work
        if self.after is not None:
            self.after(outputs)
        self._rows.extend(work.rows for work in batch if work.slot in self._opened)  # not what a server times alone
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


async def until(condition: Callable[[], object]) -> None:
    """Let everybody run, turn by turn, until ``condition`` holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def turns(count: int) -> None:
    """Let everybody run for so many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


class Swarm:
    """Servers and clients of one test, on one network, one directory and one (virtual) clock."""

    def __init__(self, engines: Engines, reference: Reference) -> None:
        self.files = engines.files
        self.reference = reference
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.store = MemoryDirectoryStore(self.clock)
        self.nodes: list[Node] = []
        self.models: list[AsyncSwarmModel] = []
        self.records: list[SessionRecord] = []
        """Of every session that was settled; unless somebody lies, no receipt is ever wrong or missing."""
        self.liars = False
        self._engines = engines
        self._listed: list[asyncio.Task[None]] = []
        self._delay_s = 0.0
        self._seeds = iter(range(1, 256))

    def identity(self) -> Identity:
        return Identity(bytes([next(self._seeds)] * 32))

    async def serve(
        self,
        *spans: str,
        config: ServerConfig | None = None,
        kv_tokens: int = 4096,
        dtype: str = "float32",
        quantization: str = "none",
        ends: bool = True,
        name: str = "",
        announce: bool = True,
        speed: SpanSpeed = UNMEASURED,
        calibration: Calibration | None = None,
    ) -> list[Node]:
        """Start one server per span, announced and ready.

        ``ends``: hold embeddings and head where the span allows. With a ``speed`` a forward takes that much virtual
        time, and the server knows.
        """
        started = []
        for text in spans or SPANS:
            weights = LoadOptions(device="cpu", dtype=dtype, quantization=quantization)
            engine = self._engines.borrow(Span.parse(text), kv_tokens=kv_tokens, weights=weights, ends=ends)
            node = await self._start(engine, config or ServerConfig(), name, speed, calibration)
            started.append(node)
            if announce:
                await node.server.announce()
        return started

    async def _start(
        self, engine: SpanEngine, config: ServerConfig, name: str, speed: SpanSpeed, calibration: Calibration | None
    ) -> Node:
        identity = self.identity()
        transport = self.network.transport(identity)
        directory = MemoryDirectory(self.store)
        base = self.announcement(transport, engine, name)
        rows: list[int] = []
        takes_s = 0.0 if speed is UNMEASURED else speed.fixed_s + len(engine.info.span) * speed.tau_s
        recorder: Any = Recorder(engine, rows, takes_s)
        announcer = Announcer(directory, identity, self.clock, base, config)
        outer: Transport = transport
        if config.uplink_mbps is not None:
            outer = CappedTransport(transport, UplinkCap(config.uplink_mbps, self.clock))
        parts = ServerParts(outer, recorder, announcer, self.clock, speed, calibration=calibration)
        server = Server(parts, config)
        await server.start()
        node = Node(identity, transport, directory, recorder, server, engine.free_tokens, rows)
        self.nodes.append(node)
        return node

    def announcement(self, transport: MemoryTransport, engine: Any, name: str = "", **changes: Any) -> Announcement:
        """A server's first announcement, true or with ``changes``."""
        now_s = self.clock.wall_s()
        first = first_announcement(self.files.model_id, engine, transport, now_s, instance=1, public_name=name)
        return msgspec.structs.replace(first, **changes)

    async def enlist(self, identity: Identity, announcement: Announcement, *, speed: SpanSpeed = UNMEASURED) -> bytes:
        """Publish a hand-made announcement, and from now on idle metrics beside it; the announcement's signed bytes."""
        directory, record = MemoryDirectory(self.store), sign_record(identity, announcement)
        await directory.publish(record, announcement)
        alive = asyncio.Event()

        async def beat() -> None:
            for sequence in count():
                metrics = Metrics(
                    model=announcement.model,
                    peer=announcement.peer,
                    instance=announcement.instance,
                    sequence=sequence,
                    expires_s=self.clock.wall_s() + METRICS_LIFETIME_S,
                    tau_s=speed.tau_s,
                    fixed_s=speed.fixed_s,
                    kv_free_tokens=announcement.kv_tokens,
                )
                await directory.publish(sign_record(identity, metrics), metrics)
                alive.set()
                await self.clock.sleep(METRICS_EVERY_S)

        self._listed.append(asyncio.create_task(beat(), name=f"metrics of {announcement.peer[-8:]}"))
        await alive.wait()
        return record

    def client(self, head: str = "remote", **options: Any) -> AsyncSwarmModel:
        """A client node; ``options`` are those of ``ClientOptions``."""
        identity, directory = self.identity(), MemoryDirectory(self.store)
        transport = self.network.transport(identity)
        tokenizer = self.reference.tokenizer
        parts = ClientParts(transport, directory, self.clock, self.files, tokenizer, identity=identity)
        model = AsyncSwarmModel(parts, ClientOptions(remote_head=head == "remote", **options))
        model.witness.on_settled.append(self.records.append)
        self.models.append(model)
        return model

    async def crash(self, node: Node) -> None:
        """Take a server away as a power cut does: no farewell, and its announcement runs out."""
        await node.directory.close()
        await self.network.kill(node.peer)

    def small_buffers(self, byte_count: int) -> None:
        """Streams opened from now on hold only so much that is not read."""
        self.network._buffer_bytes = byte_count

    def delay(self, seconds: float) -> None:
        """From now on everything takes so long from any node to any other."""
        self._delay_s = seconds
        peers = [*(node.peer for node in self.nodes), *(model.parts.transport.peer_id for model in self.models)]
        for a, b in combinations(peers, 2):
            self.network.shape(a, b, LinkShape(delay_s=seconds))

    async def quiet(self) -> None:
        """Let everything happen that needs no time but a few hops'."""
        await asyncio.sleep(MOMENT_S + 4 * self._delay_s)

    async def check_free(self, *, besides: Sequence[Node] = ()) -> None:
        """Within a moment no server holds anything of any session."""
        await self.quiet()
        held = [
            f"{node.short}: {len(node.server.table)} sessions, {node.engine.free_tokens} tokens free"
            for node in self.nodes
            if not node.idle and node not in besides
        ]
        assert not held, held

    async def answers(self, prompt: str = "still up", head: str = "remote", new_tokens: int = 4) -> None:
        """The swarm proves that it stands: a new client gets the reference's answer."""
        result = await self.client(head).generate(prompt, max_new_tokens=new_tokens, ignore_eos=True)
        wanted = self.reference.greedy(prompt, new_tokens, eos_token_id=None)
        assert list(result.token_ids) == wanted

    async def close(self) -> None:
        """Everything down; then no stream is open and no task is left."""
        for model in self.models:
            await model.close()
        for task in self._listed:
            task.cancel()
        await asyncio.gather(*self._listed, return_exceptions=True)
        for node in self.nodes:
            await node.server.leave()
            await node.directory.close()
            await node.transport.close()
        await self.network.close()

    def give_back_engines(self) -> None:
        """Those that nothing leaked from; a failed test's are not handed to the next one."""
        for node in self.nodes:
            if node.idle:
                self._engines.give_back(node.engine._engine)  # type: ignore[attr-defined]


async def leak_check(swarm: Swarm, errors: Sequence[logging.LogRecord]) -> None:
    """After a test: sessions, KV, streams, tasks; and nothing was logged as an error."""
    try:
        for model in swarm.models:
            await model.close()
        await swarm.check_free()
        await asyncio.sleep(10.0)  # hellos that wait for an OPEN, peers that linger
    finally:
        await swarm.close()
        swarm.give_back_engines()
    await swarm.quiet()
    wrong = [problem for record in swarm.records for problem in record.problems if problem.kind != "unwilling"]
    assert swarm.liars or not wrong, wrong
    assert not swarm.network._streams, swarm.network._streams
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others
    assert not errors, [record.getMessage() for record in errors]
