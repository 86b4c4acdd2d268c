"""One server's line, opened again whenever it ends, and what is made of its answers and of its silence."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from swarm.core.clock import Clock
from swarm.core.errors import BusyError, PeerError, PeerLostError, RefusedError, SwarmError
from swarm.core.ids import PeerId
from swarm.health.networks import network_of
from swarm.health.sight import NOTHING_HEARD, Heard
from swarm.transport.protocol import Transport
from swarm.transport.status import StatusLine
from swarm.wire.status import StatusReport

EVERY_S = 2.0
"""A server is asked so often,"""
ASKS_PER_S = 200.0
"""all together: where that is not enough, each less often."""
DIALS_AT_ONCE = 32
"""To servers that were reached before;"""
NEW_DIALS_AT_ONCE = 96
"""and to those that were not: who is not there keeps no others waiting, but for his like."""
DIAL_S = 4.0
ANSWER_S = 3.0
"""A server that takes longer to say how it is counts as not reached this time."""
ANSWER_PIECES = 3
"""The wait has so many parts: a stall of this process ends one of them, and what came meanwhile is read in the next."""
TRIES = 2
"""In a row that must fail before a server counts as out of reach; one, where a server that has answered falls silent
while others answer."""
AGAIN_S = 1.0
"""After a first failure."""
BACKOFF_S = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Once it is out of reach; then the last of these."""
PATIENCE = 3
"""Answers in a row after which a line that breaks is opened again at once; whose lines break sooner waits his turn."""
BUSY_S = 10.0
"""So long a server that is busy is left alone at least."""
MAX_BUSY_S = 45.0
JITTER = 0.1
REMEMBERED_RTTS = 8
"""The shortest of so many exchanges counts as the round trip: whatever else happened only made one longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a server; ``instance`` tells one of its processes from the next."""

    addresses: tuple[str, ...]
    instance: int


@dataclass(slots=True)
class Record:
    """What became of a server so far. Times that end in ``_s`` are monotonic.

    ``network`` is where it was found, before that where it says to be. ``since_s``: it answers since then; it stays
    while the silence is short (``lost_s``). ``seat_s``: when it was given a line last.
    """

    target: Target
    network: str
    met_s: float
    heard: Heard = NOTHING_HEARD
    since_s: float | None = None
    lost_s: float | None = None
    seat_s: float | None = None


class Desk:
    """What all visits share. ``changed`` is called when a server is reached or lost."""

    def __init__(self, transport: Transport, clock: Clock, changed: Callable[[], None], chance: Random) -> None:
        self._transport = transport
        self._clock = clock
        self._random = chance
        self._dials = {True: asyncio.Semaphore(DIALS_AT_ONCE), False: asyncio.Semaphore(NEW_DIALS_AT_ONCE)}
        self.changed = changed
        self.lines = 0
        self.answers = 0
        """From all servers so far."""

    def jittered(self, seconds: float) -> float:
        return seconds * self._random.uniform(1 - JITTER, 1 + JITTER)

    def interval_s(self) -> float:
        """Until a server is asked again, so that all ``lines`` keep to ``ASKS_PER_S``."""
        return self.jittered(max(EVERY_S, self.lines / ASKS_PER_S))

    def wall_s(self) -> float:
        return self._clock.wall_s()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    async def dial(self, peer: PeerId, target: Target, *, known: bool) -> StatusLine:
        async with self._dials[known]:
            return await StatusLine.open(self._transport, peer, addresses=target.addresses, dial_s=DIAL_S)


