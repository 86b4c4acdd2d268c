"""Speculation with several chunks in flight: a session's rounds, simulated chunk by chunk.

A chunk is K drafted tokens that are verified in one traversal of the ring, which takes ``rtt_s``. D chunks are in
flight, sent ``rtt_s / D`` apart, each drafted on the assumption that all before it will be accepted whole. A draft is
the token the model would choose with probability alpha, independently. When a chunk comes back with a wrong draft
everything behind it in flight is void, and the session starts anew from the corrected token. D = 1 is plain synchronous
speculation.

A verified chunk also yields the model's own choice for the position after its last accepted draft: the correction where
a draft was wrong, a bonus token where none was. The two accountings differ in the bonus of a whole chunk.

- ``extra``, as published: the bonus is one token more, and the next chunk is judged as if it began after it. With
  alpha = 1, D chunks in flight gain a factor D. But the next chunk was drafted before the bonus was known, and its
  first draft stands at the bonus's own position: that position is counted twice. It shows below alpha = 1 - 1/D, where
  the model passes what even one endless chunk could reach.
- ``next``, the honest one: the bonus is the token at the next chunk's first position. If that chunk's first draft
  equals it, the chunk goes on, its first draft being no new token; else everything in flight is void at once. With
  alpha = 1 a chunk is worth K tokens, not K + 1, and D in flight gain D·K/(K+1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

Bonus: TypeAlias = Literal["extra", "next"]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """K, D, the ring's round trip and how the bonus token is counted."""

    k: int
    d: int
    rtt_s: float = 0.15
    bonus: Bonus = "extra"


def simulate(pipeline: Pipeline, alpha: float, chunks: int, random: Random) -> float:
    """Tokens per second over ``chunks`` verified chunks."""
    now_s, tokens = 0.0, 0
    next_send_s = 0.0
    returns: deque[float] = deque()
    follows = False  # the chunk that returns next follows a whole one
    for _ in range(chunks):
        while len(returns) < pipeline.d:
            returns.append(next_send_s + pipeline.rtt_s)
            next_send_s += pipeline.rtt_s / pipeline.d
        now_s = returns.popleft()
        known = 1 if follows and pipeline.bonus == "next" else 0  # drafts already counted as the bonus before
        accepted = known
        while accepted < pipeline.k and random.random() < alpha:
            accepted += 1
        tokens += accepted - known + 1
        follows = accepted == pipeline.k
        if follows and pipeline.bonus == "next":
            follows = random.random() < alpha  # is the next chunk's first draft the bonus?
        if not follows:
            returns.clear()
            next_send_s = now_s
    return tokens / now_s


def chunk_tokens(alpha: float, k: int) -> float:
    """Expected tokens of one chunk, correction or bonus included: ``(1 - alpha^(K+1)) / (1 - alpha)`` (DESIGN 8)."""
    return (1 - alpha ** (k + 1)) / (1 - alpha) if alpha < 1 else k + 1.0


def gain(pipeline: Pipeline, alpha: float) -> float:
    """Expected gain of D chunks in flight over one, in closed form; the round trip cancels out.

    A run of whole chunks takes one round trip for its first chunk and ``1/D`` of one for each that follows. ``extra``:
    a chunk is followed with probability ``x = alpha^K``, so a run has ``1 / (1 - x)`` chunks of ``chunk_tokens`` each
    and the gain is ``1 / (1 - x·(1 - 1/D))``. ``next``: a run ends at the first wrong draft, after ``1 / (1 - alpha)``
    tokens, and goes on beyond its n-th chunk with probability ``alpha^(nK+1)``; so the gain is ``1 / ((1 - alpha^(K+1))
    · (1 + alpha^(K+1) / (D·(1 - alpha^K))))``.
    """
    k, d = pipeline.k, pipeline.d
    if alpha == 1:
        return d if pipeline.bonus == "extra" else d * k / (k + 1)
    if pipeline.bonus == "extra":
        return 1 / (1 - alpha**k * (1 - 1 / d))
    beyond: float = alpha ** (k + 1)
    return 1 / ((1 - beyond) * (1 + beyond / (d * (1 - alpha**k))))


def limit(alpha: float, k: int) -> float:
    """No depth gains more over a synchronous chunk of K: ``1 / (1 - alpha^(K+1))``, what one endless chunk would."""
    return 1 / (1 - alpha ** (k + 1))
