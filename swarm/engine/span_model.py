"""The modules of one span, and how their parameters are called in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from swarm.core.limits import MAX_CONTEXT_TOKENS
from swarm.core.spans import Span
from swarm.engine.batch import LayerShape, RaggedState


@dataclass(frozen=True)
class Parts:
    """Where a family keeps what: names of children of the base model (``prefix``), and the head's name beside it."""

    prefix: str
    layers: str
    embeddings: str
    norm: str | None
    head: str
    tied: bool


class SpanModel(nn.Module):
    """A span's layers (``body``), embeddings (``embed``) and norm with LM head (``head``); each may be None.

    Fresh from ``build_span`` its parameters are on meta and its non-persistent buffers (rotary frequencies, embedding
    scales) are real float32 on the CPU: fill every name of ``checkpoint_tensors()``, call ``retie()``, move buffers to
    the device if need be, and never cast the non-persistent ones.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        span: Span | None,
        parts: Parts,
        state: RaggedState,
        shapes: list[LayerShape],
        modules: tuple[nn.Module | None, nn.Module | None, nn.Module | None],
    ) -> None:
        super().__init__()
        self.config = config
        self.span = span
        self.parts = parts
        self.state = state
        self.shapes = shapes
        self.body, self.embed, self.head = modules
        self.retie()

    def retie(self) -> None:
        """Let a tied head share the embeddings' parameter, where this span holds both. Call after filling."""
        if self.parts.tied and self.embed is not None and self.head is not None:
            self.head.get_submodule(self.parts.head).weight = self.embed.weight

    def checkpoint_tensors(self) -> dict[str, str]:
        """Every tensor that has to be filled: parameter or persistent buffer here → its name in the checkpoint.

        Where head and embeddings are one shared parameter it is listed once, under ``embed``.
        """
        names = {name: self.checkpoint_name(name) for name in self.state_dict(keep_vars=True)}
        if self.parts.tied and self.embed is not None:
            names.pop(f"head.{self.parts.head}.weight", None)
        return names

    def checkpoint_name(self, name: str) -> str:
        """The checkpoint's name of one of our parameters, in the layout of the family's current transformers class.

        A layer's index is shifted by the span's start; a tied head reads the embeddings.
        """
        part, _, rest = name.partition(".")
        parts = self.parts
        if part == "embed":
            return f"{parts.prefix}.{parts.embeddings}.{rest}"
        if part == "head":
            if parts.tied and rest == f"{parts.head}.weight":
                return f"{parts.prefix}.{parts.embeddings}.weight"
            return rest
        stack, _, inner = rest.partition(".")
        if stack != parts.layers or self.span is None:
            return f"{parts.prefix}.{rest}"
        index, _, tail = inner.partition(".")
        return f"{parts.prefix}.{stack}.{int(index) + self.span.start}.{tail}"

    def parameter_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype to hold a tensor in when the model runs in ``dtype``: some families keep parts in float32."""
        keep: set[str] = set()
        for module in (self.body, self.head):
            if module is not None and dtype in (torch.float16, torch.bfloat16):
                keep |= set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
                if dtype == torch.float16:
                    keep |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
        return torch.float32 if any(f".{part}." in f".{name}." for part in keep) else dtype

    @property
    def context_tokens(self) -> int:
        """How many tokens of context the model was made for, ``dynamic`` rotary scaling included."""
        config: Any = self.config
        longest = int(getattr(config, "max_position_embeddings", None) or MAX_CONTEXT_TOKENS)
        rope = getattr(config, "rope_parameters", None) or {}
        if "dynamic" in str(rope.get("rope_type", "")):
            longest = int(longest * float(rope.get("factor") or 1.0))
        return min(longest, MAX_CONTEXT_TOKENS)

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values one token takes over all layers of the span."""
        return sum(s.kv_heads * (s.key_size + s.value_size) for s in self.shapes) * dtype.itemsize
