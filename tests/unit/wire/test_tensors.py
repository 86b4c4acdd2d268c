"""Tensors on the wire: raw is exact, int8 keeps its stated bound, and a peer's numbers are judged."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.numerics import DTYPE_BYTES
from swarm.wire.tensors import INT8_BLOCK, cut_tensor, decode_tensor, encode_tensor, tensor_bytes

F32 = npt.NDArray[np.float32]
LARGEST = {"float32": 3.4e38, "bfloat16": 3.38e38, "float16": 65504.0}
ULP = {"float32": 2**-23, "bfloat16": 2**-7, "float16": 2**-10}
SMALLEST = {"float32": 2**-149, "bfloat16": 2**-133, "float16": 2**-24}

dtypes = st.sampled_from(sorted(DTYPE_BYTES))


def to_bytes(values: F32, dtype: str) -> bytes:
    """An independent encoder; bfloat16 by truncation, so the values are exact afterwards."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f4" if dtype == "float32" else "<f2").tobytes()


def from_bytes(data: bytes | memoryview, dtype: str, hidden: int) -> npt.NDArray[np.float64]:
    if dtype == "bfloat16":
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, "<f4" if dtype == "float32" else "<f2")
    return values.astype(np.float64).reshape(-1, hidden)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, int, bytes]:
    """``(dtype, hidden, raw bytes)`` with hidden sizes on both sides of whole blocks and values of any magnitude."""
    dtype = draw(dtypes)
    rows = draw(st.integers(1, 3))
    hidden = draw(st.sampled_from([1, 2, 63, 64, 65, 100, 128, 130]))
    scale = draw(st.sampled_from([1.0, 1e-6, 1e-30, 1e-42, 3e4, LARGEST[dtype]]))
    unit = draw(arrays(np.float32, (rows, hidden), elements=st.floats(-1, 1, width=32)))
    values = np.clip(unit.astype(np.float64) * scale, -LARGEST[dtype], LARGEST[dtype]).astype(np.float32)
    return dtype, hidden, to_bytes(values, dtype)


@given(dtypes, st.integers(1, 4), st.integers(1, 200), st.data())
def test_raw_is_exact(dtype: str, rows: int, hidden: int, data: st.DataObject) -> None:
    size = tensor_bytes("raw", dtype, rows, hidden)
    assert size == rows * hidden * DTYPE_BYTES[dtype]
    raw = data.draw(st.binary(min_size=1, max_size=8)) * size
    sent = encode_tensor(raw[:size], "raw", dtype, hidden)
    assert decode_tensor(sent, "raw", dtype, rows, hidden) == raw[:size]


@given(tensors())
def test_int8_moves_no_value_by_more_than_half_a_step(case: tuple[str, int, bytes]) -> None:
    dtype, hidden, raw = case
    before = from_bytes(raw, dtype, hidden)
    rows = len(before)
    sent = encode_tensor(raw, "int8", dtype, hidden)
    assert len(sent) == tensor_bytes("int8", dtype, rows, hidden)
    after = from_bytes(decode_tensor(sent, "int8", dtype, rows, hidden), dtype, hidden)
    for start in range(0, hidden, INT8_BLOCK):
        block = slice(start, start + INT8_BLOCK)
        absmax = np.abs(before[:, block]).max(axis=1, keepdims=True)
        rounding = np.abs(before[:, block]) * ULP[dtype] + SMALLEST[dtype]
        # half a step, the coarseness of a subnormal float32 scale, and the rounding of the result
        bound = absmax / 127 * 0.5 * (1 + 1e-5) + 127 * SMALLEST["float32"] + rounding
        assert (np.abs(after[:, block] - before[:, block]) <= bound).all()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_relative_error_on_bell_shaped_rows_is_about_half_a_percent(dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal((8, 576)).astype(np.float32)
    raw = to_bytes(values, dtype)
    before = from_bytes(raw, dtype, 576)
    sent = encode_tensor(raw, "int8", dtype, 576)
    after = from_bytes(decode_tensor(sent, "int8", dtype, 8, 576), dtype, 576)
    error = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 0.002 < error < 0.008


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
@pytest.mark.parametrize("hidden", [1, 64, 100])
def test_zeros_stay_zero(dtype: str, hidden: int) -> None:
    raw = bytes(2 * hidden * DTYPE_BYTES[dtype])
    sent = encode_tensor(raw, "int8", dtype, hidden)
    assert not any(sent)
    assert decode_tensor(sent, "int8", dtype, 2, hidden) == raw


def test_one_blocks_outlier_does_not_blur_its_neighbours() -> None:
    values = np.full((1, 130), 0.01, np.float32)
    values[0, 70] = 1000.0
    raw = to_bytes(values, "float32")
    sent = encode_tensor(raw, "int8", "float32", 130)
    after = from_bytes(decode_tensor(sent, "int8", "float32", 1, 130), "float32", 130)
    np.testing.assert_allclose(after[0, :64], 0.01, rtol=1e-6)
    np.testing.assert_allclose(after[0, 128:], 0.01, rtol=1e-6)
    np.testing.assert_allclose(after[0, 70], 1000.0, rtol=1e-6)
    assert not after[0, 71:128].any()


@pytest.mark.parametrize(("dtype", "share"), [("float32", 0.27), ("bfloat16", 0.54), ("float16", 0.54)])
def test_int8_is_a_quarter_to_a_half_of_the_size(dtype: str, share: float) -> None:
    assert tensor_bytes("int8", dtype, 7, 576) <= share * tensor_bytes("raw", dtype, 7, 576)


@given(dtypes, st.sampled_from(["raw", "int8"]), st.integers(1, 3), st.integers(1, 130), st.integers(-5, 5))
def test_only_the_exact_size_is_taken(dtype: str, codec: str, rows: int, hidden: int, off: int) -> None:
    size = tensor_bytes(codec, dtype, rows, hidden)
    data = bytes(max(0, size + off))
    if len(data) == size:
        decode_tensor(data, codec, dtype, rows, hidden)
    else:
        with pytest.raises(ProtocolViolation, match=f"tensor of {len(data)} bytes"):
            decode_tensor(data, codec, dtype, rows, hidden)


def test_sizes_are_counted_in_bytes_whatever_the_view() -> None:
    values = np.ones((2, 64), np.float32)
    assert decode_tensor(values.data, "raw", "float32", 2, 64) is not None
    assert len(encode_tensor(values.data, "int8", "float32", 64)) == tensor_bytes("int8", "float32", 2, 64)
    with pytest.raises(ProtocolViolation):
        decode_tensor(memoryview(bytes(2 * 64 * 8)).cast("d"), "raw", "float32", 2, 64)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, -1.0, 3e38])
