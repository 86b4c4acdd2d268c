"""What goes into the executor and what comes out, and the check every piece of work passes before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swarm.core.errors import ProtocolViolation
from swarm.core.numerics import DTYPE_BYTES
from swarm.core.spans import Span
from swarm.engine.kv import KVSlot


@dataclass(frozen=True)
class SpanInfo:
    """What a span is and costs.

    ``kv_bytes_per_token`` counts all its layers, ``memory_bytes`` weights, buffers and quantization scales.
    """

    span: Span
    layer_count: int
    hidden_size: int
    vocab_size: int
    context_tokens: int
    dtype: str
    quantization: str
    embeddings: bool
    head: bool
    device: str
    memory_bytes: int
    kv_bytes_per_token: int


@dataclass
class Work:
    """One session's rows for one packed forward.

    ``keep`` rows of ``slot`` are kept and the rest forgotten before the ``rows`` new ones are appended. The rows come
    either as ``hidden``, ``[rows, hidden_size]`` raw in the span's dtype and little endian, or as ``token_ids``, int64
    ``[rows]``, to be embedded. ``horizon`` is the length in tokens of the prompt these rows belong to; 0 stands for
    ``keep + rows``. It chooses the rotary table of models whose table depends on the length: position ``t`` uses the
    table for ``max(t + 1, horizon)`` tokens, so one and the same prompt gives the same rows however it is chunked.
    ``want`` trailing rows come back, as float32 logits if ``logits``, else as raw hidden rows. ``span`` runs only
    those of the engine's layers (None: all); every work of one slot must name the same. With ``record`` all hidden
    rows come back, beside logits too, and what token ids were embedded into: receipts speak of every row.
    """

    slot: KVSlot
    keep: int
    hidden: bytes | memoryview | None
    token_ids: npt.NDArray[np.int64] | None
    rows: int
    horizon: int = 0
    want: int = 0
    logits: bool = False
    span: Span | None = None
    record: bool = False


@dataclass
class Output:
    """What came out of one work: ``hidden`` raw ``[want, hidden_size]``, or ``logits`` float32 ``[want, vocab]``.

    Where the work said ``record``, ``hidden`` is ``[rows, hidden_size]``, logits or not, and ``embedded`` the raw rows
    that its token ids became.
    """

    hidden: bytes | None
    logits: npt.NDArray[np.float32] | None
    embedded: bytes | None = None


def check_batch(batch: Sequence[Work], info: SpanInfo) -> None:
    """Raise ``ProtocolViolation`` if any work is impossible; then nothing of the batch has been computed."""
    seen: set[int] = set()
    for work in batch:
        if id(work.slot) in seen:
            raise ProtocolViolation("two steps of one session in one batch")
        seen.add(id(work.slot))
        _check_place(work, info)
        _check_content(work, info)


def _check_place(work: Work, info: SpanInfo) -> None:
    slot, keep, rows = work.slot, work.keep, work.rows
    if slot.closed:
        raise ProtocolViolation("a step for a session that is closed")
    if not 0 <= keep <= slot.length:
        raise ProtocolViolation(f"keep {keep} rows of a session that holds {slot.length}")
    if rows < 1 or not 0 <= work.want <= rows:
        raise ProtocolViolation(f"a step of {rows} rows that wants {work.want} back")
    if keep + rows > slot.capacity:
        raise ProtocolViolation(
            f"{keep} + {rows} rows overflow the {slot.capacity} tokens reserved at open",
            hint="open the session with more KV tokens",
        )
    if not 0 <= work.horizon <= info.context_tokens:
        raise ProtocolViolation(f"horizon {work.horizon} of a model with {info.context_tokens} tokens of context")


def _check_content(work: Work, info: SpanInfo) -> None:
    if (work.hidden is None) == (work.token_ids is None):
        raise ProtocolViolation("a step carries either hidden rows or token ids")
    span = work.span or info.span
    if not info.span.covers(span):
        raise ProtocolViolation(f"layers {span} asked of a span of {info.span}")
    if work.logits and not (info.head and span.end == info.layer_count):
        raise ProtocolViolation("logits asked of a span without the head")
    if work.hidden is not None:
        size = work.hidden.nbytes if isinstance(work.hidden, memoryview) else len(work.hidden)
        expected = work.rows * info.hidden_size * DTYPE_BYTES[info.dtype]
        if size != expected:
            raise ProtocolViolation(f"{work.rows} hidden rows take {expected} bytes, not {size}")
    if work.token_ids is not None:
        if not info.embeddings or span.start != 0:
            raise ProtocolViolation("token ids sent to a span without the embeddings")
        check_token_ids(work.token_ids, work.rows, info.vocab_size)


def check_token_ids(token_ids: npt.NDArray[np.int64], rows: int, vocab_size: int) -> None:
    """Raise ``ProtocolViolation`` unless these are ``rows`` integers in ``[0, vocab_size)``."""
    if token_ids.shape != (rows,) or token_ids.dtype.kind not in "iu":
        raise ProtocolViolation(f"{rows} rows carry token ids of shape {token_ids.shape}, {token_ids.dtype}")
    if rows and (int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size):
        raise ProtocolViolation(f"a token id outside the vocabulary of {vocab_size}")
