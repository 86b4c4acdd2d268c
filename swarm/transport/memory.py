"""The transport's in-memory twin: a network in one process that can be slow, cut, frozen, killed and made to lie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from swarm.core.clock import Clock
from swarm.core.errors import MisuseError, PeerLostError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.transport.handlers import HandlerTasks
from swarm.transport.memory_pipe import BUFFER_BYTES, Gate, Link, LinkShape, Pipe, Route, Tap
from swarm.transport.protocol import StreamHandler

__all__ = ["LinkShape", "MemoryNetwork", "MemoryStream", "MemoryTransport", "Tap"]

T = TypeVar("T")


class MemoryNetwork:
    """Peers that reach each other through memory. Use it inside one event loop and ``close`` it at the end.

    All randomness (jitter, broken streams) comes from ``seed``, all time from ``clock``. Nothing sleeps where no delay
    is set.
    """

    def __init__(
        self, clock: Clock, seed: int = 0, *, shape: LinkShape | None = None, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self.clock = clock
        self._random = Random(seed)
        self._shape = shape or LinkShape()
        self._buffer_bytes = buffer_bytes
        self._transports: dict[PeerId, MemoryTransport] = {}
        self._links: dict[tuple[PeerId, PeerId], Link] = {}
        self._gates: dict[PeerId, Gate] = {}
        self._taps: list[Tap] = []
        self._streams: set[MemoryStream] = set()
        self.places: dict[PeerId, str] = {}
        """From which multiaddress a peer's streams come; nobody knows it of the others."""

    def transport(self, peer: Identity | PeerId) -> MemoryTransport:
        """A new node; ``MisuseError`` if that peer has one (after ``kill`` or ``close`` it may come back)."""
        peer_id = peer.peer_id if isinstance(peer, Identity) else peer
        if peer_id in self._transports:
            raise MisuseError(f"peer {peer_id} is on the network already")
        transport = MemoryTransport(self, peer_id)
        self._transports[peer_id] = transport
        return transport

    def shape(self, a: PeerId, b: PeerId, there: LinkShape, back: LinkShape | None = None) -> None:
        """Set the link from ``a`` to ``b``, and back (the same unless given). Bytes in flight keep their times."""
        self._link(a, b).shape = there
        self._link(b, a).shape = back or there

    def cut(self, a: PeerId, b: PeerId) -> None:
        """Break every stream between two peers; new dials fail until ``mend``."""
        self._link(a, b).cut = self._link(b, a).cut = True
        for stream in tuple(self._streams):
            if {stream.local, stream.peer} == {a, b}:
                stream.sever()

    def mend(self, a: PeerId, b: PeerId) -> None:
        """Undo ``cut``: new dials work, old streams stay broken."""
        self._link(a, b).cut = self._link(b, a).cut = False

    def freeze(self, peer: PeerId) -> None:
        """Nothing to or from ``peer`` moves any more, and nobody is told (SIGSTOP, a pulled cable)."""
        self._gate(peer).set_shut(True)

    def thaw(self, peer: PeerId) -> None:
        """Undo ``freeze``: what was on its way arrives."""
        self._gate(peer).set_shut(False)

    async def kill(self, peer: PeerId) -> None:
        """Take a peer away at once: bytes in flight are lost, the others read an end."""
        transport = self._transports.get(peer)
        for stream in tuple(self._streams):
            if peer in (stream.local, stream.peer):
                stream.sever()
        if transport is not None:
            await transport.close()

    def tap(self, hook: Tap) -> Callable[[], None]:
        """Let ``hook`` see and alter every write; returns what takes it out again. Later taps see earlier ones' work.

        A hook that raises breaks the stream.
        """
        self._taps.append(hook)

        def remove() -> None:
            with suppress(ValueError):
                self._taps.remove(hook)

        return remove

    async def close(self) -> None:
        """Close every node and wait for every task. Idempotent."""
        for gate in self._gates.values():
            gate.set_shut(False)
        for peer in tuple(self._transports):
            await self.kill(peer)

    def _gate(self, peer: PeerId) -> Gate:
        return self._gates.setdefault(peer, Gate())

    def _link(self, source: PeerId, target: PeerId) -> Link:
        key = (source, target)
        if key not in self._links:
            self._links[key] = Link(source, target, self._shape, self._random)
        return self._links[key]

    def _route(self, source: PeerId, target: PeerId) -> Route:
        return Route(self._link(source, target), (self._gate(source), self._gate(target)), self.clock)

    def _alter(self, source: PeerId, target: PeerId, protocol: str, data: bytes) -> bytes:
        for hook in tuple(self._taps):
            data = hook(source, target, protocol, data)
        return data

    def _reachable(self, source: PeerId, target: PeerId, addresses: Sequence[str]) -> MemoryTransport:
        transport = self._transports.get(target)
        if target == source:
            raise PeerUnreachableError("a node cannot dial itself", hint="use a second transport")
        if transport is None or self._link(source, target).cut:
            raise PeerUnreachableError(f"cannot reach peer {target}: connection refused")
        if addresses and not set(addresses) & set(transport.addresses):
            raise PeerUnreachableError(f"cannot reach peer {target}: it is at none of the given addresses")
        return transport

    def _pair(self, source: PeerId, target: PeerId, protocol: str) -> tuple[MemoryStream, MemoryStream]:
        near, far = MemoryStream(self, source, target, protocol), MemoryStream(self, target, source, protocol)
        there = Pipe(self._route(source, target), on_end=lambda: far._ended(), capacity=self._buffer_bytes)
        back = Pipe(self._route(target, source), on_end=lambda: near._ended(), capacity=self._buffer_bytes)
        near._connect(outgoing=there, incoming=back)
        far._connect(outgoing=back, incoming=there)
        self._streams |= {near, far}
        return near, far


