"""Rows as bytes that are hashed one by one, whatever codec they travelled in, and as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.verification.proofs import ProofCodec
from swarm.wire.tensors import Buffer, decode_tensor, tensor_bytes, to_float32


@dataclass(frozen=True, slots=True)
class RowForm:
    """How rows of ``hidden`` values in ``dtype`` are encoded."""

    codec: ProofCodec
    dtype: str
    hidden: int

    @property
    def row_bytes(self) -> int:
        return tensor_bytes(self.codec, self.dtype, 1, self.hidden)


def by_rows(tensor: Buffer, form: RowForm) -> bytes:
    """A tensor as the wire has it → its rows one after the other, each with its own scales first.

    The size must have been checked. Row i of the result is what ``digest_rows`` hashes as row i of the tensor.
    """
    if form.codec == "raw":
        return bytes(tensor)
    flat, rows = np.frombuffer(tensor, np.uint8), memoryview(tensor).nbytes // form.row_bytes
    scale_bytes = form.row_bytes - form.hidden
    scales, codes = flat[: rows * scale_bytes], flat[rows * scale_bytes :]
    return np.concatenate([scales.reshape(rows, -1), codes.reshape(rows, -1)], axis=1).tobytes()


def floats(rows: bytes, form: RowForm) -> npt.NDArray[np.float32]:
    """What ``by_rows`` gave, as the receiver reads it: float32 ``[n, hidden]``, rounded to its dtype.

    Raises ``ProtocolViolation`` for bytes that are no whole rows, or scales that the codec never writes.
    """
    count = len(rows) // form.row_bytes
    tensor: Buffer = rows
    if form.codec != "raw" and len(rows) == count * form.row_bytes:
        table = np.frombuffer(rows, np.uint8).reshape(count, form.row_bytes)
        scale_bytes = form.row_bytes - form.hidden
        tensor = table[:, :scale_bytes].tobytes() + table[:, scale_bytes:].tobytes()
    raw = decode_tensor(tensor, form.codec, form.dtype, count, form.hidden)
    return to_float32(raw, form.dtype).reshape(count, form.hidden)
