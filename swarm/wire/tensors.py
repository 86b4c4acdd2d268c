"""Activations as bytes. ``raw`` is the model's dtype, exact; ``int8`` is blockwise absmax, half to a quarter the size.

Shapes: a tensor on the wire is ``[rows, hidden]``, row-major, little-endian.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from swarm.core.errors import ProtocolViolation
from swarm.core.numerics import DTYPE_BYTES

INT8_BLOCK = 64
"""Values that share one scale. Relative error is about 0.6 % (FACTS.md)."""

Buffer = bytes | memoryview


def tensor_bytes(codec: str, dtype: str, rows: int, hidden: int) -> int:
    """Exact size of ``[rows, hidden]`` under a codec."""
    if codec == "raw":
        return rows * hidden * DTYPE_BYTES[dtype]
    return rows * (hidden + 4 * _blocks(hidden))


def encode_tensor(raw: Buffer, codec: str, dtype: str, hidden: int) -> Buffer:
    """Wire form of raw rows. ``raw`` passes through untouched."""
    if codec == "raw":
        return raw
    # value_f: [rows, blocks, 64], zero-padded in the last block
    value_f = _to_float32(raw, dtype).reshape(-1, hidden)
    rows, blocks = value_f.shape[0], _blocks(hidden)
    padded_f: npt.NDArray[np.float32] = np.zeros((rows, blocks * INT8_BLOCK), np.float32)
    padded_f[:, :hidden] = value_f
    block_f = padded_f.reshape(rows, blocks, INT8_BLOCK)
    scale_f = np.abs(block_f).max(axis=2) / np.float32(127)
    safe_f = np.where(scale_f > 0, scale_f, np.float32(1))
    code_i = np.rint(block_f / safe_f[:, :, None]).astype(np.int8).reshape(rows, -1)[:, :hidden]
    scale_bytes: bytes = scale_f.astype("<f4").tobytes()
    return scale_bytes + np.ascontiguousarray(code_i).tobytes()


def decode_tensor(data: Buffer, codec: str, dtype: str, rows: int, hidden: int) -> Buffer:
    """Raw rows from wire form; ``ProtocolViolation`` if the size is not exactly that of ``[rows, hidden]``."""
    expected = tensor_bytes(codec, dtype, rows, hidden)
    if len(data) != expected:
        raise ProtocolViolation(f"tensor of {len(data)} bytes where [{rows}, {hidden}] takes {expected}")
    if codec == "raw":
        return data
    blocks = _blocks(hidden)
    scale_f = np.frombuffer(data, "<f4", rows * blocks).reshape(rows, blocks)
    code_i = np.frombuffer(data, np.int8, rows * hidden, 4 * rows * blocks).reshape(rows, hidden)
    if not np.isfinite(scale_f).all():
        raise ProtocolViolation("int8 scales are not finite")
    return _from_float32(code_i * np.repeat(scale_f, INT8_BLOCK, axis=1)[:, :hidden], dtype)


def _blocks(hidden: int) -> int:
    return -(-hidden // INT8_BLOCK)


def _to_float32(raw: Buffer, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":  # numpy has none: its bits are the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, "<f4" if dtype == "float32" else "<f2").astype(np.float32)


def _from_float32(value_f: npt.NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(value_f, np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))  # round half to even
        return (rounded >> np.uint32(16)).astype("<u2").tobytes()
    return value_f.astype("<f4" if dtype == "float32" else "<f2").tobytes()
