"""The fast record of a server: how quick and how full it is at this moment."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from swarm.core.errors import BadRecordError
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_LAYERS
from swarm.core.record_base import MAX_SECONDS, MIN_RATE, PeerText, Record

MAX_RTT_PEERS = 16
"""Successors a server measures and names: the nearest ones."""
BATCHES = (1, 2, 4, 8)
"""Sessions in one step for which ``Metrics.step_s`` is measured at start."""
METRICS_IDLE_S = 4.0
"""An idle server writes metrics so often, unless there are very many."""
METRICS_LIFETIME_S = 10.0
"""After so long without news a server is not routed."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Metrics(Record, frozen=True, kw_only=True, omit_defaults=True, tag="metrics"):
    """One server's live figures; they belong to the announcement with the same ``peer`` and ``instance``.

    A decode step over n of its layers takes ``fixed_s + n * tau_s`` at its present load, waiting in the queue
    included. ``step_s`` is t(b), the unloaded time of a step over its whole span for b sessions together, for the b of
    ``BATCHES`` (empty: unknown). ``uplink_mbps`` None is unmeasured, which counts as bad, never as free. ``rtt_s``
    holds the round trip in seconds to servers that could follow this one, and if there is room to those it could
    follow, by peer id.
    """

    LIFETIME_S: ClassVar[float] = 60.0

    tau_s: float
    fixed_s: float
    step_s: Annotated[tuple[float, ...], msgspec.Meta(max_length=len(BATCHES))] = ()
    prefill_tokens_per_s: float = 0.0
    kv_free_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)]
    sessions: Count = 0
    queued_steps: Count = 0
    uplink_mbps: float | None = None
    rtt_s: Annotated[dict[PeerText, float], msgspec.Meta(max_length=MAX_RTT_PEERS)] = msgspec.field(
        default_factory=dict
    )

    def check(self) -> None:
        """See ``Record.check``; also: every figure a finite number, none negative."""
        super().check()
        self.check_figures(tau_s=self.tau_s, fixed_s=self.fixed_s, prefill_tokens_per_s=self.prefill_tokens_per_s)
        for name, values in (("step_s", self.step_s), ("rtt_s", self.rtt_s.values())):
            if not all(0 <= value <= MAX_SECONDS for value in values):  # a NaN fails this too
                raise BadRecordError(f"{name} holds an impossible time", peer=self.peer)
        if self.step_s and len(self.step_s) != len(BATCHES):
            raise BadRecordError(f"{len(self.step_s)} step times", peer=self.peer)
        if self.uplink_mbps is not None:
            self.check_figures(uplink_mbps=self.uplink_mbps)
            if self.uplink_mbps < MIN_RATE:
                raise BadRecordError(f"uplink_mbps is {self.uplink_mbps}", peer=self.peer)
