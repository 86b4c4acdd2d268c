"""What one decode step puts on a link: the frame that servers send, encoded with counters as long as they get."""

from __future__ import annotations

from swarm.core.numerics import DTYPE_BYTES
from swarm.models.files import ModelFiles
from swarm.wire.frames import encode_head
from swarm.wire.messages import Step
from swarm.wire.payload import ID_BYTES


def decode_step_bytes(files: ModelFiles, dtype: str = "float32") -> dict[str, float]:
    """Bytes of a decode step between two servers, remote head: over the bare row, and what is not the row."""
    row = files.hidden_size * DTYPE_BYTES[dtype]
    late = Step(generation=2**16, epoch=2**16, seq=2**16, keep=2**20, rows=1, want=1, ids=True)
    overhead = len(encode_head(late, ID_BYTES + row)) + ID_BYTES
    return {
        "wire_step_bytes": float(row + overhead),
        "wire_step_ratio": (row + overhead) / row,
        "wire_step_overhead_bytes": float(overhead),
    }
