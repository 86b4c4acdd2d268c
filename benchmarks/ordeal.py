"""Many sessions at once over a fleet whose machines are killed, frozen, woken and started again meanwhile.

What it leaves behind is a list of answers, to be judged, and of errors; whether anything leaked is measured against how
everybody was before. The first client has a remote head, the second a local one.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from benchmarks.fleet import KV_TOKENS, Fleet, listings
from benchmarks.questions import Answered, Asker
from benchmarks.setup import say
from benchmarks.trouble import Event, schedule
from swarm.client.blocking import SwarmModel
from swarm.client.results import Progress
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import SwarmError
from swarm.core.spans import Span
from swarm.models.files import ModelFiles

SETTLE_S = 20.0
"""For sessions to be gone everywhere, and metrics to say so."""
FIRST_S = 2.0
"""Everybody has begun to ask when the trouble starts."""
IDLE_S = 3.0
"""After the first answers: what they opened and do not need any more is closed."""
FIRST_WORDS = "Once upon a time"
END_S = 10.0
"""For daemons to follow their servers."""
_POLL_S = 0.1


@dataclass(slots=True)
class Outcome:
    """What came of it: answers, what failed, what was done, and the longest wait between two tokens of each answer."""

    answers: list[Answered] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    acts: Counter[str] = field(default_factory=Counter)
    pauses_s: list[float] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """That of a later round."""
        self.answers += other.answers
        self.errors += other.errors
        self.pauses_s += other.pauses_s
        self.acts.update(other.acts)

    def log(self, line: str) -> None:
        """An error, told at once."""
        say(line)
        self.errors.append(line)


class Watch:
    """The longest wait between two tokens of each answer that one asker gets; its progress callback."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._last_s: float | None = None
        self._longest_s = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.phase != "decode":
            return
        now_s = time.monotonic()
        if progress.done > 1 and self._last_s is not None:
            self._longest_s = max(self._longest_s, now_s - self._last_s)
        self._last_s = now_s

    def answered(self, answered: Answered) -> None:
        """Its answer is whole."""
        self._outcome.answers.append(answered)
        self._outcome.pauses_s.append(self._longest_s)
        self._longest_s = 0.0


def endure(
    fleet: Fleet, models: Sequence[SwarmModel], tokenizer: Tokenizer, events: Sequence[Event], *, askers: int, seed: int
) -> Outcome:
    """Do ``events`` while ``askers`` threads ask ``models`` in turns; returns once all have ended and all are READY.

    Answers come from seeds ``seed``, ``seed + 1``, ...; nobody stops for an error. Raises only what a machine that does
    not come up raises, after the askers have stopped.
    """
    outcome, over = Outcome(), threading.Event()
    threads = [
        threading.Thread(
            target=_ask,
            args=(models[number % len(models)], tokenizer, seed + number, outcome, over),
            name=f"asker {number}",
        )
        for number in range(askers)
    ]
    for thread in threads:
        thread.start()
    try:
        time.sleep(FIRST_S)
        for event in events:
            time.sleep(event.pause_s)
            fleet.await_ready(event.after)
            do(fleet, event)
            outcome.acts[event.act] += 1
        fleet.await_ready()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    return outcome


def do(fleet: Fleet, event: Event) -> None:
    """One event, on real processes."""
    match event.act:
        case "kill":
            fleet.kill(event.number)
        case "freeze":
            fleet.freeze(event.number, daemon=event.daemon)
        case "wake":
            fleet.wake(event.number)
        case "restart":
            fleet.await_end(event.number)
            fleet.launch(event.number)


def _ask(model: SwarmModel, tokenizer: Tokenizer, seed: int, outcome: Outcome, over: threading.Event) -> None:
    watch = Watch(outcome)
    asker = Asker(model, tokenizer, seed, note=watch.answered, progress=watch)
    while not over.is_set():
        try:
            asker.ask()
        except SwarmError as error:
            outcome.log(f"{threading.current_thread().name}: {type(error).__name__}: {error}")
        except Exception as error:  # a bug in the client: one more thing to report, and no reason to stop asking
            outcome.log(f"{threading.current_thread().name}: a bug: {error!r}")


