"""Server processes one at a time: honest ones, and any cheater's. Forked from a nursery, which spares imports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.fleet import READY_S, Life
from benchmarks.nursery import Nursery
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.core.spans import Span

STOP_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Node:
    """A server that is READY: who it is, where it is joined, which layers it holds, and its process."""

    peer: PeerId
    address: str
    span: Span
    process: psutil.Process


@dataclass(frozen=True, slots=True)
class Processes:
    """Starts servers of the demo model; their keys and what they say lie in ``folder``."""

    nursery: Nursery
    folder: Path

    @contextmanager
    def serving(
        self, span: Span, join: Sequence[str] = (), *, cheat: str = "", options: Sequence[str] = ()
    ) -> Iterator[Node]:
        """A server for ``span``, from READY until the block ends; it joins ``join`` or starts a swarm.

        ``cheat`` names what is wrong with it (``benchmarks.cheaters``). One thread unless ``options`` say otherwise;
        its key is a new one. Raises ``NetworkError`` if it ends before READY, or is not in two minutes.
        """
        name = self.folder / str(len(list(self.folder.glob("*.out"))))
        out, errors = name.with_suffix(".out"), name.with_suffix(".err")
        out.touch()
        where = ["--initial-peers", *join] if join else ["--new-swarm"]
        how = ["--threads", "1", "--host", "127.0.0.1", "--identity", str(name.with_suffix(".key")), *options]
        arguments = ["--model", "demo", "--blocks", str(span), "--json", *where, *how]
        life = Life(self.nursery.server(arguments, out, errors, cheat), out, errors)
        try:
            yield _ready(life, span)
        finally:
            _end(life)


def _ready(life: Life, span: Span) -> Node:
    until_s = time.monotonic() + READY_S
    while life.event("ready") is None:
        if not life.running or time.monotonic() > until_s:
            said = life.errors.read_text(errors="replace") if life.errors.exists() else ""
            raise NetworkError(f"the server for layers {span} did not become READY: {said[-2000:]}")
        time.sleep(_POLL_S)
    life.daemons = life.process.children(recursive=True)
    banner = life.events["banner"]
    return Node(PeerId(banner["peer"]), banner["addresses"][0], span, life.process)


def _end(life: Life) -> None:
    """SIGTERM, and SIGKILL to what is still there after a while."""
    if life.running:
        life.process.terminate()
    until_s = time.monotonic() + STOP_S
    while life.left and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    for process in life.left:
        process.kill()
