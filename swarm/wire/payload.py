"""The payload of a step or a replay: token ids first if the step says so, then the tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from swarm.core.errors import ProtocolViolation
from swarm.core.limits import MAX_VOCABULARY
from swarm.wire.messages import Replay, Step
from swarm.wire.tensors import Buffer

ID_BYTES = 4

Ids = npt.NDArray[np.int64]


def pack_ids(token_ids: Sequence[int] | Ids) -> bytes:
    """``[rows]`` token ids as little-endian uint32."""
    return np.asarray(token_ids, dtype="<u4").tobytes()


def split_payload(step: Step | Replay, payload: Buffer) -> tuple[Ids | None, Buffer]:
    """``(ids [rows] or None, tensor bytes)``; ``ProtocolViolation`` if the ids are cut or out of any vocabulary.

    The tensor's size depends on codec and hidden size and is checked by ``decode_tensor``.
    """
    if not step.ids:
        return None, payload
    size = ID_BYTES * step.rows
    if len(payload) < size:
        raise ProtocolViolation(f"payload of {len(payload)} bytes cannot hold {step.rows} token ids")
    view = memoryview(payload)
    ids = np.frombuffer(view[:size], "<u4").astype(np.int64)
    if int(ids.max()) >= MAX_VOCABULARY:
        raise ProtocolViolation("token id outside any vocabulary")
    return ids, view[size:]