@dataclass(frozen=True, slots=True)
class Held:
    """What the clients' process holds: descriptors, those of its daemons, and tasks in its loops."""

    fds: int
    daemon_fds: int
    tasks: int

    @classmethod
    def by(cls, models: Sequence[SwarmModel]) -> Held:
        """Now."""
        own = psutil.Process()
        daemons = [child for child in own.children() if child.name() == "p2pd"]
        tasks = sum(model._loop.run(_count_tasks()) for model in models)
        return cls(own.num_fds(), sum(daemon.num_fds() for daemon in daemons), tasks)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())


def leaks(fleet: Fleet, models: Sequence[SwarmModel], before: Held) -> list[str]:
    """What nobody gave back ``SETTLE_S`` after the last session: sessions and KV at the servers, descriptors, tasks.

    ``before`` is what the clients held before the trouble. Empty if nothing leaked; returns as soon as that is so.
    """
    found: list[str] = []
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s:
        found = [*_kept_by_servers(fleet, models[0]), *_kept_by_clients(models, before)]
        if not found:
            break
        time.sleep(_POLL_S)
    return found


def _kept_by_servers(fleet: Fleet, model: SwarmModel) -> list[str]:
    found, seen = [], listings(model)
    for machine in fleet.machines:
        listing = seen.get(machine.peer)
        metrics = None if listing is None else listing.metrics
        if metrics is None:
            found.append(f"{machine} is not live in the directory")
        elif metrics.sessions or metrics.kv_free_tokens != KV_TOKENS:
            found.append(f"{machine}: {metrics.sessions} sessions, {KV_TOKENS - metrics.kv_free_tokens} KV tokens kept")
        fds = machine.life.process.num_fds()
        if fds > machine.life.idle_fds:
            found.append(f"{machine}: {fds} file descriptors, {machine.life.idle_fds} when it was READY")
    return found


def _kept_by_clients(models: Sequence[SwarmModel], before: Held) -> list[str]:
    now = Held.by(models)
    pairs = {"file descriptors": (now.fds, before.fds), "tasks": (now.tasks, before.tasks)}
    return [f"clients: {left} {name}, {had} before" for name, (left, had) in pairs.items() if left > had]


@dataclass(frozen=True, slots=True)
class Arena:
    """A fleet that serves, two clients that have got an answer, and what everybody held then."""

    fleet: Fleet
    models: Sequence[SwarmModel]
    tokenizer: Tokenizer
    layers: int
    before: Held

    def trouble(self, seed: int, count: int, *, askers: int) -> Outcome:
        """A schedule of at least ``count`` events and questions, both from ``seed``; see ``endure``."""
        events = schedule([machine.span for machine in self.fleet.machines], self.layers, seed, count)
        say("\n".join([f"schedule of seed {seed}:", *map(str, events)]))
        return endure(self.fleet, self.models, self.tokenizer, events, askers=askers, seed=seed)

    def leaks(self) -> list[str]:
        """See ``leaks``."""
        return leaks(self.fleet, self.models, self.before)

    def resident(self) -> dict[int, int]:
        """Bytes of resident memory by process id, of the servers that run now."""
        processes = [machine.life.process for machine in self.fleet.machines]
        return {process.pid: process.memory_info().rss for process in processes}

    def end(self) -> list[str]:
        """Everybody leaves; what did not go well about it: exit codes, processes left, words on standard error."""
        for model in self.models:
            model.close()
        codes = self.fleet.end()
        until_s = time.monotonic() + END_S
        while self.fleet.left and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        found = [f"machine {number} ended with exit code {code}" for number, code in codes.items() if code != 0]
        found += [f"left behind: {process}" for process in self.fleet.left]
        return [*found, *([self.fleet.errors] if self.fleet.errors else [])]


@contextmanager
def arena(files: ModelFiles, spans: Sequence[Span]) -> Iterator[Arena]:
    """Machines for ``spans`` of the demo model, up and warm. Whatever happens, no process outlives the block."""
    with tempfile.TemporaryDirectory(prefix="swarm-arena-") as folder, Fleet(spans, Path(folder)) as fleet:
        fleet.start()
        with _client(fleet, "remote") as remote, _client(fleet, "local") as local:
            models = (remote, local)
            for model in models:
                model.generate(FIRST_WORDS, max_new_tokens=8)
            time.sleep(IDLE_S)
            yield Arena(fleet, models, Tokenizer.of(files), files.layer_count, Held.by(models))


def _client(fleet: Fleet, head: Literal["local", "remote"]) -> SwarmModel:
    return SwarmModel.connect("demo", initial_peers=fleet.addresses, head=head, host="127.0.0.1")
