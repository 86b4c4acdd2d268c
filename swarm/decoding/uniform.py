"""Uniforms without a generator: u is a function of (seed, sample, position), so any order of evaluation agrees.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): ten rounds
of a keyed bijection on 128-bit counters. The seed is the key; position and sample form the counter.
"""

from __future__ import annotations

from swarm.core.errors import MisuseError

Words4 = tuple[int, int, int, int]

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_WEYL_0 = 0x9E3779B9
_WEYL_1 = 0xBB67AE85
_ROUNDS = 10
_TOKEN_STREAM = 0
"""The counter's last word: draws of another purpose take another number and never meet these."""


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Ten rounds of Philox on four 32-bit words under a key of two. About 3 µs."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = _MULTIPLIER_0 * c0
        product_1 = _MULTIPLIER_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> 32) ^ c1 ^ k0,
            product_1 & _MASK,
            (product_0 >> 32) ^ c3 ^ k1,
            product_0 & _MASK,
        )
        k0 = (k0 + _WEYL_0) & _MASK
        k1 = (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, sample: int, position: int) -> float:
    """The uniform in [0, 1) that decides the token at absolute ``position`` of answer ``sample`` under ``seed``.

    A multiple of 2**-53: the top 53 of 64 output bits. ``seed`` and ``position`` are below 2**64, ``sample`` below
    2**32; raises ``MisuseError`` otherwise.
    """
    if not (0 <= seed < 2**64 and 0 <= position < 2**64 and 0 <= sample < 2**32):
        raise MisuseError(f"no uniform for seed {seed}, sample {sample}, position {position}")
    counter = (position & _MASK, position >> 32, sample, _TOKEN_STREAM)
    low, high, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((high << 32 | low) >> 11) * 2.0**-53
