"""Embeddings and LM head: the family's own modules, on a span or kept by a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from swarm.core.errors import ConfigError, ProtocolViolation
from swarm.core.numerics import DTYPE_BYTES
from swarm.engine.linear import speed_up_linears
from swarm.engine.rows import rows_from_bytes, rows_to_bytes
from swarm.engine.span_model import SpanModel
from swarm.engine.work import check_token_ids


def embed_rows(model: SpanModel, token_ids: npt.NDArray[np.int64]) -> torch.Tensor:
    """``[n]`` token ids → ``[n, hidden_size]`` through the family's embedding, its scale included."""
    if model.embed is None:
        raise ConfigError("this span holds no embeddings")
    ids = torch.tensor(token_ids, dtype=torch.int64, device=next(model.embed.parameters()).device)
    rows: torch.Tensor = model.embed(ids)
    return rows


def head_logits(model: SpanModel, rows: torch.Tensor) -> npt.NDArray[np.float32]:
    """``[n, hidden_size]`` → float32 ``[n, vocab_size]``.

    The family's causal-LM forward without layers: final norm, LM head, and its own scaling or soft cap of the logits.
    """
    if model.head is None:
        raise ConfigError("this span holds no head")
    rows = rows.to(next(model.head.parameters()).device)
    positions = torch.arange(rows.shape[0], device=rows.device)[None]
    logits: torch.Tensor = model.head(inputs_embeds=rows[None], position_ids=positions, use_cache=False).logits
    return logits[0].float().cpu().numpy()


class HeadEngine:
    """Embeddings and head without layers, for a client that samples itself. One thread at a time."""

    def __init__(self, model: SpanModel, *, dtype: str = "float32") -> None:
        if model.embed is None or model.head is None:
            raise ConfigError("a local head needs embeddings, norm and LM head")
        if dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype {dtype!r}", hint=f"choose one of {', '.join(DTYPE_BYTES)}")
        self._model = model
        self.embeddings = model.embed
        """Token ids → rows."""
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.hidden_size = int(model.config.hidden_size)
        self.vocab_size = int(model.config.vocab_size)
        speed_up_linears(model.head, pack=False)

    @property
    def lm_head(self) -> torch.nn.Module | None:
        """Normalized rows → logits; None if the family has several modules for it."""
        head: Any = self._model.head
        found: torch.nn.Module | None = head.get_output_embeddings()
        return found

    def embed(self, token_ids: Sequence[int]) -> bytes:
        """Raw ``[n, hidden_size]`` rows for the wire; ``ProtocolViolation`` for an id outside the vocabulary."""
        ids = np.asarray(token_ids, dtype=np.int64).reshape(-1)
        check_token_ids(ids, len(ids), self.vocab_size)
        with torch.inference_mode():
            return rows_to_bytes(embed_rows(self._model, ids).to(self._dtype))

    def logits(self, hidden: bytes | memoryview) -> npt.NDArray[np.float32]:
        """Raw ``[n, hidden_size]`` rows of the last layer → float32 ``[n, vocab_size]``."""
        size = len(hidden) if isinstance(hidden, bytes) else hidden.nbytes
        row_bytes = self.hidden_size * self._dtype.itemsize
        if size == 0 or size % row_bytes:
            raise ProtocolViolation(f"{size} bytes are no whole number of hidden rows of {row_bytes}")
        with torch.inference_mode():
            return head_logits(self._model, rows_from_bytes(hidden, size // row_bytes, self._dtype))
