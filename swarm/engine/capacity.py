"""How many layers of a model fit into this machine, and how fast it should run them, before any weight is read."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import nn

from swarm.core.errors import ConfigError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine.devices import dtype_name, pick_device, pick_dtype
from swarm.engine.family import build_span
from swarm.engine.span_model import SpanModel
from swarm.engine.weights import LoadOptions, WeightFiles, family_config, refuse_quantized_checkpoint

USABLE = 0.8
"""Of the memory that is free now: the rest is for activations, buffers and whatever else runs here."""
KV_CONTEXT_TOKENS = 8192
"""KV tokens that room is kept for unless told otherwise; at most one full context."""
QUANTIZED_BYTES = {"int8": 1.05, "nf4": 0.6}
"""Bytes per element of a quantized linear layer, scales included."""
REACHED = 0.5
"""Of the speed at which a device reads a matrix: what a layer of many small operations reaches, measured on CPUs."""
PROBED_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Room:
    """What fits: at most ``capacity_layers`` (0: none), each taking ``layer_bytes`` of weights (the largest's).

    ``power_layers_per_s`` is a guess: a decode step reads every weight once, and so fast does this device read.
    ``head_layers`` is the LM head's size in layers.
    """

    capacity_layers: int
    layer_bytes: int
    numerics: Numerics
    power_layers_per_s: float
    head_layers: float = 0.0


def room_for(files: WeightFiles, weights: LoadOptions, *, kv_tokens: int | None = None) -> Room:
    """How many layers of the model in ``files`` this machine could hold, embeddings and head included.

    Reads the configuration only, no weights. ``kv_tokens`` is the KV budget wanted. Raises as ``load_span`` does for a
    family or an option that does not work here.
    """
    refuse_quantized_checkpoint(files)
    device, _ = pick_device(weights.device)
    dtype = pick_dtype(weights.dtype, files.config, device)
    config = family_config(files)
    layers = int(config.num_hidden_layers)
    model = build_span(config, Span(0, layers), embeddings=True, head=True)
    layer_bytes = max(_held_bytes(layer, dtype, weights.quantization) for layer in _stack(model))
    ends = [part for part in (model.embed, model.head) if part is not None]
    end_bytes = _elements(ends) * dtype.itemsize
    tokens = kv_tokens or min(KV_CONTEXT_TOKENS, model.context_tokens)
    kv_bytes = tokens * model.kv_bytes_per_token(dtype) // layers
    usable_bytes = free_bytes(device, weights.max_memory) * USABLE
    left_bytes = min(usable_bytes, allowed_bytes(device, weights)) - end_bytes
    return Room(
        capacity_layers=max(0, min(layers, int(left_bytes // max(layer_bytes + kv_bytes, 1)))),
        layer_bytes=layer_bytes,
        numerics=Numerics(dtype_name(dtype), weights.quantization),
        power_layers_per_s=REACHED * read_bytes_per_s(device, dtype) / max(layer_bytes, 1),
        head_layers=_elements(ends[-1:]) * dtype.itemsize / max(layer_bytes, 1),
    )


def check_fits(
    files: WeightFiles, span: Span, weights: LoadOptions, *, ends: tuple[bool, bool], kv_tokens: int
) -> None:
    """Raise ``ConfigError`` if the span's weights and so much KV are more than ``memory_share`` allows.

    ``ends``: whether it holds the embeddings and the head. Reads the configuration only.
    """
    device, _ = pick_device(weights.device)
    dtype = pick_dtype(weights.dtype, files.config, device)
    model = build_span(family_config(files), span, embeddings=ends[0], head=ends[1])
    parts = [part for part in (model.embed, model.head) if part is not None]
    layers_bytes = sum(_held_bytes(layer, dtype, weights.quantization) for layer in _stack(model))
    wanted_bytes = layers_bytes + _elements(parts) * dtype.itemsize + kv_tokens * model.kv_bytes_per_token(dtype)
    allowed = allowed_bytes(device, weights)
    if wanted_bytes > allowed:
        raise ConfigError(
            f"layers {span} and KV for {kv_tokens} tokens take {wanted_bytes / 1e9:.2f} GB, and --memory-share "
            f"{weights.memory_share:g} allows {allowed / 1e9:.2f} GB of this device",
            hint="hold fewer layers, use --quantization, or allow more",
        )


def allowed_bytes(device: torch.device, weights: LoadOptions) -> float:
    """What weights and KV together may take by ``memory_share``; infinite without one."""
    return math.inf if weights.memory_share >= 1 else weights.memory_share * total_bytes(device)


def total_bytes(device: torch.device) -> int:
    """All memory of ``device``, free or not."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def _elements(modules: Sequence[nn.Module]) -> int:
    """Of all parameters; one that is shared counts once."""
    return sum(p.numel() for p in {id(p): p for module in modules for p in module.parameters()}.values())


def free_bytes(device: torch.device, limits: Mapping[int | str, int] | None) -> int:
    """Memory for weights and KV: what ``limits`` allow in all, else what is free on ``device``."""
    if limits:
        return sum(limits.values())
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def read_bytes_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """How fast ``device`` multiplies a matrix by one row, in bytes of the matrix per second. Takes milliseconds."""
    width = 2048
    matrix = torch.ones((PROBED_BYTES // dtype.itemsize // width, width), dtype=dtype, device=device)
    row = torch.ones((1, width), dtype=dtype, device=device)
    took_s = []
    with torch.inference_mode():
        for _ in range(4):
            began_s = time.perf_counter()
            float((row @ matrix.T).sum())  # asks for the value: a GPU must have finished
            took_s.append(time.perf_counter() - began_s)
    return matrix.nbytes / max(min(took_s), 1e-6)


def _stack(model: SpanModel) -> list[nn.Module]:
    return list(getattr(model.body, model.parts.layers))


def _held_bytes(layer: nn.Module, dtype: torch.dtype, quantization: str) -> int:
    """Bytes of one layer's parameters once loaded: only plain linear layers are quantized."""
    linear = {id(p) for part in layer.modules() if type(part) is nn.Linear for p in part.parameters()}
    each = QUANTIZED_BYTES.get(quantization, dtype.itemsize)
    return int(sum(p.numel() * (each if id(p) in linear else dtype.itemsize) for p in layer.parameters()))
