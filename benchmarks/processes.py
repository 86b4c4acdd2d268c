"""Server processes of any program that takes ``swarm.server``'s arguments: a cheater's, or an honest one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.core.spans import Span

STOP_S = 20.0
HONEST = ("swarm.server",)


def cheating(kind: str) -> tuple[str, ...]:
    """The program that cheats so (``benchmarks.cheaters``)."""
    return ("benchmarks.cheaters", kind)


@dataclass(frozen=True, slots=True)
class Node:
    """A server that is READY: who it is, where it is joined, which layers it holds, and its process."""

    peer: PeerId
    address: str
    span: Span
    pid: int


@contextmanager
def serving(
    span: Span, folder: Path, join: Sequence[str] = (), *, program: Sequence[str] = HONEST, options: Sequence[str] = ()
) -> Iterator[Node]:
    """A server of the demo model for ``span``, from READY until the block ends; it joins ``join`` or starts a swarm.

    One thread unless ``options`` say otherwise. Its key is a new one. Raises ``NetworkError`` if it ends before READY.
    """
    number = len(list(folder.iterdir()))
    where = ["--initial-peers", *join] if join else ["--new-swarm"]
    how = ["--threads", "1", "--host", "127.0.0.1", "--identity", str(folder / f"{number}.key"), *options]
    errors = folder / f"{number}.err"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *program, "--blocks", str(span), "--json", *where, *how],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        yield _ready(process, span, errors)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _ready(process: subprocess.Popen[str], span: Span, errors: Path) -> Node:
    peer = address = ""
    for line in process.stdout or ():
        event = json.loads(line)
        if event["event"] == "banner":
            peer, address = event["peer"], event["addresses"][0]
        elif event["event"] == "ready":
            return Node(PeerId(peer), address, span, process.pid)
    said = errors.read_text(errors="replace")[-2000:]
    raise NetworkError(f"the server for layers {span} ended before it was ready: {said}")
