"""Whose steps are computed next: fair sharing of one engine between clients, and how large a forward may be meanwhile.

Start-time fair queueing (Goyal, Vin and Cheng 1996) over clients, and inside a client over its priorities, decode and
prefill apart (else an endless prefill would use up what its client's decode steps of that priority are due): whoever
has had the least for its weight comes next, and whoever was idle begins at the present virtual time, so that idleness
earns no credit. Every forward takes several steps, decode steps before prefill chunks.

One forward delays everybody who is in it or waits for it. So while several clients compete it is bounded: each client
has one decode step in it, and more only up to ``Bounds.shared_rows``; a prefill chunk joins decode steps of others only
when its client has not had more than they.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarm.core.metrics import BATCHES

WEIGHTS: Mapping[str, float] = {"interactive": 8.0, "batch": 1.0}
"""Of a step's priority. A client weighs as much as the most urgent of its steps that are ready."""
RECENT_S = 1.0
"""A client that had a step so lately is expected back: others' forwards stay small for it."""
FORGET_S = 60.0
"""What a client has had is forgotten when it has had no step for so long."""
UNMEASURED_ROWS = 16
"""Decode rows of a forward that clients share where t(b) is not known."""
WORTH = 1.05
"""Twice the rows in a forward must give so many times the rows per second, or it stays small."""
STRETCH = 2.0
"""A forward that clients share takes at most so many times a lone step's time."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next step of one session. ``cost`` is its share of the engine's time, in any unit that is the same for all;
    ``weight`` that of its priority."""

    client: Hashable
    rows: int
    cost: float
    decode: bool
    weight: float = WEIGHTS["interactive"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Rows of one forward: ``decode_rows`` and ``prefill_rows`` for one client alone, the others while several compete.

    The first step of either kind fits always.
    """

    decode_rows: int
    prefill_rows: int
    shared_rows: int = UNMEASURED_ROWS
    shared_prefill_rows: int = 128


class FairQueue:
    """Chooses what one engine computes, forward by forward. It has no clock: the caller says what time it is.

    Of clients that always have work, each gets a share of all cost in proportion to its weight, but for the cost of
    the largest step; nobody who waits is passed over for ever. One client alone is served in order of arrival. A
    forward of n steps takes O(n log n) time where clients are few, O(n²) at worst.
    """

    def __init__(self) -> None:
        self._clients = _Shares()
        self._priorities: dict[tuple[Hashable, bool], _Shares] = {}
        self._seen_s: dict[Hashable, float] = {}
        self.clients = 0
        """Clients that had a step in the last ``RECENT_S`` before ``pick``."""

    def pick(self, waiting: Sequence[Waiting], bounds: Bounds, now_s: float) -> list[int]:
        """Which of ``waiting``, one step per session in order of arrival, go into the next forward, in their order.

        Empty only if ``waiting`` is. What is chosen counts as had.
        """
        self._note(waiting, now_s)
        forward = _Forward(bounds, shared=self.clients > 1)
        weights: dict[Hashable, float] = {}
        for step in waiting:
            weights[step.client] = max(step.weight, weights.get(step.client, 0.0))
        for decode in (True, False):
            lanes: dict[Hashable, _Lane] = {}
            for index, step in enumerate(waiting):
                if step.decode == decode:
                    lanes.setdefault(step.client, _Lane()).add(index, step.weight)
            if not decode:
                forward.close_decode({client: self._clients.start(client) for client in forward.decoding})
            self._fill(forward, waiting, lanes, weights)
        return forward.chosen

    def _note(self, waiting: Sequence[Waiting], now_s: float) -> None:
        self._seen_s |= {step.client: now_s for step in waiting}
        self._seen_s = {client: seen_s for client, seen_s in self._seen_s.items() if now_s - seen_s <= FORGET_S}
        self.clients = sum(now_s - seen_s <= RECENT_S for seen_s in self._seen_s.values())
        self._clients.keep(self._seen_s)
        self._priorities = {key: shares for key, shares in self._priorities.items() if key[0] in self._seen_s}

    def _fill(
        self,
        forward: _Forward,
        waiting: Sequence[Waiting],
        lanes: dict[Hashable, _Lane],
        weights: Mapping[Hashable, float],
    ) -> None:
        """Take steps of ``lanes`` by virtual start until nothing that waits fits."""
        while lanes:
            client = min(lanes, key=lambda name: (self._clients.start(name), lanes[name].first))
            lane = lanes[client]
            shares = self._priorities.setdefault((client, waiting[lane.first].decode), _Shares())
            index = lane.take(shares)
            if not lane.queues:
                del lanes[client]
            step = waiting[index]
            if forward.admits(step, self._clients.start(client)):
                forward.add(index, step)
                shares.charge(step.weight, step.cost / step.weight)
                self._clients.charge(client, step.cost / weights[client])


class _Shares:
    """Virtual time of one level. A flow begins where it ended, or at the start of what was served last."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[Hashable, float] = {}

    def start(self, flow: Hashable) -> float:
        return max(self._ends.get(flow, 0.0), self._now)

    def charge(self, flow: Hashable, cost: float) -> None:
        self._now = self.start(flow)
        self._ends[flow] = self._now + cost

    def keep(self, flows: Mapping[Hashable, object]) -> None:
        """Forget all but ``flows``, and who would begin at the present time anyway."""
        self._ends = {flow: end for flow, end in self._ends.items() if flow in flows and end > self._now}


class _Lane:
    """One client's steps of one kind, by weight, each in order of arrival."""

    def __init__(self) -> None:
        self.queues: dict[float, deque[int]] = {}

    @property
    def first(self) -> int:
        return min(queue[0] for queue in self.queues.values())

    def add(self, index: int, weight: float) -> None:
        self.queues.setdefault(weight, deque()).append(index)

    def take(self, shares: _Shares) -> int:
        weight = min(self.queues, key=lambda known: (shares.start(known), self.queues[known][0]))
        queue = self.queues[weight]
        index = queue.popleft()
        if not queue:
            del self.queues[weight]
        return index


class _Forward:
    """What has been chosen so far, and what still fits."""

    def __init__(self, bounds: Bounds, *, shared: bool) -> None:
        self.chosen: list[int] = []
        self.decoding: set[Hashable] = set()
        self._bounds = bounds
        self._shared = shared
        self._decode_rows = 0
        self._prefill_rows = 0
        self._starts: Mapping[Hashable, float] = {}

    def admits(self, step: Waiting, start: float) -> bool:
        """True if ``step``, of a client that starts at ``start``, may join."""
        bounds = self._bounds
        if step.decode:
            rows = self._decode_rows + step.rows
            more = self._shared and step.client in self.decoding
            limit = min(bounds.shared_rows, bounds.decode_rows) if more else bounds.decode_rows
            return not self._decode_rows or rows <= limit
        others = [other for client, other in self._starts.items() if client != step.client]
        if others and start > min(others):
            return False
        limit = bounds.shared_prefill_rows if self._shared else bounds.prefill_rows - self._decode_rows
        return not self._prefill_rows or self._prefill_rows + step.rows <= limit

    def add(self, index: int, step: Waiting) -> None:
        self.chosen.append(index)
        if step.decode:
            self.decoding.add(step.client)
            self._decode_rows += step.rows
        else:
            self._prefill_rows += step.rows

    def close_decode(self, starts: Mapping[Hashable, float]) -> None:
        """All decode steps are chosen; ``starts`` is where their clients go on."""
        self._starts = starts


def shared_rows(step_s: Sequence[float], most: int) -> int:
    """Decode rows of a forward while several clients compete, from t(b) for the b of ``BATCHES``; at most ``most``.

    More rows pay as long as twice as many give at least ``WORTH`` times the rows per second, and hurt everybody who
    waits: the forward may take ``STRETCH`` times a lone step's time. Between and beyond the measured sizes t(b) is
    taken as a line. ``UNMEASURED_ROWS`` if t(b) is not known. O(log ``most``).
    """
    if not step_s or not step_s[0] > 0:
        return min(UNMEASURED_ROWS, most)
    limit_s, rows, took_s = STRETCH * step_s[0], 1, step_s[0]
    while rows < most:
        twice_s = forward_s(step_s, 2 * rows)
        if 2 * took_s < WORTH * twice_s:
            break
        if twice_s > limit_s:
            rows += int(rows * (limit_s - took_s) / (twice_s - took_s))
            break
        rows, took_s = 2 * rows, twice_s
    return min(rows, most)


def forward_s(step_s: Sequence[float], rows: int) -> float:
    """t(``rows``) of a forward, on the line through the nearest two of the measured sizes; never less than t(1)."""
    points = list(zip(BATCHES, step_s, strict=False))
    if len(points) < 2:
        return step_s[0] * rows
    low, high = next(((a, b) for a, b in pairwise(points) if rows <= b[0]), (points[-2], points[-1]))
    return max(step_s[0], low[1] + (rows - low[0]) * (high[1] - low[1]) / (high[0] - low[0]))
