"""What a server counts while it serves, for whoever asks how it is. Pure: times come in, all of one clock.

Nothing of a client is kept: of its session's bytes only their label.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from swarm.core.ids import chain_label
from swarm.wire.fields import MAX_SECONDS
from swarm.wire.messages import Open
from swarm.wire.status import (
    BUCKETS_S,
    MAX_CHAINS,
    MAX_LINKS,
    WINDOW_S,
    Histogram,
    LinkFigures,
    StageFigures,
    StatusReport,
    Totals,
)

SLOT_S = 2.0
"""What is added within so long grows old together."""
SLOTS = int(WINDOW_S / SLOT_S)
PAUSE_S = 30.0
"""Between two steps: whoever was silent for longer was thinking, and did not wait for this chain."""

_BUCKETS = len(BUCKETS_S) + 1
# Of a server: two histograms, each its buckets and their sum, and then
_FORWARD, _STEP = 0, _BUCKETS + 1
_BUSY_S, _DECODE, _PREFILL, _ANSWERS, _SERVER_WIDTH = range(2 * (_BUCKETS + 1), 2 * (_BUCKETS + 1) + 5)
# Of a stage: rows, then of its decode steps how many, and what they took.
_DECODE_ROWS, _PREFILL_ROWS, _STEPS, _WAIT_S, _COMPUTE_S, _SEND_S, _PERIODS, _PERIOD_S, _STAGE_WIDTH = range(9)


class Window:
    """Sums of ``width`` numbers over the last ``WINDOW_S``, of which up to ``SLOT_S`` at the far end are missing."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._slots: deque[tuple[int, list[float]]] = deque(maxlen=SLOTS)
        self._number = -1
        self._latest: list[float] = []

    def at(self, now_s: float) -> list[float]:
        """The sums of this moment, for the caller to add to. O(1)."""
        number = int(now_s / SLOT_S)
        if number != self._number:
            self._number, self._latest = number, [0.0] * self._width
            self._slots.append((number, self._latest))
        return self._latest

    def sums(self, now_s: float) -> list[float]:
        """``[width]``: what was added within the window before ``now_s``. O(slots · width)."""
        since = int(now_s / SLOT_S) - SLOTS
        live = [sums for number, sums in self._slots if number > since]
        return [sum(column) for column in zip(*live, strict=True)] if live else [0.0] * self._width

    @staticmethod
    def covers_s(now_s: float) -> float:
        """How long before ``now_s`` the window begins."""
        return (SLOTS - 1) * SLOT_S + now_s % SLOT_S


@dataclass(slots=True)
class _Stage:
    """One session's stage."""

    label: bytes
    stage: int
    start: int
    end: int
    opened_s: float
    stepped_s: float
    """When it last did something."""
    arrived_s: float | None = None
    """Of the latest decode step, if the next one follows it."""
    window: Window = field(default_factory=lambda: Window(_STAGE_WIDTH))

    def figures(self, now_s: float) -> StageFigures:
        sums = self.window.sums(now_s)
        return StageFigures(
            label=self.label,
            stage=self.stage,
            start=self.start,
            end=self.end,
            decode_rows=int(sums[_DECODE_ROWS]),
            prefill_rows=int(sums[_PREFILL_ROWS]),
            wait_s=_mean_s(sums[_WAIT_S], sums[_STEPS]),
            compute_s=_mean_s(sums[_COMPUTE_S], sums[_STEPS]),
            send_s=_mean_s(sums[_SEND_S], sums[_STEPS]),
            period_s=_mean_s(sums[_PERIOD_S], sums[_PERIODS]),
            age_s=max(now_s - self.stepped_s, 0.0),
            open_s=max(now_s - self.opened_s, 0.0),
        )


