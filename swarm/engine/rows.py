"""Hidden rows between tensors and raw little-endian bytes."""

from __future__ import annotations

import sys

import torch

from swarm.core.errors import ConfigError


def rows_from_bytes(data: bytes | memoryview, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """``[rows, hidden_size]`` on the CPU from its raw form; the size must have been checked."""
    _check_byte_order()
    # torch warns about memory it may not write to, so the bytes are copied once.
    return torch.frombuffer(bytearray(data), dtype=dtype).view(rows, -1)


def rows_to_bytes(rows: torch.Tensor) -> bytes:
    """The raw form of ``[rows, hidden_size]``, in the rows' own dtype."""
    _check_byte_order()
    return rows.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _check_byte_order() -> None:
    if sys.byteorder != "little":
        raise ConfigError("this machine stores numbers big endian, the wire is little endian")
