"""Keeps what a server contributes: noted every minute, told every ten and at its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from swarm.cli.output.console import Console
from swarm.core.clock import Clock
from swarm.models.progress import human_bytes, human_s
from swarm.runtime.contribution import Contribution, ContributionFile, Contributions

if TYPE_CHECKING:  # it brings torch, for which `swarm contributed` should not wait
    from swarm.server.service import Server

NOTE_EVERY_S = 60.0
TELL_EVERY_S = 600.0

log = logging.getLogger(__name__)

Apart = Callable[[Callable[[], None]], Awaitable[None]]


class Tally:
    """Adds what this process does to what was noted before. ``read`` gives this process's figures, all but its time."""

    def __init__(
        self, file: ContributionFile, model: str, read: Callable[[], Contribution], console: Console, clock: Clock
    ) -> None:
        aside = file.set_aside()
        if aside is not None:
            log.warning("what was contributed so far could not be read; it is in %s now", aside)
        now_s = clock.wall_s()
        self._file = file
        self._model = model
        self._read = read
        self._console = console
        self._clock = clock
        self._before = file.read() or Contributions(now_s, now_s, {})
        self._online_s = 0.0
        self._last_s: float | None = None
        self._probe = read()
        self._written: Contribution | None = None

    @property
    def own(self) -> Contribution:
        """What this process has done, its probe of itself apart."""
        return self._read() - self._probe + Contribution(online_s=self._online_s)

    @property
    def all(self) -> Contributions:
        """With what was noted before."""
        before = self._before.models.get(self._model, Contribution())
        models = {**self._before.models, self._model: before + self.own}
        return Contributions(self._before.since_s, self._clock.wall_s(), models)

    async def run(self, serving: Callable[[], bool], apart: Apart = asyncio.to_thread) -> NoReturn:
        """Until cancelled; time counts while ``serving``. ``apart`` runs what waits for a disk."""
        told_s = self._clock.monotonic_s()
        self._probe = self._read()
        while True:
            self._last_s = self._clock.monotonic_s() if serving() else None
            await self._clock.sleep(NOTE_EVERY_S)
            self._count_time()
            await apart(partial(self._note, self.all))
            if self._clock.monotonic_s() - told_s >= TELL_EVERY_S:
                told_s = self._clock.monotonic_s()
                self.tell()

    def close(self) -> None:
        """Note the last minute, and tell what it came to, if it was anything."""
        self._count_time()
        self._note(self.all)
        if self.own.sessions:
            self.tell()

    def _note(self, now: Contributions) -> None:
        """Write it down if it is news. In any thread, so it reads nothing that the server changes."""
        if now.total != self._written and self._file.write(now):
            self._written = now.total

    def tell(self) -> None:
        """One line for people."""
        now = self.all
        here, first = contribution_text(self.own), not self._before.models
        before = "" if first else f" Since {day(now.since_s)}: {contribution_text(now.total)}."
        self._console.event(
            "contributed",
            f"Contributed{'' if first else ' by this process'}: {here}.{before}",
            since=now.since_s,
            process=self.own.as_dict(),
            total=now.total.as_dict(),
        )

    def _count_time(self) -> None:
        if self._last_s is not None:
            now_s = self._clock.monotonic_s()
            self._online_s, self._last_s = self._online_s + now_s - self._last_s, now_s


def figures_of(server: Server) -> Contribution:
    """What ``server`` has counted since its process started, whatever spans it held."""
    totals, figures = server.status().totals, server.figures
    return Contribution(
        sessions=totals.sessions,
        decode_rows=totals.decode_rows,
        prefill_rows=totals.prefill_rows,
        decode_row_layers=figures.decode_row_layers,
        prefill_row_layers=figures.prefill_row_layers,
        answers=totals.answers,
        heals=totals.heals,
        receipts=totals.receipts,
        countersigned=server.countersigned,
        sent_bytes=totals.sent_bytes,
    )


def contribution_text(found: Contribution) -> str:
    """In one line, what there is of it."""
    through = count(found.decode_row_layers + found.prefill_row_layers)
    parts = [
        _counted(found.sessions, "session"),
        f"{count(found.decode_rows)} tokens decoded and {count(found.prefill_rows)} read ({through} token-layers)",
    ]
    if found.heals:
        parts.append(f"{_counted(found.heals, 'span')} taken over from others")
    if found.receipts:
        parts.append(f"{_counted(found.receipts, 'receipt')} signed")
    if found.countersigned:
        parts.append(f"{_counted(found.countersigned, 'session')} confirmed by clients")
    return ", ".join([*parts, f"{human_s(found.online_s)} online", f"{human_bytes(found.sent_bytes)} sent"])


def count(number: float) -> str:
    """``1,234``, ``56.7 k``, ``8.9 M``: three or four digits are enough."""
    if number < 10_000:
        return f"{number:,.0f}"
    for unit in ("k", "M", "G"):
        number /= 1000
        if number < 999.5:
            return f"{number:.3g} {unit}"
    return f"{number / 1000:,.3g} T"


def day(at_s: float) -> str:
    """``3 Nov 2026``, by this machine's clock."""
    return time.strftime("%d %b %Y", time.localtime(at_s)).removeprefix("0")


def _counted(number: int, noun: str) -> str:
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"
