"""Continuous batching: whatever is ready goes into the next packed forward, decode steps first.

One compute thread runs the engine; this loop only chooses what it runs next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from swarm.core.errors import SwarmError
from swarm.engine.executor import SpanEngine
from swarm.server.session import Job, ServerSession
from swarm.wire.messages import DECODE_LANE

log = logging.getLogger(__name__)


GATHER_SHARE = 0.05
"""Of a forward's usual time, how long an idle engine waits for the next companion of a step that has come."""
GATHER_ROUNDS = 3
"""Such waits in a row, at most."""
COMPANION_S = 1.0
"""A session that computed a step within this time is expected back."""


class Batcher:
    """Feeds the engine from every session's queue.

    Sessions that left a server in one batch reach the next one a moment apart. An engine that started on the first of
    them would split them for good, and compute one by one what costs the same together. So an idle engine waits for
    companions, a twentieth of a forward at a time; a lone session never waits.
    """

    def __init__(self, engine: SpanEngine, *, batch_tokens: int) -> None:
        self._engine = engine
        self._batch_tokens = batch_tokens
        self._ready: dict[ServerSession, None] = {}  # insertion order is the queue's order
        self._wake = asyncio.Event()
        self._companions: dict[ServerSession, float] = {}  # when each last computed
        self._forward_s = 0.0
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
            self._ready[session] = None
            self._wake.set()

    def forget(self, session: ServerSession) -> None:
        """Drop a closed session's waiting steps and free its KV; waits for a forward that is using it."""
        self._ready.pop(session, None)
        self._companions.pop(session, None)
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
                began_s = time.perf_counter()
                failures = await loop.run_in_executor(self._thread, self._compute, jobs)
                self._note_time(jobs, time.perf_counter() - began_s)
                self._settle(jobs, failures)
                jobs = []
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            for job in jobs:  # a forward that nobody will settle
                job.session.computing = False
                if job.session.closed:
                    self.forget(job.session)

    async def _gather(self) -> None:
        """Wait a moment for sessions that are expected and not here yet; not at all if nothing, or everything, is."""
        now_s = time.perf_counter()
        for session, seen_s in list(self._companions.items()):
            if now_s - seen_s > COMPANION_S:
                del self._companions[session]
        window_s = GATHER_SHARE * self._forward_s
        end_s, deadline_s = now_s + GATHER_ROUNDS * window_s, now_s + window_s
        while self._ready and time.perf_counter() < min(deadline_s, end_s):
            here = len(self._ready)
            if self._companions.keys() <= self._ready.keys():
                return
            await asyncio.sleep(0)  # a timer's grain is coarser than the whole wait
            if len(self._ready) > here:
                deadline_s = time.perf_counter() + window_s

    def _pick(self) -> list[Job]:
        """Decode steps first, then prefill chunks in order of arrival, up to the token budget; at least one step."""
        waiting = sorted(self._ready, key=lambda session: bool(session.inbox) and session.inbox[0].lane != DECODE_LANE)
        jobs: list[Job] = []
        rows = 0
        for session in waiting:
            if session.inbox and jobs and rows + session.inbox[0].step.rows > self._batch_tokens:
                continue
            del self._ready[session]
            job = session.take() if session.ready else None
            if job is not None:
                jobs.append(job)
                rows += job.step.rows
        return jobs

    def _note_time(self, jobs: list[Job], took_s: float) -> None:
        """Remember who computed, and how long a decode forward takes (prefill's length says nothing about it)."""
        now_s = time.perf_counter()
        self._companions.update((job.session, now_s) for job in jobs if not job.session.closed)
        if all(job.lane == DECODE_LANE for job in jobs):
            self._forward_s += 0.2 * (took_s - self._forward_s)

    def _compute(self, jobs: list[Job]) -> dict[int, SwarmError]:
        """In the compute thread: run the batch; if it fails, run each alone to find who is to blame.

        Running again is safe: every step first truncates its cache to its own ``keep``.
        """
        failures: dict[int, SwarmError] = {}
        try:
            self._forward(jobs)
        except Exception as error:
            if len(jobs) == 1:
                return {0: _as_swarm_error(error)}
            for index, job in enumerate(jobs):
                try:
                    self._forward([job])
                except Exception as alone:
                    failures[index] = _as_swarm_error(alone)
        return failures

    def _forward(self, jobs: list[Job]) -> None:
        outputs = self._engine.run([job.work() for job in jobs])
        for job, output in zip(jobs, outputs, strict=True):
            job.output = output
            if job.session.sampler is not None:
                job.choices = job.session.sampler.advance(job.step, job.ids, output.logits)

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
                session.fail(error)
            if session.closed:
                self.forget(session)
            else:
                self.notify(session)


def _as_swarm_error(error: Exception) -> SwarmError:
    if isinstance(error, SwarmError):
        return error
    wrapped = SwarmError(f"the server failed to compute a step: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
