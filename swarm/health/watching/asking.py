"""Asks every server how it is, over a line to each that stays open, so that its end is noticed at once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from swarm.core.clock import Clock
from swarm.core.errors import BusyError, PeerError, PeerLostError, RefusedError, SwarmError
from swarm.core.ids import PeerId
from swarm.health.sight import NOTHING_HEARD, Heard
from swarm.runtime.tasks import Tasks
from swarm.transport.protocol import Transport
from swarm.transport.status import StatusLine
from swarm.wire.status import StatusReport

LOADED_S = 2.0
"""A server with sessions is asked so often,"""
IDLE_S = 10.0
"""and one without."""
ASKS_PER_S = 100.0
"""Of all servers together: where that is not enough, each is asked less often."""
MAX_ASKED = 1000
"""Servers with a line; those beyond are known from the directory alone."""
GIVE_WAY_S = 30.0
"""Where others wait to be asked, a server that is out of reach is tried for so long, and then again when all were."""
DIALS_AT_ONCE = 32
"""To servers that were reached before, and as many to those that were not: who is not there keeps no others waiting."""
DIAL_S = 4.0
ANSWER_S = 4.0
"""A server that takes longer to say how it is counts as not reached this time."""
TRIES = 2
"""In a row that must fail before a server counts as out of reach."""
AGAIN_S = 1.0
"""After a first failure."""
BACKOFF_S = (2.0, 4.0, 8.0, 16.0, 30.0)
"""Once it is out of reach; then the last of these."""
PATIENCE = 3
"""Answers in a row after which a line that breaks is opened again at once; whose lines break sooner waits his turn."""
MAX_BUSY_S = 45.0
JITTER = 0.1
REMEMBERED_RTTS = 8
"""The shortest of so many exchanges counts as the round trip: whatever else happened only made one longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a server, and how often to ask it; ``instance`` tells one of its processes from the next."""

    addresses: tuple[str, ...]
    instance: int
    loaded: bool


def stretch(targets: Mapping[PeerId, Target]) -> float:
    """By how much everybody's interval is longer than it would be alone, so that ``ASKS_PER_S`` are kept."""
    wanted_per_s = sum(1 / (LOADED_S if target.loaded else IDLE_S) for target in targets.values())
    return max(1.0, wanted_per_s / ASKS_PER_S)