class Silence(TimeoutError):
    """No answer came in time. ``alone``: others did answer meanwhile, so it is not this page that is cut off."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__(f"no answer within {ANSWER_S:g} s")
        self.alone = alone


class Visit:
    """Asks one server for as long as it runs, and writes into its ``record``."""

    def __init__(self, desk: Desk, peer: PeerId, record: Record) -> None:
        self._desk = desk
        self._peer = peer
        self._record = record
        self._woken = asyncio.Event()
        self._failures = 0
        self._broken = 0
        self._answers = 0
        self._rtts_s: deque[float] = deque(maxlen=REMEMBERED_RTTS)

    def update(self, target: Target) -> None:
        """What the directory says of it now."""
        if target != self._record.target and not self._record.heard.reached:
            self._woken.set()
        self._record.target = target

    async def run(self) -> None:
        while True:
            wait_s = await self._talk()
            await self._pause(None, wait_s)

    async def _talk(self) -> float:
        """Ask over one line until it ends; returns when to try again."""
        line: StatusLine | None = None
        answered, heard = False, self._record.heard
        try:
            line = await self._desk.dial(self._peer, self._record.target, known=heard.heard_at is not None)
            self._record.network = network_of(line.address) or self._record.network
            while True:
                wait_s = await self._asked(line)
                answered = True
                await self._pause(line, wait_s)
        except RefusedError:
            self._answered(report=None, note="off")
            return self._desk.interval_s()
        except PeerError as error:
            _log.debug("cannot make sense of %s: %s", self._peer[-8:], error)
            self._answered(report=None, note="invalid")
            return self._desk.jittered(BACKOFF_S[-1])
        except (SwarmError, TimeoutError) as error:
            if line is None or answered or not isinstance(error, PeerLostError):
                return self._lost(error)
            # It picked up, and had too many on the line.
            self._answered(report=self._record.heard.report, note="busy")
            return self._desk.jittered(BUSY_S)
        finally:
            if line is not None:
                await line.close()

    async def _asked(self, line: StatusLine) -> float:
        """One question; returns when to ask the next. Raises what ended the line, and ``Silence``."""
        began_s = self._desk.monotonic_s()
        try:
            report = await self._answer(line)
        except BusyError as error:
            self._answered(report=self._record.heard.report, note="busy")
            return min(max(error.retry_after_s, self._desk.jittered(BUSY_S)), MAX_BUSY_S)
        self._rtts_s.append(self._desk.monotonic_s() - began_s)
        self._answered(report=report, note="")
        return self._desk.interval_s()

    async def _answer(self, line: StatusLine) -> StatusReport:
        asking = asyncio.ensure_future(line.ask())
        answers = 0
        try:
            for piece in range(ANSWER_PIECES):
                await asyncio.wait({asking}, timeout=ANSWER_S / ANSWER_PIECES)
                if asking.done():
                    return asking.result()
                if piece == 0:  # what others had sent before we were cut off says nothing
                    answers = self._desk.answers
            raise Silence(alone=self._desk.answers > answers)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _pause(self, line: StatusLine | None, seconds: float) -> None:
        """Until it is time, somebody wakes us, or the line ends, which raises what ended it."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._woken.wait())]
        if line is not None:
            waits.append(asyncio.create_task(line.ended()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._woken.clear()
        if line is not None and not line.is_open:
            raise await line.ended()

    def _answered(self, *, report: StatusReport | None, note: str) -> None:
        now_s, before = self._desk.wall_s(), self._record.heard
        self._desk.answers += 1
        self._failures = 0
        self._answers += 1
        if self._answers >= PATIENCE:
            self._broken = 0
        kept = report is before.report
        self._record.lost_s = None
        if self._record.since_s is None:
            self._record.since_s = self._desk.monotonic_s()
        self._record.heard = replace(
            before,
            reached=True,
            since_at=before.since_at if before.reached else now_s,
            heard_at=now_s,
            rtt_s=min(self._rtts_s, default=None),
            report=report,
            report_at=before.report_at if kept else now_s,
            note=note,
            network=self._record.network,
        )
        if not before.reached:
            self._desk.changed()

    def _lost(self, error: Exception) -> float:
        """A try came to nothing; returns when to try again."""
        before = self._record.heard
        certain = bool(before.reached) and isinstance(error, Silence) and error.alone
        self._failures += TRIES if certain else 1
        self._broken += 1
        self._answers = 0
        step = min(max(self._broken - TRIES, 0), len(BACKOFF_S) - 1)
        backoff_s = self._desk.jittered(BACKOFF_S[step])
        if self._failures < TRIES:
            return backoff_s if self._broken > PATIENCE else self._desk.jittered(AGAIN_S)
        if before.reached is not False:
            _log.debug("cannot reach %s: %s", self._peer[-8:], error)
            self._rtts_s.clear()
            self._record.lost_s = self._desk.monotonic_s()
            self._record.heard = replace(
                before, reached=False, since_at=self._desk.wall_s(), rtt_s=None, report=None, note="unreachable"
            )
            self._desk.changed()
        return backoff_s
