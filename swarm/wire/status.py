"""What a server tells anybody who asks how it is: counters, histograms, and where the time of its chains goes.

No client, no session id and no text is in it: a chain goes by a label (``core.ids.chain_label``) that is the same at
all its servers and leads back to nobody.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from swarm.core.errors import MisuseError
from swarm.core.ids import CHAIN_LABEL_BYTES
from swarm.wire.fields import Body, Layer, PeerText, Seconds, Stage

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the histograms' buckets, in seconds; one more bucket holds what is above."""
WINDOW_S = 60.0
"""Histograms and chains cover so long before the answer."""
MAX_CHAINS = 64
"""Stages of chains in one answer, those with the latest steps."""
MAX_LINKS = 32

Total = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Label = Annotated[bytes, msgspec.Meta(min_length=CHAIN_LABEL_BYTES, max_length=CHAIN_LABEL_BYTES)]
Buckets = Annotated[tuple[Total, ...], msgspec.Meta(min_length=len(BUCKETS_S) + 1, max_length=len(BUCKETS_S) + 1)]
Mbps = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Histogram(Body, frozen=True):
    """Durations of the last ``WINDOW_S``: how many fell into each bucket of ``BUCKETS_S``, and their sum."""

    counts: Buckets
    sum_s: Annotated[float, msgspec.Meta(ge=0, le=1e12)]

    @property
    def total(self) -> int:
        return sum(self.counts)

    def quantile_s(self, share: float) -> float | None:
        """The duration below which ``share`` of them lie, between bounds in proportion; None if there are none.

        It is off by a bucket's width at most; what lies above the last bound counts as that. O(buckets).
        """
        if not 0 <= share <= 1:
            raise MisuseError(f"a share of {share}")
        if not (total := self.total):
            return None
        rank, below, low_s = share * total, 0, 0.0
        for count, high_s in zip(self.counts, (*BUCKETS_S, math.inf), strict=True):
            if count and below + count >= rank:
                return low_s if math.isinf(high_s) else low_s + (high_s - low_s) * max(rank - below, 0) / count
            below += count
            low_s = high_s
        return BUCKETS_S[-1]


class Totals(Body, frozen=True):
    """Counted since the process started.

    ``sessions`` are stages of sessions that were let in, ``refused`` are OPENs answered BUSY or REFUSED, ``heals`` are
    spans taken over from others in running sessions. ``decode_rows`` and ``prefill_rows`` were computed; ``answers``
    are tokens that clients got from the last layer, sampled here or from its rows by themselves. ``sent_bytes`` went
    out in sessions. A server's probe of itself and audits count too.
    """

    sessions: Total = 0
    refused: Total = 0
    decode_rows: Total = 0
    prefill_rows: Total = 0
    answers: Total = 0
    forwards: Total = 0
    heals: Total = 0
    receipts: Total = 0
    sent_bytes: Total = 0


class StageFigures(Body, frozen=True):
    """One stage of one live chain, over the last ``WINDOW_S``.

    Means over its decode steps: ``wait_s`` from arrival to the forward, ``compute_s`` of that forward, ``send_s`` from
    its end until the network had taken the step. Their sum is how long a step is here; what is left of ``period_s``,
    between two arrivals, it spends elsewhere or on the way. None where there was no decode step. ``age_s`` is since the
    last step, ``open_s`` since the session came; a session that has ended is told of for ``WINDOW_S`` more.
    """

    label: Label
    stage: Stage
    start: Layer
    end: Layer
    decode_rows: Total
    prefill_rows: Total
    wait_s: Seconds | None
    compute_s: Seconds | None
    send_s: Seconds | None
    period_s: Seconds | None
    age_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    open_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise MisuseError(f"stage {self.stage} with layers {self.start}:{self.end}")


class LinkFigures(Body, frozen=True):
    """The way to a server that this one sends rows to: smoothed round trip, age of the last no-op that came back,
    and the best late throughput of a burst to it alone (at least so much gets there). None: not measured."""

    peer: PeerText
    rtt_s: Seconds | None
    noop_age_s: Seconds | None
    goodput_mbps: Mbps | None


class AskStatus(Body, frozen=True, tag=25):
    """Anybody → server on a status stream, any number of times: how are you?"""


class StatusReport(Body, frozen=True, tag=26):
    """Server → whoever asked. ``uptime_s`` is since the process started; ``busy_share`` how much of the last
    ``WINDOW_S`` the engine computed. ``forward_s`` are forwards with decode steps alone, ``step_s`` decode steps from
    arrival to leaving."""

    uptime_s: Annotated[float, msgspec.Meta(ge=0, le=1e10)]
    busy_share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    totals: Totals
    forward_s: Histogram
    step_s: Histogram
    decode_rows: Total
    prefill_rows: Total
    answers: Total
    chains: Annotated[tuple[StageFigures, ...], msgspec.Meta(max_length=MAX_CHAINS)] = ()
    links: Annotated[tuple[LinkFigures, ...], msgspec.Meta(max_length=MAX_LINKS)] = ()
