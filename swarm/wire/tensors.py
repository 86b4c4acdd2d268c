"""Activations as bytes. ``raw`` is the model's dtype, exact; ``int8`` is blockwise absmax, half to a quarter the size.

Shapes: a tensor on the wire is ``[rows, hidden]``, row-major, little-endian.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.numerics import DTYPE_BYTES

INT8_BLOCK = 64
"""Values that share one scale. Relative error of real activations is about 0.6 %."""

INT8_MAX = 127

_LARGEST = {"float32": np.float32(3.4028235e38), "bfloat16": np.float32(3.3895314e38), "float16": np.float32(65504)}
"""Largest finite value of each dtype."""

_SCALE_SLACK = np.float32(1 + 1e-6)
"""A scale is a rounded quotient."""

Buffer = bytes | memoryview


def tensor_bytes(codec: str, dtype: str, rows: int, hidden: int) -> int:
    """Exact size of ``[rows, hidden]`` under a codec."""
    if codec == "raw":
        return rows * hidden * DTYPE_BYTES[dtype]
    return rows * (hidden + 4 * _blocks(hidden))


def encode_tensor(raw: Buffer, codec: str, dtype: str, hidden: int) -> Buffer:
    """Wire form of raw rows. ``raw`` passes through untouched.

    ``int8`` is one float32 scale (absmax / 127) per block of 64, all scales first, then one signed byte per value:
    no value moves by more than half a scale, plus the rounding of ``dtype``. Raises ``MisuseError`` for NaN and
    infinities, which have no scale, and if ``raw`` is not whole rows.
    """
    if codec == "raw":
        return raw
    if memoryview(raw).nbytes % (hidden * DTYPE_BYTES[dtype]):
        raise MisuseError(f"{memoryview(raw).nbytes} bytes are not whole rows of {hidden} {dtype}")
    # value_f: [rows, hidden]; block_f: [rows, blocks, 64], zero-padded in the last block
    value_f = to_float32(raw, dtype).reshape(-1, hidden)
    rows, blocks = value_f.shape[0], _blocks(hidden)
    padded_f: npt.NDArray[np.float32] = np.zeros((rows, blocks * INT8_BLOCK), np.float32)
    padded_f[:, :hidden] = value_f
    block_f = padded_f.reshape(rows, blocks, INT8_BLOCK)
    scale_f = np.abs(block_f).max(axis=2) / np.float32(INT8_MAX)
    if not np.isfinite(scale_f).all():
        raise MisuseError("activations that are not finite cannot be sent as int8", hint="use the raw codec")
    safe_f = np.where(scale_f > 0, scale_f, np.float32(1))
    code_f = np.clip(np.rint(block_f / safe_f[:, :, None]), -INT8_MAX, INT8_MAX)  # subnormal scales are coarse
    code_i = code_f.astype(np.int8).reshape(rows, blocks * INT8_BLOCK)[:, :hidden]
    scale_bytes: bytes = scale_f.astype("<f4").tobytes()
    return scale_bytes + np.ascontiguousarray(code_i).tobytes()


def decode_tensor(data: Buffer, codec: str, dtype: str, rows: int, hidden: int) -> Buffer:
    """Raw rows from wire form; finite whatever the peer sent, if the codec is ``int8``.

    Raises ``ProtocolViolation`` if the size is not exactly that of ``[rows, hidden]``, or a scale is negative, NaN or
    too large for ``dtype``.
    """
    expected, size = tensor_bytes(codec, dtype, rows, hidden), memoryview(data).nbytes
    if size != expected:
        raise ProtocolViolation(f"tensor of {size} bytes where [{rows}, {hidden}] takes {expected}")
    if codec == "raw":
        return data
    blocks, largest = _blocks(hidden), _LARGEST[dtype]
    scale_f = np.frombuffer(data, "<f4", rows * blocks).reshape(rows, blocks)
    code_i = np.frombuffer(data, np.int8, rows * hidden, 4 * rows * blocks).reshape(rows, hidden)
    if not ((scale_f >= 0) & (scale_f <= largest / INT8_MAX * _SCALE_SLACK)).all():
        raise ProtocolViolation(f"int8 scales outside what {dtype} can hold")
    with np.errstate(over="ignore"):  # the product may round past the largest value, and is cut back to it
        value_f = code_i * np.repeat(scale_f, INT8_BLOCK, axis=1)[:, :hidden]
    return from_float32(np.clip(value_f, -largest, largest), dtype)


def cut_tensor(data: Buffer, codec: str, dtype: str, hidden: int, first: int, last: int) -> tuple[Buffer, Buffer]:
    """``(scales, values)`` of rows ``[first, last)`` of an encoded tensor, as views of ``data``; ``raw`` has no scales.

    The scales of several cuts in order, then their values in order, are the encoded tensor of all their rows.
    """
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    if codec == "raw":
        row_bytes = hidden * DTYPE_BYTES[dtype]
        return b"", view[first * row_bytes : last * row_bytes]
    scale_bytes = 4 * _blocks(hidden)
    values = view[view.nbytes // (scale_bytes + hidden) * scale_bytes :]
    return view[first * scale_bytes : last * scale_bytes], values[first * hidden : last * hidden]


def cast_rows(raw: Buffer, source: str, target: str) -> Buffer:
    """Raw rows of one dtype as another's, for chains that mix them; untouched if both are the same.

    What ``target`` cannot hold becomes its largest value, not infinity. NaN stays NaN.
    """
    if source == target:
        return raw
    largest = _LARGEST[target]
    return from_float32(np.clip(to_float32(raw, source), -largest, largest), target)


def _blocks(hidden: int) -> int:
    return -(-hidden // INT8_BLOCK)


def to_float32(raw: Buffer, dtype: str) -> npt.NDArray[np.float32]:
    """Raw values of ``dtype`` as a flat float32 array."""
    if dtype == "bfloat16":  # numpy has none: its bits are the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f4" if dtype == "float32" else "<f2").astype(np.float32)


def from_float32(value_f: npt.NDArray[np.float32], dtype: str) -> bytes:
    """Float32 values as raw ``dtype``, rounded half to even."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(value_f, np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # round half to even
        return (rounded >> np.uint32(16)).astype("<u2").tobytes()
    return value_f.astype("<f4" if dtype == "float32" else "<f2").tobytes()
