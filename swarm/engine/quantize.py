"""int8 and nf4 weights through bitsandbytes: the linear layers of a span, never embeddings, norms or the head.

A mixture-of-experts family keeps its experts in stacked parameters that are no linear layers; they stay in the span's
dtype.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import torch
from torch import nn

from swarm.core.errors import ConfigError
from swarm.core.numerics import QUANTIZATIONS

OUTLIER = 6.0
"""int8: input channels with a value beyond this are computed in 16 bit (LLM.int8(), Dettmers et al. 2022)."""


def check_quantization(quantization: str, device: torch.device) -> None:
    """Raise ``ConfigError`` unless ``quantization`` is known and works on ``device`` with what is installed.

    The check is a real one: a small layer is quantized there and applied.
    """
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"unknown quantization {quantization!r}", hint=f"choose one of {', '.join(QUANTIZATIONS)}")
    if quantization == "none":
        return
    probe = nn.Linear(64, 64, bias=False, device=device)
    try:
        with torch.no_grad():
            output = quantized_linear(probe, quantization)(torch.ones(1, 64, device=device))
        works = bool(torch.isfinite(output).all())
    except (ImportError, RuntimeError, NotImplementedError, ValueError, OSError, AttributeError) as error:
        raise ConfigError(
            f"bitsandbytes cannot do {quantization} on {device}: {error}", hint="use --quantization none"
        ) from error
    if not works:
        raise ConfigError(f"bitsandbytes computes nonsense in {quantization} on {device}", hint="use none")


def quantize_linears(module: nn.Module, quantization: str) -> None:
    """Replace every ``nn.Linear`` below ``module`` by its quantized form, in place, one at a time.

    The full-precision weight of each is freed before the next is touched. Subclasses of ``nn.Linear`` (routers with
    their own forward, layers already quantized) are left alone. Nothing happens for ``none``.
    """
    if quantization == "none":
        return
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, quantized_linear(child, quantization))
    _return_freed_memory()


def _return_freed_memory() -> None:
    """Ask glibc to give freed pages back: quantizing frees blocks between kept ones, which else stay resident."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in musl
        if trim is not None:
            trim(0)


def quantized_linear(linear: nn.Linear, quantization: str) -> nn.Module:
    """One linear layer in int8 (LLM.int8 row-wise) or nf4 (blocks of 64), computing in the layer's own dtype.

    linear.weight: [out, in] -> int8 [out, in] with a scale per row, or nf4 packed two to a byte.
    """
    import bitsandbytes as bnb

    weight, bias = linear.weight.data, linear.bias
    shape: dict[str, Any] = {"bias": bias is not None, "device": "meta"}
    if quantization == "int8":
        layer = bnb.nn.Linear8bitLt(
            linear.in_features, linear.out_features, has_fp16_weights=False, threshold=OUTLIER, **shape
        )
        layer.weight = bnb.nn.Int8Params(weight.cpu(), requires_grad=False, has_fp16_weights=False)
    else:
        layer = bnb.nn.Linear4bit(
            linear.in_features, linear.out_features, compute_dtype=weight.dtype, quant_type="nf4", **shape
        )
        layer.weight = bnb.nn.Params4bit(
            weight.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=False, module=layer
        )
    if bias is not None:
        layer.bias = nn.Parameter(bias.data, requires_grad=False)
    quantized: nn.Module = layer.to(weight.device).eval()
    return quantized


def held_bytes(module: nn.Module) -> int:
    """Bytes of memory that parameters, buffers and quantization scales of ``module`` take; shared ones count once.

    What is offloaded to the CPU, and so on meta here, counts with the size it will have.
    """
    tensors: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    for parameter in module.parameters():
        state = getattr(parameter, "quant_state", None)
        scales = getattr(state, "absmax", None), getattr(parameter, "SCB", None)
        tensors += [scale for scale in scales if isinstance(scale, torch.Tensor)]
    storages = ((tensor, tensor.untyped_storage()) for tensor in tensors)
    return sum({storage.data_ptr() or id(tensor): storage.nbytes() for tensor, storage in storages}.values())
