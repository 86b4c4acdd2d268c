"""A swarm of real server processes on loopback that can be killed, frozen, woken, told to leave, and started again.

Each machine keeps its key, so that a server started again is the same peer; ports are the system's choice, so it comes
back elsewhere and joins through whoever lives. float32 and one thread each, unless the fleet is told otherwise.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks.nursery import EXIT_EVENT, Nursery
from swarm.client.blocking import SwarmModel
from swarm.core.errors import NetworkError
from swarm.core.listing import Listing
from swarm.core.spans import Span

READY_S = 120.0
"""From start to READY; the cores are shared."""
END_S = 60.0
"""From SIGTERM to the end, a whole drain timeout included."""
KV_TOKENS = 16_384
HARMLESS = ("debug", "info", "warning")
_POLL_S = 0.02


@dataclass(slots=True)
class Life:
    """One process of a machine, from start to end, and its daemon."""

    process: psutil.Process
    out: Path
    errors: Path
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    daemons: list[psutil.Process] = field(default_factory=list)
    idle_fds: int = 0
    """File descriptors when it became READY."""
    _read_bytes: int = 0

    def event(self, name: str) -> dict[str, Any] | None:
        """The last event ``name`` that the process has said, None if it has not."""
        with self.out.open("rb") as lines:
            lines.seek(self._read_bytes)
            said = lines.read()
        whole = said[: said.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            self.events[event["event"]] = event
        return self.events.get(name)

    @property
    def running(self) -> bool:
        return bool(self.process.is_running())

    @property
    def complaints(self) -> list[str]:
        """Lines of standard error that are no warnings: errors, and whatever is no log at all."""
        text = self.errors.read_text(errors="replace") if self.errors.exists() else ""
        return [line for line in text.splitlines() if not any(f'"level": "{level}"' in line for level in HARMLESS)]

    @property
    def left(self) -> list[psutil.Process]:
        """Its processes that still run."""
        return [process for process in (self.process, *self.daemons) if process.is_running()]


@dataclass(slots=True)
class Machine:
    """A span, a key, and the lives it has had, the present or last one at the end."""

    number: int
    span: Span
    folder: Path
    lives: list[Life] = field(default_factory=list)
    frozen: bool = False

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def peer(self) -> str:
        """Its peer id, known once it has said its banner."""
        for life in reversed(self.lives):
            if (banner := life.event("banner")) is not None:
                return str(banner["peer"])
        return ""

    @property
    def ready(self) -> bool:
        """True if it runs, has been READY, and is not frozen."""
        return bool(self.lives) and not self.frozen and self.life.running and self.life.event("ready") is not None

    def __str__(self) -> str:
        return f"#{self.number} [{self.span}]"


class Fleet:
    """The machines, by number, in the order of the spans given. Use it in a ``with`` block.

    At the block's end, whatever happened, every process is dead; ``end`` before that makes them leave in good order.
    ``options`` are further arguments of ``swarm.server``.
    """

    def __init__(
        self, spans: Sequence[Span], folder: Path, *, model: str = "demo", options: Sequence[str] = ()
    ) -> None:
        self.machines = [Machine(number, span, folder) for number, span in enumerate(spans)]
        self._model = model
        self._options = ("--dtype", "float32", "--kv-tokens", str(KV_TOKENS), *options)
        self._nursery = Nursery()

    def start(self) -> None:
        """Start every machine, the first one the swarm; returns once all are READY. ``NetworkError`` if one fails."""
        self.launch(0)
        self.await_ready([0])
        for machine in self.machines[1:]:
            self.launch(machine.number)
        self.await_ready()

    @property
    def addresses(self) -> list[str]:
        """Where those that are READY can be joined."""
        return [machine.life.events["banner"]["addresses"][0] for machine in self.machines if machine.ready]

    def by_peer(self, peer: str) -> Machine:
        """The machine with this peer id; ``StopIteration`` without one."""
        return next(machine for machine in self.machines if machine.peer == peer)

    def launch(self, number: int) -> None:
        """Start the machine's server; it is not READY yet."""
        machine = self.machines[number]
        addresses = self.addresses
        name = machine.folder / f"{number}-{len(machine.lives)}"
        out, errors = name.with_suffix(".out"), name.with_suffix(".err")
        out.touch()
        arguments = ["--model", self._model, "--blocks", str(machine.span), "--json", "--host", "127.0.0.1"]
        arguments += ["--threads", "1", "--identity", str(machine.folder / f"{number}.key"), *self._options]
        arguments += ["--initial-peers", *addresses] if addresses else ["--new-swarm"]
        machine.lives.append(Life(self._nursery.server(arguments, out, errors), out, errors))

    def await_ready(self, numbers: Sequence[int] | None = None) -> None:
        """Wait for those machines (all of them) to be READY; ``NetworkError`` with its own words if one is not."""
        until_s = time.monotonic() + READY_S
        for machine in self._chosen(numbers):
            while not machine.ready:
                if not machine.life.running or time.monotonic() > until_s:
                    said = machine.life.errors.read_text(errors="replace") if machine.life.errors.exists() else ""
                    raise NetworkError(f"machine {machine} did not become READY: {said[-2000:]}")
                time.sleep(_POLL_S)
            self._measure_idle(machine.life)

    def _measure_idle(self, life: Life) -> None:
        if not life.daemons:
            life.daemons = life.process.children(recursive=True)
            life.idle_fds = life.process.num_fds()

    def kill(self, number: int) -> None:
        """SIGKILL, whatever it is doing."""
        machine = self.machines[number]
        if machine.frozen:  # a stopped daemon would not notice that its owner is gone
            for daemon in machine.life.daemons:
                _send(daemon, signal.SIGCONT)
        _send(machine.life.process, signal.SIGKILL)
        machine.frozen = False

    def freeze(self, number: int, *, daemon: bool = False) -> None:
        """SIGSTOP: it stands still, and with ``daemon`` so does its network, as if the whole machine did."""
        machine = self.machines[number]
        machine.frozen = True
        for process in (machine.life.process, *(machine.life.daemons if daemon else ())):
            _send(process, signal.SIGSTOP)

    def wake(self, number: int) -> None:
        """SIGCONT."""
        machine = self.machines[number]
        for process in (*machine.life.daemons, machine.life.process):
            _send(process, signal.SIGCONT)
        machine.frozen = False

    def leave(self, number: int) -> None:
        """SIGTERM: it drains and goes; returns at once."""
        _send(self.machines[number].life.process, signal.SIGTERM)

    def await_end(self, number: int) -> int | None:
        """Wait for the machine's process to end; its exit code, None if it was killed. ``NetworkError`` after a minute.

        The daemon may take a moment longer.
        """
        machine = self.machines[number]
        until_s = time.monotonic() + END_S
        while machine.life.running:
            if time.monotonic() > until_s:
                raise NetworkError(f"machine {machine} does not end")
            time.sleep(_POLL_S)
        said = machine.life.event(EXIT_EVENT)
        return None if said is None else int(said["code"])

    def end(self) -> dict[int, int | None]:
        """SIGTERM to all that run; their exit codes by number."""
        running = [machine.number for machine in self.machines if machine.lives and machine.life.running]
        for number in running:
            self.wake(number)
            self.leave(number)
        return {number: self.await_end(number) for number in running}

    @property
    def errors(self) -> str:
        """What any life of any machine has said on standard error that is worse than a warning; empty if nothing."""
        lives = [(machine, life) for machine in self.machines for life in machine.lives]
        return "".join(f"{machine}: {line}\n" for machine, life in lives for line in life.complaints)

    @property
    def left(self) -> list[psutil.Process]:
        """Processes of any life that still run."""
        return [process for machine in self.machines for life in machine.lives for process in life.left]

    def _chosen(self, numbers: Sequence[int] | None) -> list[Machine]:
        return self.machines if numbers is None else [self.machines[number] for number in numbers]

    def close(self) -> None:
        """Kill what still runs. Idempotent."""
        for process in self.left:
            _send(process, signal.SIGKILL)
        self._nursery.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def listings(model: SwarmModel) -> dict[str, Listing]:
    """Every server that a reader of the directory sees now, by peer id."""
    parts = model._inner.parts
    found = model._loop.run(parts.directory.servers(parts.files.model_id))
    return {listing.peer: listing for listing in found}


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
