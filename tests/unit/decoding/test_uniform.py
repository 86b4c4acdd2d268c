"""Philox against its published vectors; the uniforms' independence of seed, sample and position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from swarm.core.errors import MisuseError
from swarm.decoding.uniform import philox4x32, uniform

# Lines "philox4x32 10" of the Random123 distribution's kat_vectors: counter, key, result.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
]

words = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_known_answers(line: str) -> None:
    c0, c1, c2, c3, k0, k1, *expected = (int(word, 16) for word in line.split())
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == tuple(expected)


def test_the_uniform_is_the_top_53_bits_of_the_first_two_words() -> None:
    assert uniform(0, 0, 0) == ((0xE169C58D6627E8D5 >> 11) / 2**53)


@given(seed=st.integers(0, 2**64 - 1), sample=words, position=st.integers(0, 2**64 - 1))
def test_a_uniform_is_a_53_bit_fraction_below_one(seed: int, sample: int, position: int) -> None:
    u = uniform(seed, sample, position)
    assert 0.0 <= u < 1.0
    assert (u * 2**53).is_integer()
    assert u == uniform(seed, sample, position)


@given(seed=st.integers(0, 2**63 - 1), sample=st.integers(0, 65535), position=st.integers(0, 2**32))
def test_each_coordinate_changes_the_uniform(seed: int, sample: int, position: int) -> None:
    here = uniform(seed, sample, position)
    assert here != uniform(seed + 1, sample, position)
    assert here != uniform(seed, sample + 1, position)
    assert here != uniform(seed, sample, position + 1)


@pytest.mark.parametrize("axis", ["seed", "sample", "position"])
def test_uniforms_along_each_axis_are_uniform_and_uncorrelated(axis: str) -> None:
    start = {"seed": 7, "sample": 0, "position": 100}
    draws = np.array([uniform(**{**start, axis: start[axis] + step}) for step in range(20_000)])
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(len(draws))


@pytest.mark.parametrize("bad", [(-1, 0, 0), (2**64, 0, 0), (0, 2**32, 0), (0, -1, 0), (0, 0, -1), (0, 0, 2**64)])
def test_out_of_range_is_misuse(bad: tuple[int, int, int]) -> None:
    with pytest.raises(MisuseError):
        uniform(*bad)
