"""When a server takes no more sessions, so that those it has keep their pace. Pure: figures come in, a limit goes out.

Sessions of one server go around: a step is ``away_s`` elsewhere (other servers, the network, its client), then here. At
the knee ``(away_s + t(1)) * mu`` of them, mu the best batched rate ``max_b b/t(b)``, the engine never rests (DESIGN 7);
from there on n sessions share mu between them. With ``MARGIN`` times as many each keeps ``1/MARGIN`` of what it had at
the knee, and that is where a server stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarm.core.smoothing import smoothed

MARGIN = 1.25
"""Accepted sessions keep at least 1/1.25 = 80 % of their throughput at the knee."""
FEWEST = 4
"""So many sessions are taken whatever was measured. Below that 80 % are not kept: a server that is slow alone would
turn away everybody but one."""
MOST_OTHERS = 7.0
"""The rest of a chain counts as at most so many stages like this one."""
FIRST_WAIT_S = 1.0
"""The wait for a place while no session has lived to its end here."""
LEAST_WAIT_S = 0.2
MOST_WAIT_S = 30.0
"""Nobody is sent away for longer: the estimate is of strangers' sessions."""
MANY_NAMES = 256
"""With more buckets than this the full ones are forgotten."""
WEIGHT = 0.1
"""Of the newest session in the smoothed length of a session."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the decode steps of a server's sessions take on their way around, as means in seconds.

    ``away_s`` is from a step's leaving to the same session's next step, ``here_s`` from a step's coming to its leaving,
    the queue included, and ``share`` the part of the model that sessions compute here, above 0.
    """

    away_s: float
    here_s: float
    share: float


def knee_of(times_s: Mapping[int, float], rounds: Rounds | None) -> float:
    """How many sessions keep an engine busy with t(b) = ``times_s``, which must hold b = 1; at least 1.

    The servers around this one queue steps too when the swarm is full. Their queues must not make this server believe
    in a longer way around, or all of them would go on accepting for ever: of ``away_s`` as much is taken off as they
    would add if each like part of the model waited as it does here. So the result is right where all are equally
    loaded; where only this one is, it comes out low, but never below the knee by more than what steps wait here
    already, so it ends between the knee and ``MARGIN`` times it. Without ``rounds`` (no session has been around yet)
    the way around counts as nothing: low as well, for a moment.
    """
    lone_s = times_s[1]
    if rounds is None:
        return max(lone_s * _best(times_s), 1.0)
    others = min((1.0 - rounds.share) / rounds.share, MOST_OTHERS)
    away_s = max(rounds.away_s - others * max(rounds.here_s - lone_s, 0.0), 0.0)
    return max((away_s + lone_s) * _best(times_s), 1.0)


def most_sessions(knee: float, *, has: int, clients: int) -> float:
    """How many active sessions a server with that ``knee`` has at most, for a client that ``has`` some of them.

    While several ``clients`` are here or wait outside, one that has its equal part of the places leaves the last fifth
    of them to the others; so the many openings of one do not keep out the only one of another.
    """
    most = max(MARGIN * knee, float(FEWEST))
    return most / MARGIN if clients > 1 and has >= most / clients else most


def _best(times_s: Mapping[int, float]) -> float:
    return max(batch / took_s for batch, took_s in times_s.items())


class Places:
    """When the next place comes free: what those are told who find none. The caller says what time it is.

    Sessions that last ``life_s`` in the mean end at the rate n / ``life_s``; each who is turned away gets the next of
    those ends as its time, so that not all come back for the first.
    """

    def __init__(self) -> None:
        self._life_s: float | None = None
        self._next_s = 0.0

    def ended(self, lasted_s: float) -> None:
        """A session that did some work is over."""
        self._life_s = smoothed(self._life_s, lasted_s, WEIGHT)

    def wait_s(self, now_s: float, sessions: int) -> float:
        """How long to wait for one of the places that ``sessions`` hold now."""
        if self._life_s is None or sessions < 1:
            return FIRST_WAIT_S
        self._next_s = max(self._next_s, now_s) + self._life_s / sessions
        self._next_s = min(self._next_s, now_s + MOST_WAIT_S)
        return max(self._next_s - now_s, LEAST_WAIT_S)

    def usual_s(self, sessions: int) -> float:
        """How long it takes in the mean until one of ``sessions`` ends; takes nobody's turn."""
        if self._life_s is None or sessions < 1:
            return FIRST_WAIT_S
        return min(max(self._life_s / sessions, LEAST_WAIT_S), MOST_WAIT_S)


class Allowance:
    """A token bucket per name: ``per_s`` in the long run, ``burst`` at once. The caller says what time it is."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst_s = burst / per_s
        self._full_s: dict[str, float] = {}  # when each bucket would be full again

    def __len__(self) -> int:
        return len(self._full_s)

    def take(self, name: str, now_s: float) -> float:
        """Take one and return 0, or take none and return the seconds until there is one."""
        if len(self._full_s) > MANY_NAMES:
            self._full_s = {known: full_s for known, full_s in self._full_s.items() if full_s > now_s}
        full_s = max(self._full_s.get(name, now_s), now_s) + 1.0 / self._per_s
        if full_s - now_s > self._burst_s * (1 + 1e-9):
            return full_s - now_s - self._burst_s
        self._full_s[name] = full_s
        return 0.0
