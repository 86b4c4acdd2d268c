"""Sessions that circulate through a chain of stages: a closed queueing network, simulated event by event.

C sessions each have one token on the way. A token visits the p stages in order; a stage holds one token at a time,
first come first served, for ``service_s``, and between stages there may be a wait of ``hop_s`` that any number of
tokens share. When its token is done a session sends the next at once. All times are exact fractions and nothing is
random, so after a while the system repeats itself and every average over whole rounds is exact.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Chain:
    """``stages`` equal stages; a lone token takes ``stages * (service_s + hop_s)``."""

    stages: int
    service_s: Fraction
    hop_s: Fraction = Fraction(0)

    @property
    def lone_s(self) -> Fraction:
        return self.stages * (self.service_s + self.hop_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """What was counted in a window of the steady state."""

    tokens_per_s: Fraction
    latency_s: Fraction
    """Mean time from sending a token to its end, over the tokens that ended in the window."""
    in_system: Fraction
    """Mean number of tokens on the way, integrated over the window."""


def simulate(chain: Chain, sessions: int, rounds: int = 12) -> Measured:
    """Run until session 0 has done ``2 * rounds`` tokens, and measure the second half."""
    arrivals = [(Fraction(0), session, 0) for session in range(sessions)]  # (time, session, stage)
    heapq.heapify(arrivals)
    free_at = [Fraction(0)] * chain.stages
    sent = [Fraction(0)] * sessions
    spans: list[tuple[Fraction, Fraction]] = []  # (sent, done) of every token
    done_by_first: list[Fraction] = []
    while len(done_by_first) < 2 * rounds:
        time, session, stage = heapq.heappop(arrivals)
        free_at[stage] = max(time, free_at[stage]) + chain.service_s
        arrival = free_at[stage] + chain.hop_s
        if stage + 1 < chain.stages:
            heapq.heappush(arrivals, (arrival, session, stage + 1))
            continue
        spans.append((sent[session], arrival))
        sent[session] = arrival
        if session == 0:
            done_by_first.append(arrival)
        heapq.heappush(arrivals, (arrival, session, 0))
    spans += [(start, done_by_first[-1]) for start in sent]  # tokens still on the way when the window closes
    return _measure(spans, done_by_first[rounds - 1], done_by_first[-1], sessions)


def _measure(spans: list[tuple[Fraction, Fraction]], opens: Fraction, closes: Fraction, sessions: int) -> Measured:
    ended = [(start, end) for start, end in spans[: len(spans) - sessions] if opens < end <= closes]
    present = sum((max(Fraction(0), min(end, closes) - max(start, opens)) for start, end in spans), Fraction(0))
    length = closes - opens
    return Measured(
        tokens_per_s=len(ended) / length,
        latency_s=sum((end - start for start, end in ended), Fraction(0)) / len(ended),
        in_system=present / length,
    )
