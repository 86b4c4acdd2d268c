"""From a model's files to a running engine, told in plain words: the one door for rooms that do not know torch."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.engine.capacity import allowed_bytes, check_fits
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.quantize import held_bytes
from swarm.engine.weights import LoadedSpan, LoadOptions, Progress, WeightFiles, load_span

KV_SHARE = 0.25
"""Of the memory still free after the weights are loaded, what the KV budget takes unless told otherwise."""
KV_CONTEXTS = 16
"""The default budget never exceeds this many full contexts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRequest:
    """What to load and how. ``kv_tokens`` None sizes the budget by free memory, ``threads`` None is torch's choice."""

    span: Span
    embeddings: bool
    head: bool
    weights: LoadOptions
    kv_tokens: int | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class OpenedSpan:
    """A running engine, and what its owner should be told loudly (empty if nothing); every device it computes on."""

    engine: SpanEngine
    note: str
    devices: tuple[str, ...]


def open_span(files: WeightFiles, request: SpanRequest, progress: Progress) -> OpenedSpan:
    """Load a span and start its engine. Blocks; raises what ``load_span`` raises."""
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    if request.weights.memory_share < 1:
        ends = request.embeddings, request.head
        check_fits(files, request.span, request.weights, ends=ends, kv_tokens=request.kv_tokens or 1)
    loaded = load_span(
        files,
        request.span,
        options=request.weights,
        embeddings=request.embeddings,
        head=request.head,
        progress=progress,
    )
    kv_tokens = request.kv_tokens if request.kv_tokens is not None else _default_kv_tokens(loaded, request.weights)
    options = EngineOptions(kv_tokens=kv_tokens, dtype=loaded.dtype, quantization=loaded.quantization)
    devices = tuple(sorted(set(loaded.devices.values()))) or (loaded.device,)
    return OpenedSpan(SpanEngine(loaded.model, options), loaded.note, devices)


def _default_kv_tokens(loaded: LoadedSpan, weights: LoadOptions) -> int:
    cuda = loaded.device.startswith("cuda")
    free_bytes = torch.cuda.mem_get_info(loaded.device)[0] if cuda else psutil.virtual_memory().available
    token_bytes = loaded.model.kv_bytes_per_token(getattr(torch, loaded.dtype))
    left_bytes = allowed_bytes(torch.device(loaded.device), weights) - held_bytes(loaded.model)
    tokens = int(max(0, min(KV_SHARE * free_bytes, left_bytes)) / max(token_bytes, 1))
    if tokens < 1:
        raise ConfigError("no memory is left for a KV cache", hint="serve fewer blocks")
    return min(tokens, KV_CONTEXTS * loaded.model.context_tokens)
