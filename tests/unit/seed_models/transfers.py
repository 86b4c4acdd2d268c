"""What the network costs against computing: a KV prefix fetched or recomputed, and prefill over Ethernet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Attention:
    """The part of a model that decides how large its KV cache is."""

    layers: int
    kv_heads: int
    head_dim: int
    value_bytes: int = 2

    @property
    def kv_bytes(self) -> int:
        """Of one token: a key and a value per layer and head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix whose KV cache lies on another machine, ``latency_s`` away over ``link_bits_per_s``.

    To fetch n tokens takes ``latency_s + 8·n·kv_bytes / link``, to recompute them ``n / prefill_tokens_per_s``.
    """

    kv_bytes: int
    prefill_tokens_per_s: int
    latency_s: Fraction
    link_bits_per_s: int

    def fetch_s(self, tokens: int) -> Fraction:
        return self.latency_s + Fraction(8 * tokens * self.kv_bytes, self.link_bits_per_s)

    def recompute_s(self, tokens: int) -> Fraction:
        return Fraction(tokens, self.prefill_tokens_per_s)

    def worth_fetching_from(self) -> int | None:
        """The shortest prefix that is fetched no slower than recomputed; None if no length is."""
        saved_s = self.recompute_s(1) - (self.fetch_s(1) - self.latency_s)
        return math.ceil(self.latency_s / saved_s) if saved_s > 0 else None


ETHERNET_PAYLOAD, ETHERNET_FRAME = 1448, 1538
"""Bytes of a full frame: MTU 1500 less IP (20) and TCP with timestamps (32), against the 1500 with Ethernet's header
and checksum (18), preamble (8) and gap (12). So a TCP stream gets 94 % of the line rate."""

GOODPUT = round(ETHERNET_PAYLOAD / ETHERNET_FRAME, 2)


def prefill_tokens_per_s(
    positions: int, chunk_bytes: float, compute_s: float, line_bits_per_s: float, goodput: float = GOODPUT
) -> float:
    """Chunks of ``positions`` are computed and then sent, one after the other, without overlap."""
    return positions / (compute_s + 8 * chunk_bytes / (goodput * line_bits_per_s))
