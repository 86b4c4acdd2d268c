"""Rows of one dtype as another's: what both can hold is kept, what overflows is cut, NaN is not hidden."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.numerics import DTYPE_BYTES
from swarm.wire.tensors import cast_rows

DTYPES = sorted(DTYPE_BYTES)


def raw(values: list[float], dtype: str) -> bytes:
    return torch.tensor(values, dtype=getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()


def values_of(data: bytes | memoryview, dtype: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).double()


@given(
    values=st.lists(st.floats(-60000, 60000), min_size=1, max_size=16),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(DTYPES),
)
def test_it_rounds_as_torch_does(values: list[float], source: str, target: str) -> None:
    data = raw(values, source)
    wanted = values_of(data, source).to(torch.float32).to(getattr(torch, target)).double()
    assert torch.equal(values_of(cast_rows(data, source, target), target), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_dtype_is_not_touched(dtype: str) -> None:
    data = raw([1.0, float("nan")], dtype)
    assert cast_rows(data, dtype, dtype) is data


def test_what_overflows_becomes_the_largest_value() -> None:
    with np.errstate(all="raise"):
        cast = cast_rows(raw([1e30, -1e30, 7.0], "bfloat16"), "bfloat16", "float16")
    assert values_of(cast, "float16").tolist() == [65504.0, -65504.0, 7.0]


@pytest.mark.parametrize("target", ["bfloat16", "float16"])
def test_nan_stays_nan(target: str) -> None:
    assert values_of(cast_rows(raw([float("nan")], "float32"), "float32", target), target).isnan().all()