class MemoryStream:
    """One end of an in-memory stream."""

    def __init__(self, network: MemoryNetwork, local: PeerId, peer: PeerId, protocol: str) -> None:
        self._network = network
        self._local = local
        self._peer = peer
        self._protocol = protocol
        self._closed = False
        self._out: Pipe
        self._in: Pipe

    @property
    def peer(self) -> PeerId:
        return self._peer

    @property
    def address(self) -> str:
        """See ``Stream.address``: where the network has put the other end, if anywhere."""
        return self._network.places.get(self._peer, "")

    @property
    def local(self) -> PeerId:
        """This end's own peer."""
        return self._local

    async def read_exactly(self, count: int) -> bytes:
        """See ``Stream.read_exactly``."""
        data = None if self._closed else await self._in.receive(count)
        if data is None:
            raise self._lost()
        return data

    async def write(self, *parts: bytes | memoryview) -> None:
        """See ``Stream.write``."""
        if self._closed or self._out.ended:
            raise self._lost()
        link = self._network._link(self._local, self._peer)
        try:
            data = self._network._alter(self._local, self._peer, self._protocol, b"".join(parts))
        except Exception as error:
            self.sever()
            raise self._lost() from error
        if link.shape.break_rate and link.random.random() < link.shape.break_rate:
            self.sever()
            raise self._lost()
        if data and not await self._out.send(data):
            raise self._lost()

    async def close(self) -> None:
        """See ``Stream.close``. What is written already still arrives."""
        if self._closed:
            return
        self._closed = True
        self._network._streams.discard(self)
        self._out.end()
        self._in.sever()
        await self._in.stopped()

    def sever(self) -> None:
        """Break both directions at once."""
        self._out.sever()
        self._in.sever()

    def _connect(self, *, outgoing: Pipe, incoming: Pipe) -> None:
        self._out, self._in = outgoing, incoming

    def _ended(self) -> None:
        """The incoming direction ended: the other end has gone, so nothing written from here on is read."""
        if not self._closed and not self._out.ended:
            self._out.sever()

    def _lost(self) -> PeerLostError:
        if self._closed:
            return PeerLostError("the stream was closed here", peer=self._peer)
        return PeerLostError(f"peer {self._peer[-8:]} closed the stream or went away", peer=self._peer)


class MemoryTransport:
    """A node of a ``MemoryNetwork``; get it from ``MemoryNetwork.transport``."""

    def __init__(self, network: MemoryNetwork, peer_id: PeerId) -> None:
        self._network = network
        self._peer_id = peer_id
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks = HandlerTasks()
        self._closed = False

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """One address that no other node has."""
        return (f"/memory/{self._peer_id}",)

    async def listen(self, protocol: str, handler: StreamHandler) -> None:
        """See ``Transport.listen``. Raises ``MisuseError`` if ``protocol`` has a handler already."""
        if protocol in self._handlers:
            raise MisuseError(f"protocol {protocol} is served already")
        self._handlers[protocol] = handler

    async def dial(
        self, peer: PeerId, protocol: str, *, addresses: Sequence[str] = (), timeout_s: float = 10.0
    ) -> MemoryStream:
        """See ``Transport.dial``. Takes one round trip of the link."""
        if self._closed:
            raise PeerUnreachableError("this transport is closed")
        work = self._open(peer, protocol, tuple(addresses))
        opened = await _within(work, timeout_s, self._network.clock)
        if opened is None:
            raise PeerUnreachableError(f"peer {peer} did not answer in {timeout_s:g} s")
        return opened

    async def _open(self, peer: PeerId, protocol: str, addresses: tuple[str, ...]) -> MemoryStream:
        network = self._network
        network._reachable(self._peer_id, peer, addresses)
        there, back = network._route(self._peer_id, peer), network._route(peer, self._peer_id)
        if (round_trip_s := there.link.shape.delay_s + back.link.shape.delay_s) > 0:
            await network.clock.sleep(round_trip_s)
        while there.shut:
            for gate in there.gates:
                await gate.passed()
        target = network._reachable(self._peer_id, peer, addresses)  # it may have gone meanwhile
        return target._accept(self._peer_id, protocol)

    def _accept(self, source: PeerId, protocol: str) -> MemoryStream:
        handler = self._handlers.get(protocol)
        if handler is None:
            raise PeerUnreachableError(f"cannot reach peer {self._peer_id}: protocols not supported: [{protocol}]")
        near, far = self._network._pair(source, self._peer_id, protocol)
        if self._tasks.admits(source):
            self._tasks.start(protocol, handler, far)
        else:
            far.sever()
        return near

    async def close(self) -> None:
        """See ``Transport.close``."""
        if self._closed:
            return
        self._closed = True
        self._network._transports.pop(self._peer_id, None)
        await self._tasks.close()
        mine = [stream for stream in self._network._streams if stream.local == self._peer_id]
        await asyncio.gather(*(stream.close() for stream in mine))


async def _within(work: Coroutine[Any, Any, T], timeout_s: float, clock: Clock) -> T | None:
    """The result of ``work``, or None if ``timeout_s`` of ``clock`` pass first. Without waiting there is no timer."""
    tasks: list[asyncio.Future[Any]] = [task := asyncio.ensure_future(work)]
    try:
        await asyncio.sleep(0)
        if not task.done():
            tasks.append(asyncio.ensure_future(clock.sleep(timeout_s)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        if left := [one for one in tasks if one.cancel()]:
            await asyncio.gather(*left, return_exceptions=True)
        if not task.cancelled():
            task.exception()  # whoever was cancelled does not want to know
