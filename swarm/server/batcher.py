"""Continuous batching: whatever is ready goes into the next packed forward, decode steps first.

One compute thread runs the engine; this loop only chooses what it runs next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from swarm.core.errors import SwarmError
from swarm.engine.executor import SpanEngine
from swarm.server.session import Job, ServerSession
from swarm.wire.messages import DECODE_LANE

log = logging.getLogger(__name__)


class Batcher:
    """Feeds the engine from every session's queue."""

    def __init__(self, engine: SpanEngine, *, batch_tokens: int) -> None:
        self._engine = engine
        self._batch_tokens = batch_tokens
        self._ready: dict[ServerSession, None] = {}  # insertion order is the queue's order
        self._wake = asyncio.Event()
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
        session.inbox.clear()
        if not session.computing:
            self._engine.close(session.slot)

    async def run(self) -> None:
        """Compute batches until cancelled."""
        loop = asyncio.get_running_loop()
        jobs: list[Job] = []
        try:
            while True:
                jobs = self._pick()
                if not jobs:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                failures = await loop.run_in_executor(self._thread, self._compute, jobs)
                self._settle(jobs, failures)
                jobs = []
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            for job in jobs:  # a forward that nobody will settle
                job.session.computing = False
                if job.session.closed:
                    self.forget(job.session)

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
