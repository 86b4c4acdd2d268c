"""What `challenge` and `verifier` wait for while a challenge goes on, and how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from swarm.cli.asking import progress_text
from swarm.cli.output.console import Console
from swarm.cli.output.live_line import Text
from swarm.cli.output.verdicts import named
from swarm.client.auditing.challenges import SETTLE_S
from swarm.client.auditing.suspects import Suspect
from swarm.client.auditing.watch import Doing, Watch
from swarm.client.results import Progress
from swarm.models.progress import human_s

FINDING = ("routing", "opening", "waiting")
"""What a generation does until it has a chain."""
Show = Callable[[str, Text], None]
"""Told when a phase begins: its name, and what is to be said of it after so many seconds."""


class Going:
    """Hears how one challenge to ``suspect`` goes, and has ``show`` say it."""

    def __init__(self, suspect: Suspect, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = named(suspect)
        self._show = show
        self._clock = clock
        self._phase = ""
        self._latest = Progress("routing"), 0.0
        self._first: tuple[float, int] | None = None
        """When the first token came, and how many that made."""

    @property
    def watch(self) -> Watch:
        """What the challenge is to be given."""
        return Watch(self._answer, self._doing)

    def _answer(self, progress: Progress) -> None:
        now_s = self._clock()
        self._latest = progress, now_s
        if progress.phase == "decode" and self._first is None:
            self._first = now_s, progress.done
        if progress.phase in FINDING:
            self._begin("finding", lambda seconds: f"finding a chain through {self._name}: {self._said(seconds)}")
        else:
            self._begin("asking", lambda seconds: f"asking {self._name}: {self._said(seconds)}")

    def _doing(self, doing: Doing, rows: int) -> None:
        what = {
            "settling": f"{self._name}: waiting for its last receipts, {SETTLE_S:g} s at most",
            "fetching": f"{self._name}: fetching {rows} rows",
            "computing": f"{self._name}: computing {rows} rows again",
        }[doing]
        self._begin(doing, lambda seconds: f"{what}, {human_s(seconds)}")

    def _begin(self, phase: str, text: Text) -> None:
        if phase != self._phase:
            self._phase = phase
            self._show(phase, text)

    def _said(self, seconds: float) -> str:
        """Of the answer so far, ``seconds`` after the phase began."""
        progress, at_s = self._latest
        if progress.phase != "decode":
            return progress_text(progress, 0, seconds)
        text = f"{progress.done} of up to {progress.total} tokens, {human_s(seconds)}"
        began_s, had = self._first or (at_s, progress.done)
        if progress.done == had or at_s <= began_s:
            return text
        left_s = (progress.total - progress.done) * (at_s - began_s) / (progress.done - had)
        return f"{text}, at most {human_s(left_s)} left at this speed"


class Steps:
    """Shows one phase after the other: redrawn on a terminal, elsewhere a line as each begins and as it goes on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shown.close()

    def __call__(self, phase: str, text: Text) -> None:
        """``phase`` begins in place of what was before."""
        self._shown.close()
        if self._console.status_every_s is not None:  # no terminal
            self._console.event("phase", text(0.0), phase=phase, what=text(0.0))
        self._shown.enter_context(self._console.waiting(text))
