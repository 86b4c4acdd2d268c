"""Continuous batching: what is ready goes into the next packed forward, decode steps first, shared between clients.

One compute thread runs the engine; this loop only gathers, and has ``FairQueue`` choose what is computed next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from swarm.core.errors import SwarmError
from swarm.engine.executor import SpanEngine
from swarm.scheduling.fair_queue import WEIGHTS, Bounds, FairQueue, Waiting, forward_s, shared_rows
from swarm.server.queueing.companions import Companions
from swarm.server.queueing.turnaround import Turnaround
from swarm.server.reports.figures import Figures
from swarm.server.reports.meter import Meter
from swarm.server.sessions.session import Job, ServerSession
from swarm.wire.fields import DECODE_LANE
from swarm.wire.messages import Failed

log = logging.getLogger(__name__)

T = TypeVar("T")

UNCOMPUTED = "the server failed to compute a step"
SPIN_S = 0.002
"""Waits this short are spun through: a timer's grain is coarser."""


class Batcher:
    """Feeds the engine from every session's queue, ``meter`` with what its decode steps took, ``figures`` with all.

    A step that has waited ``queue_deadline_s`` for its turn ends its session: its client should go elsewhere.
    """

    def __init__(
        self,
        engine: SpanEngine,
        meter: Meter,
        figures: Figures,
        *,
        batch_tokens: int,
        queue_deadline_s: float = math.inf,
    ) -> None:
        self._engine = engine
        self._meter = meter
        self._figures = figures
        self._batch_tokens = batch_tokens
        self._queue_deadline_s = queue_deadline_s
        self._ready: dict[ServerSession, float] = {}  # since when; insertion order is the queue's order
        self._wake = asyncio.Event()
        self._companions = Companions()
        self._queue = FairQueue()
        self._running: Sequence[ServerSession] = ()
        self.turnaround = Turnaround()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self.steps_computed = 0
        self.batches_computed = 0

    @property
    def queued_steps(self) -> int:
        """Steps that wait for their turn."""
        return sum(len(session.inbox) for session in self._sessions)

    @property
    def queued_rows(self) -> int:
        """Rows of those steps."""
        return sum(job.step.rows for session in self._sessions for job in session.inbox)

    @property
    def _sessions(self) -> set[ServerSession]:
        """Those with a step that is ready, or in the engine."""
        return {*self._ready, *self._running}

    def notify(self, session: ServerSession) -> None:
        """A session has, or may again have, a step to compute."""
        if session.ready and session not in self._ready:
            self._ready[session] = asyncio.get_running_loop().time()
            self._wake.set()

    def forget(self, session: ServerSession) -> None:
        """Drop a closed session's waiting steps and free its KV; waits for a forward that is using it."""
        self._ready.pop(session, None)
        self._companions.forget(session)
        self.turnaround.forget(session)
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
                if not jobs and self._ready:
                    continue  # what was chosen had been voided meanwhile
                if not jobs:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                began_s = loop.time()
                self._running = [job.session for job in jobs]
                self._figures.began(began_s)
                failures = await self.apart(partial(self._compute, jobs))
                self._running = ()
                self._measure(jobs, failures, began_s, loop.time())
                self._settle(jobs, failures)
                jobs = []
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._figures.stopped()
            for job in jobs:  # a forward that nobody will settle
                job.session.computing = False
                if job.session.closed:
                    self.forget(job.session)

    async def apart(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the compute thread, between two forwards."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _measure(self, jobs: Sequence[Job], failures: Mapping[int, SwarmError], began_s: float, ended_s: float) -> None:
        """Note what a forward took."""
        took_s, decode = ended_s - began_s, all(job.lane == DECODE_LANE for job in jobs)
        self._figures.ended(ended_s, decode=decode and not failures)
        for job in jobs:
            job.compute_s, job.computed_s = took_s, ended_s
            if not job.session.closed:
                self.turnaround.worked(job.session, ended_s)
                if job.lane == DECODE_LANE:
                    self.turnaround.came_around(job.session, job.ready_s, ended_s, self._share(job.session))
        if not decode:
            return  # a prefill's length says nothing about decoding
        together = [job.session for job in jobs if not job.session.closed]
        self._companions.computed(together, took_s, ended_s)
        if not failures:
            self._meter.computed(
                [_layers(job.session) for job in jobs], [began_s - job.ready_s for job in jobs], took_s, ended_s
            )
            self.turnaround.computed(len(jobs), took_s, ended_s, self._meter.step_s)

    def _count(self, job: Job) -> None:
        session, now_s = job.session, job.computed_s
        self._figures.computed(session, now_s, rows=job.step.rows, decode=job.is_decode, answers=job.answers)

    def _share(self, session: ServerSession) -> float:
        return _layers(session) / self._engine.info.layer_count

    async def _gather(self) -> None:
        """Give companions of the waiting steps a moment to arrive, as long as that pays."""
        if not self._ready:
            return
        loop = asyncio.get_running_loop()
        wait = self._companions.begin(self._ready, loop.time())
        enough = self._bounds().shared_rows if self._queue.clients > 1 else self._batch_tokens
        while len(self._ready) < enough:
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
        """The next forward: see ``FairQueue.pick``."""
        now_s = asyncio.get_running_loop().time()
        self._drop_overdue(now_s - self._queue_deadline_s)
        self._ready = {session: since_s for session, since_s in self._ready.items() if session.ready}
        sessions = list(self._ready)
        waiting = self._waiting(sessions)
        jobs: list[Job] = []
        for index in self._queue.pick(waiting, self._bounds(), now_s):
            session = sessions[index]
            ready_s = self._ready.pop(session)
            if (job := session.take()) is not None:
                job.ready_s = ready_s
                jobs.append(job)
        return jobs

    def _drop_overdue(self, before_s: float) -> None:
        for session, ready_s in self._ready.items():
            if ready_s < before_s:
                waited = f"a step waited {self._queue_deadline_s:g} s for its turn: this server is overloaded"
                session.end(Failed("server", waited))

    def _waiting(self, sessions: Sequence[ServerSession]) -> list[Waiting]:
        """The next step of each; what a row costs is its share of a forward's time, or 1 while that is unmeasured."""
        steps = [(session, session.inbox[0].step.rows, session.inbox[0].lane == DECODE_LANE) for session in sessions]
        step_s, per_s = self._meter.step_s, self._meter.prefill_tokens_per_s
        decode_cost = prefill_cost = 1.0
        if step_s and per_s > 0:
            together = min(sum(rows for _, rows, decode in steps if decode) or 1, self._bounds().shared_rows)
            decode_cost = forward_s(step_s, together) / together
            prefill_cost = 1.0 / per_s
        return [
            Waiting(
                client=session.key.client,
                rows=rows,
                cost=rows * self._share(session) * (decode_cost if decode else prefill_cost),
                decode=decode,
                weight=WEIGHTS[session.opened.priority],
            )
            for session, rows, decode in steps
        ]

    def _bounds(self) -> Bounds:
        tokens = self._batch_tokens
        return Bounds(tokens, tokens, shared_rows=shared_rows(self._meter.step_s, tokens))

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
                self._count(job)
                session.done(job)
            else:
                log.warning("session %s failed: %s", session.key, error)
                log.debug("where it failed", exc_info=error)
                session.failed(job, error)
            if session.closed:
                self.forget(session)
            else:
                self.notify(session)


def _layers(session: ServerSession) -> int:
    return session.opened.end - session.opened.start


def as_swarm_error(error: Exception, what: str) -> SwarmError:
    """The error itself if it is one of ours; else one that says ``what`` went wrong, and its kind."""
    if isinstance(error, SwarmError):
        return error
    wrapped = SwarmError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
