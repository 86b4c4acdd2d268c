"""What a decode step takes at a server's present load. Pure: steps and times come in, two numbers go out.

A probe at the start says what a step over n layers takes alone, ``fixed_s + n * tau_s``. Two things are measured from
then on, over real decode steps: by how much the forwards take longer than alone (other sessions in the batch, other
work of the machine, heat), and how long steps wait for their turn. With no step under way nothing is measured, and the
last values would stay: then a server speaks of itself as idle again, since a high average must not starve a free one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.core.record_base import MAX_RATE, MAX_SECONDS
from swarm.engine.speed import UNMEASURED, SpanSpeed

WEIGHT = 0.2
"""Of one more decode step in the smoothed values, when steps come fast."""
MEMORY_S = 1.0
"""When they come slowly, older ones are forgotten with this time constant."""
IDLE_AFTER_S = 3.0
"""Without a decode step for so long the server counts as idle, whoever still has a session open."""
SUSPICIOUS = 1.25
"""Forwards of one session that take so many times the idle value put that value in doubt."""
RESIGNATION = 0.02
"""With every check the best idle value there was gives way to the present one by this share of the difference."""
MAX_S = MAX_SECONDS
"""No time is above this; a record or an ACCEPT with more would be refused."""


@dataclass(frozen=True, slots=True)
class Load:
    """A decode step over n layers takes ``fixed_s + n * tau_s``, waiting included."""

    tau_s: float
    fixed_s: float


class Meter:
    """Smooths the decode steps of one server.

    ``speed`` is what the probe found. Alone, the server may become slower or faster than then: ``idle`` follows
    downward by itself, from real steps of one session, and upward by ``checked``, a step measured while nobody uses
    the engine; ``doubtful`` says that one is called for.
    """

    def __init__(self, speed: SpanSpeed = UNMEASURED) -> None:
        self._speed = speed
        self._idle_factor = 1.0
        self._best_factor = 1.0
        self._factor = 1.0
        self._alone_factor = 1.0
        self._wait_s = 0.0
        self._stepped_s: float | None = None
        self._begun = False

    def computed(self, layers: Sequence[int], waits_s: Sequence[float], took_s: float, now_s: float) -> None:
        """One forward of decode steps has ended: for each step its layers and how long it had been ready before.

        ``took_s`` is the forward's time. Forwards with prefill chunks in them say nothing about decoding and do not
        belong here.
        """
        alone_s = sum(map(self._alone_s, layers))
        if not layers or not alone_s > 0:
            return
        factor = took_s * len(layers) / alone_s  # of the steps' own times: each of them took the whole forward
        weight = self._weight(len(layers), now_s)
        self._factor += weight * (factor - self._factor)
        self._wait_s += weight * (sum(waits_s) / len(waits_s) - self._wait_s)
        self._stepped_s, self._begun = now_s, True
        if len(layers) == 1:
            self._learn(factor)

    def present(self, now_s: float, *, sessions: int, queued_steps: int) -> Load:
        """The present load; the idle values if the server is ``idle``."""
        if self.idle(now_s, sessions=sessions, queued_steps=queued_steps):
            return self._load(self._idle_factor, 0.0)
        return self._load(self._factor, self._wait_s)

    def idle(self, now_s: float, *, sessions: int, queued_steps: int) -> bool:
        """True if no session is open, or nothing is queued and no step came lately."""
        quiet = self._stepped_s is None or now_s - self._stepped_s > IDLE_AFTER_S
        return sessions == 0 or (queued_steps == 0 and quiet)

    @property
    def step_s(self) -> tuple[float, ...]:
        """t(b) of the probe, corrected by how much slower or faster the server has been since."""
        return tuple(min(step_s * self._idle_factor, MAX_S) for step_s in self._speed.step_s)

    @property
    def prefill_tokens_per_s(self) -> float:
        """The probe's, corrected in the same way."""
        return min(self._speed.prefill_tokens_per_s / max(self._idle_factor, 1e-9), MAX_RATE)

    @property
    def contradicted(self) -> bool:
        """True if lately steps of one session took longer than the idle values say: one alone should be measured."""
        return self._alone_factor > SUSPICIOUS * self._idle_factor

    @property
    def doubtful(self) -> bool:
        """True if a step alone should be measured now and then.

        Because the idle values are contradicted, or because they were better once: a server that has recovered should
        find that out although nobody uses it.
        """
        return self.contradicted or self._idle_factor > SUSPICIOUS * self._best_factor

    def checked(self, layers: int, took_s: float) -> None:
        """A step over ``layers`` layers, alone and with nobody waiting, has taken ``took_s``."""
        if (alone_s := self._alone_s(layers)) > 0:
            self._idle_factor = self._alone_factor = took_s / alone_s
            # What was better once may not come back: in the end it is not asked for any more.
            self._best_factor += RESIGNATION * (self._idle_factor - self._best_factor)
            self._best_factor = min(self._best_factor, self._idle_factor)

    def rest(self) -> None:
        """The last session has closed: the next one begins at the idle values."""
        self._factor, self._wait_s, self._stepped_s = self._idle_factor, 0.0, None

    def _alone_s(self, layers: int) -> float:
        return self._speed.fixed_s + layers * self._speed.tau_s

    def _weight(self, steps: int, now_s: float) -> float:
        by_steps = 1.0 - (1.0 - WEIGHT) ** steps
        if self._stepped_s is None:
            return by_steps if self._begun else 1.0
        return max(by_steps, 1.0 - math.exp(-(now_s - self._stepped_s) / MEMORY_S))

    def _learn(self, factor: float) -> None:
        self._alone_factor += WEIGHT * (factor - self._alone_factor)
        if factor < self._idle_factor / 2:  # far off, or never measured
            self._idle_factor = self._alone_factor = factor
        elif factor < self._idle_factor:
            self._idle_factor += WEIGHT * (factor - self._idle_factor)
        self._best_factor = min(self._best_factor, self._idle_factor)

    def _load(self, factor: float, wait_s: float) -> Load:
        fixed_s = factor * self._speed.fixed_s + wait_s
        return Load(min(factor * self._speed.tau_s, MAX_S), min(fixed_s, MAX_S))
