"""One direction of an in-memory stream: a bounded buffer, and the link that delays, shapes, alters or breaks it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarm.core.clock import Clock
from swarm.core.ids import PeerId

BUFFER_BYTES = 256 * 1024
"""Bytes a stream holds in flight and unread, per direction, before its writer has to wait."""

Tap = Callable[[PeerId, PeerId, str, bytes], bytes]
"""``(source, target, protocol, data) -> data``: sees every write, and may alter, swallow or lengthen it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """One direction between two peers.

    ``delay_s`` one way, up to ``jitter_s`` more at random (order is kept), ``bits_per_s`` shared by all streams of
    the link (None: unlimited), ``break_rate`` the probability that a write breaks the stream.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bits_per_s: float | None = None
    break_rate: float = 0.0


class Link:
    """The state of one direction between two peers, shared by all their streams."""

    def __init__(self, source: PeerId, target: PeerId, shape: LinkShape, random: Random) -> None:
        self.source = source
        self.target = target
        self.shape = shape
        self.random = random
        self.cut = False
        self._sent_until_s = 0.0

    def arrival_s(self, byte_count: int, now_s: float) -> float:
        """When the last of ``byte_count`` bytes written now arrives: they queue behind what is being sent."""
        start_s = max(now_s, self._sent_until_s)
        if self.shape.bits_per_s is not None:
            self._sent_until_s = start_s + 8 * byte_count / self.shape.bits_per_s
            start_s = self._sent_until_s
        jitter_s = self.random.uniform(0, self.shape.jitter_s) if self.shape.jitter_s else 0.0
        return start_s + self.shape.delay_s + jitter_s


class Gate:
    """Open, or shut while a peer is frozen."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    @property
    def shut(self) -> bool:
        return not self._open.is_set()

    def set_shut(self, shut: bool) -> None:
        if shut:
            self._open.clear()
        else:
            self._open.set()

    async def passed(self) -> None:
        """Return once the gate is open."""
        await self._open.wait()


@dataclass(frozen=True, slots=True)
class Route:
    """What a pipe's bytes pass: the link, the gates of both peers, the clock."""

    link: Link
    gates: tuple[Gate, Gate]
    clock: Clock

    @property
    def shut(self) -> bool:
        return any(gate.shut for gate in self.gates)


class Pipe:
    """Bytes from one peer to another, in order. ``end`` finishes it after what is in flight, ``sever`` at once."""

    def __init__(self, route: Route, *, on_end: Callable[[], None], capacity: int = BUFFER_BYTES) -> None:
        self._route = route
        self._on_end = on_end
        self._capacity = capacity
        self._buffer = bytearray()
        self._flight: deque[tuple[float, bytes | None]] = deque()  # (arrival, bytes or the end)
        self._flight_bytes = 0
        self._last_arrival_s = 0.0
        self._wanted_bytes = 0
        self._changed = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self.ended = False

    @property
    def _full(self) -> bool:
        """A reader that asks for more at once than a pipe holds gets it, as over a socket."""
        return self._flight_bytes + len(self._buffer) > max(self._capacity, self._wanted_bytes)

    async def send(self, data: bytes) -> bool:
        """Put ``data`` on its way and wait while too much is unread. False if nobody will ever read it."""
        if self.ended:
            return False
        self._launch(data)
        while self._full and not self.ended:
            await self._change()
        return not self.ended

    def end(self) -> None:
        """No more bytes: the reader's end comes after everything in flight."""
        if not self.ended:
            self._launch(None)

    def sever(self) -> None:
        """End now; what is in flight is lost, what has arrived can still be read."""
        self._flight.clear()
        self._flight_bytes = 0
        if self._pump is not None:
            self._pump.cancel()
        if not self.ended:
            self._finish()

    async def receive(self, count: int) -> bytes | None:
        """The next ``count`` bytes, or None if the pipe ends first. Cancelled, it takes nothing."""
        self._wanted_bytes = count
        try:
            while len(self._buffer) < count:
                if self.ended:
                    return None
                self._notify()
                await self._change()
        finally:
            self._wanted_bytes = 0
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._notify()
        return data

    async def stopped(self) -> None:
        """Wait until the pump, if any, has ended. Call after ``sever``."""
        if self._pump is not None:
            await asyncio.gather(self._pump, return_exceptions=True)

    def _launch(self, data: bytes | None) -> None:
        route = self._route
        now_s = route.clock.monotonic_s()
        arrival_s = max(self._last_arrival_s, route.link.arrival_s(len(data or b""), now_s))
        self._last_arrival_s = arrival_s
        if not self._flight and arrival_s <= now_s and not route.shut:
            self._arrive(data)
            return
        self._flight.append((arrival_s, data))
        self._flight_bytes += len(data or b"")
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._deliver(), name="memory link")

    async def _deliver(self) -> None:
        route = self._route
        while self._flight:
            arrival_s, data = self._flight[0]
            if (wait_s := arrival_s - route.clock.monotonic_s()) > 0:
                await route.clock.sleep(wait_s)
                continue
            if route.shut:
                for gate in route.gates:
                    await gate.passed()
                continue
            self._flight.popleft()
            self._flight_bytes -= len(data or b"")
            self._arrive(data)

    def _arrive(self, data: bytes | None) -> None:
        if data is None:
            self._finish()
            return
        self._buffer += data
        self._notify()

    def _finish(self) -> None:
        self.ended = True
        self._notify()
        self._on_end()

    def _notify(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
