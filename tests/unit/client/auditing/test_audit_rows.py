"""Rows one after the other are hashed as the tensors they came in, and mean the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.auditing.rows import RowForm, by_rows, floats
from swarm.core.errors import ProtocolViolation
from swarm.verification.proofs import ProofCodec, row_bytes
from swarm.verification.signed.leaves import digest_rows
from swarm.wire.tensors import cut_tensor, decode_tensor, encode_tensor, from_float32, to_float32

codecs: st.SearchStrategy[ProofCodec] = st.sampled_from(["raw", "int8"])


@given(codecs, st.sampled_from(["float32", "bfloat16", "float16"]), st.integers(1, 5), st.integers(1, 130))
def test_each_row_with_its_own_scales(codec: ProofCodec, dtype: str, rows: int, hidden: int) -> None:
    values = np.random.default_rng(hidden).normal(0, 3, (rows, hidden)).astype(np.float32)
    form = RowForm(codec, dtype, hidden)
    tensor = encode_tensor(from_float32(values, dtype), codec, dtype, hidden)
    flat = by_rows(tensor, form)
    parts = [part for part in cut_tensor(tensor, codec, dtype, hidden, 0, rows) if len(part)]
    assert digest_rows(rows, flat) == digest_rows(rows, *parts)
    assert form.row_bytes == row_bytes(codec, dtype, hidden)
    received = to_float32(decode_tensor(tensor, codec, dtype, rows, hidden), dtype).reshape(rows, hidden)
    assert np.array_equal(floats(flat, form), received)
    cut = rows // 2
    assert np.array_equal(floats(flat[cut * form.row_bytes :], form), received[cut:])


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_bytes_that_are_no_rows(codec: ProofCodec) -> None:
    form = RowForm(codec, "float32", 70)
    with pytest.raises(ProtocolViolation):
        floats(bytes(form.row_bytes + 1), form)


def test_scales_that_nobody_writes() -> None:
    form = RowForm("int8", "float32", 4)
    with pytest.raises(ProtocolViolation, match="scales"):
        floats(np.float32(np.nan).tobytes() + bytes(4), form)
