"""Published break-evens of network and compute: a KV prefix, and prefill over Ethernet."""

from __future__ import annotations

from fractions import Fraction

import pytest
from transfers import ETHERNET_FRAME, ETHERNET_PAYLOAD, Attention, Prefix, prefill_tokens_per_s

MODEL = Attention(layers=48, kv_heads=8, head_dim=128)
"""The publication prints the lengths alone. They fix only latency over (time to recompute a token - time to fetch one),
up to rounding, so other round figures give them too; these are the roundest found: 48 layers of 8 KV heads in 16 bits,
prefill at 4,000 tokens/s, 50 and 100 ms away."""


def prefix(gbit_per_s: int, latency_ms: int) -> Prefix:
    return Prefix(MODEL.kv_bytes, 4_000, Fraction(latency_ms, 1000), gbit_per_s * 10**9)


@pytest.mark.parametrize("latency_ms", [0, 50, 100])
def test_over_five_gbit_no_prefix_is_worth_fetching(latency_ms: int) -> None:
    slow = prefix(5, latency_ms)
    assert slow.worth_fetching_from() is None
    assert all(slow.fetch_s(tokens) > slow.recompute_s(tokens) for tokens in (1, 100, 10_000, 1_000_000))


@pytest.mark.parametrize(("latency_ms", "tokens"), [(50, 214), (100, 427)])
def test_over_a_hundred_gbit_it_pays_from_a_few_hundred_tokens(latency_ms: int, tokens: int) -> None:
    fast = prefix(100, latency_ms)
    assert fast.worth_fetching_from() == tokens
    assert fast.fetch_s(tokens) <= fast.recompute_s(tokens)
    assert fast.fetch_s(tokens - 1) > fast.recompute_s(tokens - 1)


@pytest.mark.parametrize(("gbit_per_s", "printed"), [(1, "386"), (2.5, "458"), (10, "505")])
def test_prefill_over_ethernet(gbit_per_s: float, printed: str) -> None:
    """20.5 MB and 489 ms for each 256 positions; the line rate less the frames' overhead."""
    assert f"{prefill_tokens_per_s(256, 20.5e6, 0.489, gbit_per_s * 1e9):.0f}" == printed


def test_the_published_prefill_needs_the_overhead_of_frames() -> None:
    bare = [prefill_tokens_per_s(256, 20.5e6, 0.489, line * 1e9, goodput=1.0) for line in (1, 2.5, 10)]
    assert [f"{figure:.0f}" for figure in bare] == ["392", "462", "507"]
    unrounded = [
        prefill_tokens_per_s(256, 20.5e6, 0.489, line * 1e9, ETHERNET_PAYLOAD / ETHERNET_FRAME) for line in (1, 2.5, 10)
    ]
    assert unrounded == pytest.approx([386, 458, 505], rel=2e-3)
