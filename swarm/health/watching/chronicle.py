"""When what changed is an event: not while a page begins to look, nor while a directory comes back. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from swarm.health.state import EventState, SwarmState
from swarm.health.watching.events import condensed, happened

OUTAGE_S = 10.0
"""So long without an answer of the directory is an outage."""
SETTLE_S = 12.0
"""After the first answer, and after an outage: until then servers that are heard of again are no news."""
GAP_S = 30.0
"""A page that was not at work for so long, on a machine asleep, begins anew like after an outage."""
KEPT = 1000
HOUR_S = 3600.0
BUDGET = 20
"""Events about one server, or of one kind about a model or a crowd of its servers, within ``BUDGET_S``; of who comes
and goes all the time the rest is not told."""
CROWD = 200
"""Events about servers, and as many about models, within ``BUDGET_S``: whoever makes up a server a second would have
all else forgotten."""
BUDGET_S = 600.0
OF_MODELS = ("usable", "unusable")
ALWAYS = ("ejected", "struck")
"""What is known only here, and so made up by nobody."""


class Chronicle:
    """Takes each new state in turn and says what happened; ``events`` are the latest, as numbered by ``keep``."""

    def __init__(self, past: Sequence[EventState] = ()) -> None:
        self.events: deque[EventState] = deque(past, maxlen=KEPT)
        self._moves: deque[tuple[float, str]] = deque(
            ((event.at, event.model) for event in past if event.kind == "moved"), maxlen=KEPT
        )
        self._base: SwarmState | None = None
        self._began = False
        self._calm_at: float | None = None
        self._out_at: float | None = None
        self._last_at: float | None = None
        self._told: deque[tuple[float, str, bool]] = deque()

    @property
    def newest(self) -> int:
        """The highest number given so far, 0 if there is none."""
        return self.events[-1].number if self.events else 0

    def keep(self, numbered: Sequence[EventState]) -> None:
        """Take events with their numbers."""
        self.events.extend(numbered)

    def moves(self, model: str, now_s: float) -> int:
        """Servers of ``model`` that moved within the last hour."""
        return sum(at > now_s - HOUR_S and name == model for at, name in self._moves)

    def follow(self, state: SwarmState, *, answered_at: float | None, problem: str) -> list[EventState]:
        """What happened since the last state, without numbers. ``answered_at`` is when the directory last answered,
        ``problem`` why it does not."""
        told = self._outage(state.at, answered_at, problem)
        if not self._calm(state.at, answered_at) or self._base is None:
            if not self._began or self._base is None:
                self._base = state
            return told
        self._began = True
        found = happened(self._base, state)
        self._base = state
        self._moves.extend((event.at, event.model) for event in found if event.kind == "moved")
        return told + [event for event in condensed(found) if self._affordable(event)]

    def _calm(self, now_s: float, answered_at: float | None) -> bool:
        """Whether what changed now counts: not too soon after the directory, or this page, came back."""
        gap = self._last_at is not None and now_s - self._last_at > GAP_S
        self._last_at = now_s
        if answered_at is None:
            return False
        if self._calm_at is None or gap:
            self._calm_at = now_s + SETTLE_S
        return now_s >= self._calm_at

    def _outage(self, now_s: float, answered_at: float | None, problem: str) -> list[EventState]:
        if answered_at is None:
            return []
        if self._out_at is None and problem and now_s - answered_at > OUTAGE_S:
            self._out_at = answered_at
            return [_event(now_s, "The directory of this swarm does not answer; what is shown may be old.")]
        if self._out_at is not None and not problem:
            lasted_s, self._out_at = answered_at - self._out_at, None
            self._calm_at = now_s + SETTLE_S
            return [_event(now_s, f"The directory answers again, after {lasted_s:.0f} s.")]
        return []

    def _affordable(self, event: EventState) -> bool:
        if event.kind in ALWAYS:
            return True
        while self._told and self._told[0][0] <= event.at - BUDGET_S:
            self._told.popleft()
        subject, of_model = event.peer or f"{event.kind} {event.model}", event.kind in OF_MODELS
        alike = sum(model == of_model for _, _, model in self._told)
        if alike >= CROWD or sum(name == subject for _, name, _ in self._told) >= BUDGET:
            return False
        self._told.append((event.at, subject, of_model))
        return True


def _event(at: float, text: str) -> EventState:
    return EventState(number=0, at=at, kind="outage", model="", peer="", text=text)
