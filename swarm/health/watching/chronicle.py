"""When what changed is an event: not while a page begins to look, nor while a directory comes back. Pure."""

from __future__ import annotations

from collections import Counter, deque
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
"""Events within ``BUDGET_S`` about servers, as many about models, and as many of what was proven; of each again as many
about who was known before. Whoever makes up a server a second would have all else forgotten."""
BUDGET_S = 600.0
KNOWN_S = 600.0
"""Who has been there for so long is known."""
OF_MODELS = ("usable", "unusable")
PROVEN = ("ejected", "struck")
"""What was checked here. Of known ones it is always told: nobody can make that up."""
MOVES_OF_ONE = 12
"""An hour that count; a server that keeps to the rules moves less often."""


class Chronicle:
    """Takes each new state in turn and says what happened; ``events`` are the latest, as numbered by ``keep``."""

    def __init__(self, past: Sequence[EventState] = ()) -> None:
        self.events: deque[EventState] = deque(past, maxlen=KEPT)
        self._moves: dict[str, deque[tuple[float, str]]] = {}
        self._note_moves(past)
        self._met_at: dict[str, float] = {}
        """When servers that are there were first reached."""
        self._base: SwarmState | None = None
        self._began = False
        self._calm_at: float | None = None
        self._out_at: float | None = None
        self._last_at: float | None = None
        self._told: deque[tuple[float, str, tuple[str, bool]]] = deque()

    @property
    def newest(self) -> int:
        """The highest number given so far, 0 if there is none."""
        return self.events[-1].number if self.events else 0

    def keep(self, numbered: Sequence[EventState]) -> None:
        """Take events with their numbers."""
        self.events.extend(numbered)

    def moves(self, model: str, now_s: float) -> int:
        """Moves of servers of ``model`` within the last hour, of one server ``MOVES_OF_ONE`` at most."""
        lately = Counter(peer for at, peer in self._moves.get(model, ()) if at > now_s - HOUR_S)
        return sum(count if not peer else min(count, MOVES_OF_ONE) for peer, count in lately.items())

    def follow(self, state: SwarmState, *, answered_at: float | None, problem: str) -> list[EventState]:
        """What happened since the last state, without numbers. ``answered_at`` is when the directory last answered,
        ``problem`` why it does not."""
        self._meet(state)
        told = self._outage(state.at, answered_at, problem)
        if not self._calm(state.at, answered_at) or self._base is None:
            if not self._began or self._base is None:
                self._base = state
            return told
        self._began = True
        found = [event for event in happened(self._base, state) if self._counts(event)]
        self._base = state
        self._note_moves(found)
        return told + self._chosen(found, state)

    def _chosen(self, found: Sequence[EventState], state: SwarmState) -> list[EventState]:
        """What of it is told; that of known ones is not mixed with what newcomers do."""
        since_at = {model.model: model.since_at for model in state.models} | self._met_at
        groups: dict[bool, list[EventState]] = {True: [], False: []}
        for event in found:
            groups[state.at - since_at.get(event.peer or event.model, state.at) >= KNOWN_S].append(event)
        told = [
            event
            for known, events in groups.items()
            for event in condensed(events)
            if self._affordable(event, known=known)
        ]
        return sorted(told, key=lambda event: event.kind in OF_MODELS)

    def _meet(self, state: SwarmState) -> None:
        """Servers that answer; those that are gone are forgotten once their end was told."""
        before = [] if self._base is None else self._base.models
        there = {server.peer for model in (*before, *state.models) for server in model.servers}
        self._met_at = {peer: at for peer, at in self._met_at.items() if peer in there}
        for model in state.models:
            for server in model.servers:
                if server.reached:
                    self._met_at.setdefault(server.peer, state.at)

    def _counts(self, event: EventState) -> bool:
        """Whoever never answered is not told of, unless something was proven."""
        return not event.peer or event.peer in self._met_at or event.kind in PROVEN

    def _note_moves(self, events: Sequence[EventState]) -> None:
        moves = [event for event in events if event.kind == "moved"]
        if moves:
            since_at = moves[-1].at - HOUR_S
            self._moves = {model: theirs for model, theirs in self._moves.items() if theirs[-1][0] > since_at}
        for event in moves:
            self._moves.setdefault(event.model, deque(maxlen=KEPT)).append((event.at, event.peer))

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

    def _affordable(self, event: EventState, *, known: bool) -> bool:
        if event.kind in PROVEN and known:
            return True
        while self._told and self._told[0][0] <= event.at - BUDGET_S:
            self._told.popleft()
        about = "model" if event.kind in OF_MODELS else "proof" if event.kind in PROVEN else "server"
        subject, kin = event.peer or f"{event.kind} {event.model}", (about, known)
        alike = sum(other == kin for _, _, other in self._told)
        if alike >= CROWD or sum(name == subject for _, name, _ in self._told) >= BUDGET:
            return False
        self._told.append((event.at, subject, kin))
        return True


def _event(at: float, text: str) -> EventState:
    return EventState(number=0, at=at, kind="outage", model="", peer="", text=text)
