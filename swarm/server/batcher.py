"""Continuous batching: whatever is ready goes into the next packed forward, decode steps first.

One compute thread runs the engine; this loop only chooses what it runs next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from swarm.core.errors import SwarmError
from swarm.engine.executor import SpanEngine
from swarm.server.companions import Companions
from swarm.server.meter import Meter
from swarm.server.session import Job, ServerSession
from swarm.wire.messages import DECODE_LANE

log = logging.getLogger(__name__)

T = TypeVar("T")

UNCOMPUTED = "the server failed to compute a step"
SPIN_S = 0.002
"""Waits this short are spun through: a timer's grain is coarser."""


class Batcher:
    """Feeds the engine from every session's queue, and ``meter`` with what its decode steps took."""

    def __init__(self, engine: SpanEngine, meter: Meter, *, batch_tokens: int) -> None:
        self._engine = engine
        self._meter = meter
        self._batch_tokens = batch_tokens
        self._ready: dict[ServerSession, float] = {}  # since when; insertion order is the queue's order
        self._wake = asyncio.Event()
        self._companions = Companions()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.steps_computed = 0
        self.batches_computed = 0

    @property
    def queued_steps(self) -> int:
        """Steps that wait for their turn."""
        return sum(len(session.inbox) for session in self._ready)

    def notify(self, session: ServerSession) -> None:
        """A session has, or may again have, a step to compute."""
        if session.ready and session not in self._ready:
            self._ready[session] = asyncio.get_running_loop().time()
            self._wake.set()

    def forget(self, session: ServerSession) -> None:
        """Drop a closed session's waiting steps and free its KV; waits for a forward that is using it."""
        self._ready.pop(session, None)
        self._companions.forget(session)
        session.inbox.clear()
        if not session.computing:
            self._engine.close(session.slot)

    async def run(self) -> None:
        """Compute batches until cancelled."""
        loop = asyncio.get_running_loop()
        jobs: list[Job] = []
        try:
            while True:
                await self._gather()
                jobs = self._pick()
                if not jobs:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                began_s = loop.time()
                failures = await self.apart(partial(self._compute, jobs))
                if all(job.lane == DECODE_LANE for job in jobs):  # a prefill's length says nothing about decoding
                    self._measure(jobs, failures, began_s, loop.time())
                self._settle(jobs, failures)
                jobs = []
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            for job in jobs:  # a forward that nobody will settle
                job.session.computing = False
                if job.session.closed:
                    self.forget(job.session)

    async def apart(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the compute thread, between two forwards."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _measure(self, jobs: Sequence[Job], failures: Mapping[int, SwarmError], began_s: float, ended_s: float) -> None:
        """Note what a forward of decode steps took."""
        together = [job.session for job in jobs if not job.session.closed]
        self._companions.computed(together, ended_s - began_s, ended_s)
        if not failures:
            layers = [job.session.opened.end - job.session.opened.start for job in jobs]
            self._meter.computed(layers, [began_s - job.ready_s for job in jobs], ended_s - began_s, ended_s)

    async def _gather(self) -> None:
        """Give companions of the waiting steps a moment to arrive, as long as that pays."""
        if not self._ready:
            return
        loop = asyncio.get_running_loop()
        wait = self._companions.begin(self._ready, loop.time())
        while True:
            now_s = loop.time()
            until_s = self._companions.until_s(wait, self._ready, now_s)
            if until_s <= now_s:
                break
            here = len(self._ready)
            await self._another(until_s - now_s)
            if len(self._ready) > here:
                wait.arrived_s = loop.time()
        self._companions.end(wait, loop.time())

    async def _another(self, seconds: float) -> None:
        """Return when a session becomes ready, or after ``seconds``; may return early."""
        if seconds < SPIN_S:
            await asyncio.sleep(0)
            return
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _pick(self) -> list[Job]:
        """Decode steps first, then prefill chunks in order of arrival, up to the token budget; at least one step."""
        waiting = sorted(self._ready, key=lambda session: bool(session.inbox) and session.inbox[0].lane != DECODE_LANE)
        jobs: list[Job] = []
        rows = 0
        for session in waiting:
            if session.inbox and jobs and rows + session.inbox[0].step.rows > self._batch_tokens:
                continue
            ready_s = self._ready.pop(session)
            job = session.take() if session.ready else None
            if job is not None:
                job.ready_s = ready_s
                jobs.append(job)
                rows += job.step.rows
        return jobs

    def _compute(self, jobs: list[Job]) -> dict[int, SwarmError]:
        """In the compute thread: run the batch; if it fails, run each alone to find who is to blame.

        Running again is safe: every step first truncates its cache to its own ``keep``.
        """
        failures: dict[int, SwarmError] = {}
        try:
            self._forward(jobs)
        except Exception as error:
            if len(jobs) == 1:
                return {0: as_swarm_error(error, UNCOMPUTED)}
            for index, job in enumerate(jobs):
                try:
                    self._forward([job])
                except Exception as alone:
                    failures[index] = as_swarm_error(alone, UNCOMPUTED)
        return failures

    def _forward(self, jobs: list[Job]) -> None:
        outputs = self._engine.run([job.work() for job in jobs])
        for job, output in zip(jobs, outputs, strict=True):
            job.computed(output)

    def _settle(self, jobs: Iterable[Job], failures: dict[int, SwarmError]) -> None:
        self.batches_computed += 1
        for index, job in enumerate(jobs):
            session = job.session
            session.computing = False
            error = failures.get(index)
            if error is None:
                self.steps_computed += 1
                session.done(job)
            else:
                log.warning("session %s failed: %s", session.key, error)
                log.debug("where it failed", exc_info=error)
                session.failed(job, error)
            if session.closed:
                self.forget(session)
            else:
                self.notify(session)


def as_swarm_error(error: Exception, what: str) -> SwarmError:
    """The error itself if it is one of ours; else one that says ``what`` went wrong, and its kind."""
    if isinstance(error, SwarmError):
        return error
    wrapped = SwarmError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