def test_a_senseless_scale_is_a_violation(dtype: str, scale: float) -> None:
    data = bytearray(tensor_bytes("int8", dtype, 1, 100))
    data[4:8] = np.array([scale], "<f4").tobytes()
    with pytest.raises(ProtocolViolation, match="scales outside"):
        decode_tensor(bytes(data), "int8", dtype, 1, 100)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_the_largest_scale_with_the_code_we_never_send_stays_finite(dtype: str) -> None:
    """-128 is a valid byte, but -128 · largest / 127 is beyond the largest value: the result is cut back to it."""
    largest = {"float32": np.finfo(np.float32).max, "bfloat16": 3.3895314e38, "float16": 65504}[dtype]
    wire = np.array([np.float32(largest) / np.float32(127)], "<f4").tobytes() + np.array([-128, 127], np.int8).tobytes()
    after = from_bytes(decode_tensor(wire, "int8", dtype, 1, 2), dtype, 2)
    np.testing.assert_allclose(after, [[-float(largest), float(largest)]], rtol=1e-6)


def test_a_subnormal_block_keeps_its_signs() -> None:
    """189 steps of the smallest float32 over 127 rounds to a scale of one step: codes would overflow a byte."""
    values = np.array([[189, -189, 0, 100]], np.float32) * np.float32(2**-149)
    wire = encode_tensor(to_bytes(values, "float32"), "int8", "float32", 4)
    after = from_bytes(decode_tensor(wire, "int8", "float32", 1, 4), "float32", 4)
    assert (after / 2**-149).tolist() == [[127, -127, 0, 100]]


@given(dtypes, st.integers(1, 130), st.data())
def test_int8_from_a_liar_is_finite_or_a_violation(dtype: str, hidden: int, data: st.DataObject) -> None:
    size = tensor_bytes("int8", dtype, 1, hidden)
    wire = (data.draw(st.binary(min_size=1, max_size=12)) * size)[:size]
    try:
        raw = decode_tensor(wire, "int8", dtype, 1, hidden)
    except ProtocolViolation:
        return
    assert np.isfinite(from_bytes(raw, dtype, hidden)).all()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_without_a_scale_are_not_sent(dtype: str, bad: float) -> None:
    values = np.ones((1, 70), np.float32)
    values[0, 66] = bad
    with pytest.raises(MisuseError, match="not finite"):
        encode_tensor(to_bytes(values, dtype), "int8", dtype, 70)


def test_ragged_rows_are_not_sent() -> None:
    with pytest.raises(MisuseError, match="10 bytes are not whole rows of 3 float32"):
        encode_tensor(bytes(10), "int8", "float32", 3)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (1 + 2**-7, 1 + 2**-7),
        (1 + 2**-8, 1.0),  # a tie, down to the even neighbour
        (1 + 3 * 2**-8, 1 + 2**-6),  # a tie, up to the even neighbour
        (1 + 2**-8 + 2**-20, 1 + 2**-7),  # just above a tie
    ],
)
def test_bfloat16_rounds_to_nearest_ties_to_even(scale: float, expected: float) -> None:
    wire = np.array([scale], "<f4").tobytes() + np.array([1, -1, 0], np.int8).tobytes()
    after = from_bytes(decode_tensor(wire, "int8", "bfloat16", 1, 3), "bfloat16", 3)
    assert after.tolist() == [[expected, -expected, 0.0]]


def test_nothing_is_a_tensor_of_no_rows() -> None:
    assert encode_tensor(b"", "int8", "float32", 64) == b""
    assert decode_tensor(b"", "int8", "float32", 0, 64) == b""


@given(tensors(), st.sampled_from(["raw", "int8"]), st.data())
def test_cuts_of_a_tensor_are_the_tensor_of_their_rows(
    tensor: tuple[str, int, bytes], codec: str, data: st.DataObject
) -> None:
    """Scales of every cut first, then their values: as if those rows had been encoded together. Nothing is copied."""
    dtype, hidden, raw = tensor
    row_bytes = hidden * DTYPE_BYTES[dtype]
    rows = len(raw) // row_bytes
    wire = encode_tensor(raw, codec, dtype, hidden)
    first = data.draw(st.integers(0, rows))
    last = data.draw(st.integers(first, rows))
    spans = [(first, last), (0, first), (last, rows)]
    cuts = [cut_tensor(wire, codec, dtype, hidden, *span) for span in spans]
    joined = b"".join([*(scales for scales, _ in cuts), *(values for _, values in cuts)])
    chosen = b"".join(raw[a * row_bytes : b * row_bytes] for a, b in spans)
    assert joined == encode_tensor(chosen, codec, dtype, hidden)
    assert all(memoryview(part).obj is memoryview(wire).obj for cut in cuts for part in cut if len(part))