class Asker:
    """Keeps what was heard of the servers it is told to follow. ``changed`` is called when one is reached or lost."""

    def __init__(
        self, transport: Transport, clock: Clock, changed: Callable[[], None], chance: Random | None = None
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._changed = changed
        self._random = chance or Random()
        self._dials = {known: asyncio.Semaphore(DIALS_AT_ONCE) for known in (False, True)}
        self._tasks = Tasks(self._failed)
        self._visits: dict[PeerId, tuple[_Visit, asyncio.Task[None]]] = {}
        self._past: dict[PeerId, Heard] = {}
        """What was heard of those that gave way."""
        self._stretch = 1.0

    def follow(self, targets: Mapping[PeerId, Target]) -> None:
        """From now on ask these and no others; of more than ``MAX_ASKED`` those that are asked already, but for those
        out of reach for long, then whoever was not tried yet, in order.

        A server with a new process or new addresses is tried at once.
        """
        for peer in [peer for peer in self._visits if peer not in targets]:
            self._visits.pop(peer)[1].cancel()
        self._past = {peer: heard for peer, heard in self._past.items() if peer in targets}
        self._make_way(len(targets) - MAX_ASKED)
        chosen = {peer: target for peer, target in targets.items() if peer in self._visits}
        for peer in sorted(targets, key=lambda peer: peer in self._past):
            if len(chosen) >= MAX_ASKED:
                break
            chosen.setdefault(peer, targets[peer])
        self._stretch = stretch(chosen)
        for peer, target in chosen.items():
            if peer in self._visits:
                self._visits[peer][0].update(target)
            elif peer != self._transport.peer_id:
                visit = _Visit(self, peer, target, self._past.pop(peer, NOTHING_HEARD))
                self._visits[peer] = visit, self._tasks.spawn(visit.run(), name=f"ask {peer[-8:]}")

    def _make_way(self, waiting: int) -> None:
        """For so many: else records of servers that never were would keep all others from being looked at."""
        began_s = self.monotonic_s() - GIVE_WAY_S
        lost = [peer for peer, (visit, _) in self._visits.items() if visit.is_lost and visit.began_s <= began_s]
        for peer in lost[: max(waiting, 0)]:
            visit, task = self._visits.pop(peer)
            task.cancel()
            self._past[peer] = visit.heard

    def heard(self) -> dict[PeerId, Heard]:
        """What is known of those that are followed."""
        return self._past | {peer: visit.heard for peer, (visit, _) in self._visits.items()}

    async def close(self) -> None:
        """Hang up on everybody. Idempotent."""
        await self._tasks.close()

    def _failed(self, name: str, error: Exception) -> None:
        _log.error("%s failed: %s", name, error)

    # -- for visits -----------------------------------------------------------------------------------------

    def jittered(self, seconds: float) -> float:
        return seconds * self._random.uniform(1 - JITTER, 1 + JITTER)

    def interval_s(self, *, loaded: bool) -> float:
        return self.jittered((LOADED_S if loaded else IDLE_S) * self._stretch)

    def wall_s(self) -> float:
        return self._clock.wall_s()

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def tell(self) -> None:
        self._changed()

    async def dial(self, peer: PeerId, target: Target, *, known: bool) -> StatusLine:
        async with self._dials[known]:
            return await StatusLine.open(self._transport, peer, addresses=target.addresses, dial_s=DIAL_S)


class _Visit:
    """One server's line, opened again whenever it ends."""

    def __init__(self, asker: Asker, peer: PeerId, target: Target, heard: Heard) -> None:
        self._asker = asker
        self._peer = peer
        self._target = target
        self._woken = asyncio.Event()
        self._failures = 0
        self._broken = 0
        self._answers = 0
        self._rtts_s: deque[float] = deque(maxlen=REMEMBERED_RTTS)
        self.heard = heard
        self.began_s = asker.monotonic_s()

    @property
    def is_lost(self) -> bool:
        return self.heard.reached is False

    def update(self, target: Target) -> None:
        """What the directory says of it now."""
        other = (target.addresses, target.instance) != (self._target.addresses, self._target.instance)
        busier = target.loaded and not self._target.loaded and self.heard.note != "busy"
        if busier or (other and not self.heard.reached):
            self._woken.set()
        self._target = target

    async def run(self) -> None:
        while True:
            wait_s = await self._talk()
            await self._pause(None, wait_s)

    async def _talk(self) -> float:
        """Ask over one line until it ends; returns when to try again."""
        line: StatusLine | None = None
        answered = False
        try:
            line = await self._asker.dial(self._peer, self._target, known=self.heard.heard_at is not None)
            while True:
                wait_s = await self._asked(line)
                answered = True
                await self._pause(line, wait_s)
        except RefusedError:
            self._answered(report=None, note="off")
            return self._asker.interval_s(loaded=False)
        except PeerError as error:
            _log.debug("cannot make sense of %s: %s", self._peer[-8:], error)
            self._answered(report=None, note="invalid")
            return self._asker.jittered(BACKOFF_S[-1])
        except (SwarmError, TimeoutError) as error:
            if line is None or answered or not isinstance(error, PeerLostError):
                return self._lost(error)
            self._answered(report=self.heard.report, note="busy")  # it picked up, and had too many on the line
            return self._asker.interval_s(loaded=False)
        finally:
            if line is not None:
                await line.close()

    async def _asked(self, line: StatusLine) -> float:
        """One question; returns when to ask the next. Raises what ended the line, and ``TimeoutError``."""
        began_s = self._asker.monotonic_s()
        try:
            async with asyncio.timeout(ANSWER_S):
                report = await line.ask()
        except BusyError as error:
            self._answered(report=self.heard.report, note="busy")
            return min(max(error.retry_after_s, self._asker.interval_s(loaded=False)), MAX_BUSY_S)
        self._rtts_s.append(self._asker.monotonic_s() - began_s)
        self._answered(report=report, note="")
        return self._asker.interval_s(loaded=self._target.loaded)

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
        now_s, before = self._asker.wall_s(), self.heard
        self._failures = 0
        self._answers += 1
        if self._answers >= PATIENCE:
            self._broken = 0
        kept = report is before.report
        self.heard = replace(
            before,
            reached=True,
            since_at=before.since_at if before.reached else now_s,
            heard_at=now_s,
            rtt_s=min(self._rtts_s, default=None),
            report=report,
            report_at=before.report_at if kept else now_s,
            note=note,
        )
        if not before.reached:
            self._asker.tell()

    def _lost(self, error: Exception) -> float:
        """A try came to nothing; returns when to try again."""
        self._failures += 1
        self._broken += 1
        self._answers = 0
        backoff_s = self._asker.jittered(BACKOFF_S[min(max(self._broken - TRIES, 0), len(BACKOFF_S) - 1)])
        if self._failures < TRIES:
            return backoff_s if self._broken > PATIENCE else self._asker.jittered(AGAIN_S)
        before = self.heard
        if before.reached is not False:
            _log.debug("cannot reach %s: %s", self._peer[-8:], error)
            self._rtts_s.clear()
            self.heard = replace(
                before, reached=False, since_at=self._asker.wall_s(), rtt_s=None, report=None, note="unreachable"
            )
            self._asker.tell()
        return backoff_s