class Figures:
    """Counts for one server process, whatever spans it holds one after the other."""

    def __init__(self, now_s: float) -> None:
        self.refused = 0
        """OPENs that were answered BUSY or REFUSED."""
        self.decode_row_layers = self.prefill_row_layers = 0
        """Rows, each times the layers it was computed through."""
        self._began_s = now_s
        self._computing_s: float | None = None
        self._sessions = self._heals = self._forwards = 0
        self._decode_rows = self._prefill_rows = self._answers = 0
        self._window = Window(_SERVER_WIDTH)
        self._stages: dict[Hashable, _Stage] = {}
        self._ended: deque[tuple[float, _Stage]] = deque(maxlen=MAX_CHAINS)

    # -- sessions -------------------------------------------------------------------------------------------

    def opened(self, session: Hashable, opened: Open, now_s: float) -> None:
        """A session was accepted."""
        self._sessions += 1
        self._heals += opened.generation > 0
        label = chain_label(opened.session)
        self._stages[session] = _Stage(label, opened.stage, opened.start, opened.end, now_s, now_s)

    def closed(self, session: Hashable, now_s: float) -> None:
        """It is over; it is told of for ``WINDOW_S`` more, as far as there is room."""
        if (stage := self._stages.pop(session, None)) is not None:
            self._ended.append((now_s, stage))

    # -- steps ----------------------------------------------------------------------------------------------

    def began(self, now_s: float) -> None:
        """The engine has begun a forward."""
        self._computing_s = now_s

    def stopped(self) -> None:
        """The forward that began will not be told of."""
        self._computing_s = None

    def ended(self, now_s: float, *, decode: bool) -> None:
        """The forward has ended; ``decode``: it held decode steps alone, and all of them succeeded."""
        took_s = 0.0 if self._computing_s is None else now_s - self._computing_s
        self._computing_s = None
        self._forwards += 1
        sums = self._window.at(now_s)
        sums[_BUSY_S] += took_s
        if decode:
            _count(sums, _FORWARD, took_s)

    def computed(self, session: Hashable, now_s: float, *, rows: int, decode: bool, answers: int) -> None:
        """A step of ``rows`` rows was computed, of which a tail answers ``answers``; ``decode``: on the decode lane."""
        sums, stage = self._window.at(now_s), self._stages.get(session)
        if decode:
            self._decode_rows += rows
            sums[_DECODE] += rows
        else:
            self._prefill_rows += rows
            sums[_PREFILL] += rows
        self._answers += answers
        sums[_ANSWERS] += answers
        if stage is not None:
            if decode:
                self.decode_row_layers += rows * (stage.end - stage.start)
            else:
                self.prefill_row_layers += rows * (stage.end - stage.start)
            stage.stepped_s = now_s
            stage.window.at(now_s)[_DECODE_ROWS if decode else _PREFILL_ROWS] += rows

    def passed(self, session: Hashable) -> None:
        """A prefill chunk has left, or a step that begins an answer: the next step does not follow one before it."""
        if (stage := self._stages.get(session)) is not None:
            stage.arrived_s = None

    def left(self, session: Hashable, now_s: float, *, arrived_s: float, compute_s: float, computed_s: float) -> None:
        """A decode step has left that came at ``arrived_s``, took the engine ``compute_s``, and left it then."""
        took_s, send_s = max(now_s - arrived_s, 0.0), max(now_s - computed_s, 0.0)
        _count(self._window.at(now_s), _STEP, took_s)
        if (stage := self._stages.get(session)) is None:
            return
        sums = stage.window.at(now_s)
        sums[_STEPS] += 1
        sums[_WAIT_S] += max(took_s - compute_s - send_s, 0.0)
        sums[_COMPUTE_S] += compute_s
        sums[_SEND_S] += send_s
        if stage.arrived_s is not None and arrived_s - stage.arrived_s <= PAUSE_S:
            sums[_PERIODS] += 1
            sums[_PERIOD_S] += max(arrived_s - stage.arrived_s, 0.0)
        stage.arrived_s = arrived_s

    # -- told -----------------------------------------------------------------------------------------------

    def report(self, now_s: float, *, receipts: int, sent_bytes: int, links: Sequence[LinkFigures]) -> StatusReport:
        """How the server is; ``receipts`` and ``sent_bytes`` are counted by others. O(chains · slots)."""
        sums, uptime_s = self._window.sums(now_s), max(now_s - self._began_s, 0.0)
        totals = Totals(
            sessions=self._sessions,
            refused=self.refused,
            decode_rows=self._decode_rows,
            prefill_rows=self._prefill_rows,
            answers=self._answers,
            forwards=self._forwards,
            heals=self._heals,
            receipts=receipts,
            sent_bytes=sent_bytes,
        )
        return StatusReport(
            uptime_s=uptime_s,
            busy_share=self._busy_share(sums[_BUSY_S], now_s, uptime_s),
            totals=totals,
            forward_s=_histogram(sums, _FORWARD),
            step_s=_histogram(sums, _STEP),
            decode_rows=int(sums[_DECODE]),
            prefill_rows=int(sums[_PREFILL]),
            answers=int(sums[_ANSWERS]),
            chains=self._chains(now_s),
            links=tuple(links[:MAX_LINKS]),
        )

    def _busy_share(self, busy_s: float, now_s: float, uptime_s: float) -> float:
        """A forward that is under way counts as far as it has got."""
        if self._computing_s is not None:
            busy_s += max(now_s - self._computing_s, 0.0)
        covered_s = min(Window.covers_s(now_s), uptime_s)
        return min(busy_s / covered_s, 1.0) if covered_s > 0 else 0.0

    def _chains(self, now_s: float) -> tuple[StageFigures, ...]:
        while self._ended and now_s - self._ended[0][0] > WINDOW_S:
            self._ended.popleft()
        stages = [*self._stages.values(), *(stage for _, stage in self._ended)]
        latest = sorted(stages, key=lambda stage: stage.stepped_s, reverse=True)[:MAX_CHAINS]
        return tuple(stage.figures(now_s) for stage in latest)


def _count(sums: list[float], histogram: int, seconds: float) -> None:
    sums[histogram + bisect_left(BUCKETS_S, seconds)] += 1
    sums[histogram + _BUCKETS] += seconds


def _histogram(sums: Sequence[float], histogram: int) -> Histogram:
    counts = tuple(int(count) for count in sums[histogram : histogram + _BUCKETS])
    return Histogram(counts, sums[histogram + _BUCKETS])


def _mean_s(total_s: float, count: float) -> float | None:
    return min(total_s / count, MAX_SECONDS) if count else None
