"""A span's own weights, kept to check what servers of it answer: rows in, the right rows out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from swarm.core.errors import ProtocolViolation
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.head import embed_rows, head_logits
from swarm.engine.rows import rows_from_bytes, rows_to_bytes
from swarm.engine.span_model import SpanModel
from swarm.engine.weights import LoadOptions, Progress, WeightFiles, load_span
from swarm.engine.work import SpanInfo, Work, check_token_ids

CHUNK_ROWS = 512
"""Rows of one forward: as many as a server computes at one go."""
LOGIT_ROWS = 32
"""Rows whose logits are made at one time: a window's."""

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRequest:
    """What to load: a span with the ends of the model that are in it, in float32 unless ``weights`` say otherwise.

    A server is judged by a replica with the quantization it declares (``verdict.check_comparable``); dtypes may differ.
    """

    span: Span
    weights: LoadOptions = field(default_factory=lambda: LoadOptions(device="cpu", dtype="float32"))
    threads: int | None = None


class Replica:
    """Weights of ``info.span`` that nobody else has touched. Computes any part of the span. One thread at a time."""

    def __init__(self, model: SpanModel, *, dtype: str, quantization: str) -> None:
        """``model`` is filled, in ``dtype``. Its weights stay as they are: a replica computes many rows at a time."""
        options = EngineOptions(kv_tokens=model.context_tokens, dtype=dtype, quantization=quantization, pack=False)
        self._model = model
        self._engine = SpanEngine(model, options)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.info: SpanInfo = self._engine.info
        self.numerics = Numerics(dtype, quantization)

    @classmethod
    def load(cls, files: WeightFiles, request: ReplicaRequest, progress: Progress) -> Replica:
        """Read the span's weights, embeddings with layer 0, norm and head with the last one. Blocks for as long as
        that takes; raises what ``load_span`` raises."""
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        layers = int(files.config["num_hidden_layers"])
        loaded = load_span(
            files,
            request.span,
            options=request.weights,
            embeddings=request.span.start == 0,
            head=request.span.end == layers,
            progress=progress,
        )
        return cls(loaded.model, dtype=loaded.dtype, quantization=loaded.quantization)

    def outputs(
        self, inputs: Rows | Sequence[int], *, span: Span | None = None, first: int = 0, horizon: int = 0
    ) -> Rows:
        """What the layers of ``span`` (None: all) make of a session's rows from position 0 on.

        ``inputs`` is float32 ``[n, hidden_size]``, or n token ids where the span begins with the embeddings. Returned
        are the rows from ``first`` on, float32 ``[n - first, hidden_size]``, before the norm. Computed as a server
        computes a prompt, in chunks of ``CHUNK_ROWS``; ``horizon`` as in ``Work``, which matters for models whose
        rotary table depends on the text's length. Raises ``ProtocolViolation`` for rows or ids that no server could
        have computed, ``RefusedError`` for more than the model's context.
        """
        count, ids, raw = self._read(inputs)
        slot = self._engine.open(count)
        kept: list[Rows] = []
        row_bytes = self.info.hidden_size * self._dtype.itemsize
        try:
            for start in range(0, count, CHUNK_ROWS):
                end = min(start + CHUNK_ROWS, count)
                work = Work(
                    slot=slot,
                    keep=start,
                    hidden=None if raw is None else raw[start * row_bytes : end * row_bytes],
                    token_ids=None if ids is None else ids[start:end],
                    rows=end - start,
                    horizon=horizon or count,
                    want=max(end - max(start, first), 0),
                    span=span,
                )
                (output,) = self._engine.run([work])
                kept.append(self._floats(output.hidden or b""))
        finally:
            self._engine.close(slot)
        return np.concatenate(kept)

    def embedded(self, token_ids: Sequence[int]) -> Rows:
        """``[n]`` token ids → the rows that layer 0 reads, float32 ``[n, hidden_size]``.

        Raises ``ConfigError`` without the embeddings, ``ProtocolViolation`` for an id outside the vocabulary.
        """
        ids = np.asarray(token_ids, np.int64).reshape(-1)
        check_token_ids(ids, len(ids), self.info.vocab_size)
        with torch.inference_mode():
            rows = embed_rows(self._model, ids).to(self._dtype)
            return np.asarray(rows.float().cpu().numpy())

    def logits(self, finals: Rows) -> Rows:
        """Rows of the last layer ``[n, hidden_size]`` → float32 ``[n, vocab_size]``; ``ConfigError`` without a head."""
        rows = torch.from_numpy(np.ascontiguousarray(finals, np.float32))
        if rows.dim() != 2 or rows.shape[1] != self.info.hidden_size:
            raise ProtocolViolation(f"rows of shape {tuple(rows.shape)} for a head of {self.info.hidden_size}")
        with torch.inference_mode():
            parts = [head_logits(self._model, part.to(self._dtype)) for part in torch.split(rows, LOGIT_ROWS)]
        return np.concatenate(parts)

    def _read(self, inputs: Rows | Sequence[int]) -> tuple[int, npt.NDArray[np.int64] | None, memoryview | None]:
        """How many rows, and the ids or the raw rows that they are."""
        if not isinstance(inputs, np.ndarray):
            ids = np.asarray(inputs, np.int64).reshape(-1)
            return len(ids), ids, None
        rows = torch.from_numpy(np.ascontiguousarray(inputs, np.float32))
        if rows.dim() != 2 or rows.shape[1] != self.info.hidden_size:
            raise ProtocolViolation(f"rows of shape {tuple(rows.shape)} for layers of {self.info.hidden_size}")
        limit = torch.finfo(self._dtype).max
        return len(rows), None, memoryview(rows_to_bytes(rows.clamp(-limit, limit).to(self._dtype)))

    def _floats(self, raw: bytes) -> Rows:
        if not raw:
            return np.zeros((0, self.info.hidden_size), np.float32)
        rows = len(raw) // (self.info.hidden_size * self._dtype.itemsize)
        return np.asarray(rows_from_bytes(raw, rows, self._dtype).float().numpy())
