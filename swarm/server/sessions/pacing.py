"""How long a session's steps take here, told to its client about once a second while there is work."""

from __future__ import annotations

from swarm.wire.fields import MAX_SECONDS
from swarm.wire.messages import Pace

PACE_EVERY_S = 1.0


class Paces:
    """Adds up the steps of one session since the client was last told. Pure: times come in."""

    def __init__(self) -> None:
        self._took_s = 0.0
        self._steps = 0
        self._worked = False

    def left(self, took_s: float, *, decode: bool) -> None:
        """A step has left, so long after it came; only decode steps count for the mean."""
        self._worked = True
        if decode:
            self._took_s += took_s
            self._steps += 1

    def pace(self, held_s: float | None) -> Pace | None:
        """What to tell: None if there was no work. ``held_s`` is the age of the oldest step here, None without one."""
        if held_s is None and not self._worked:
            return None
        step_s = self._took_s / self._steps if self._steps else None
        self._took_s, self._steps, self._worked = 0.0, 0, False
        return Pace(None if step_s is None else min(step_s, MAX_SECONDS), min(held_s or 0.0, MAX_SECONDS))
