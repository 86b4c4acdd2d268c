"""Linear layers on the CPU through oneDNN, their weights laid out for few rows.

A decode step multiplies one to eight rows by every weight and could run at the speed of memory. torch's ``F.linear``
hands float32 to a BLAS whose products of few rows reach half of that. Measured on one core, float32 weights of
1536 x 576 and the like, in GB/s of weights read, ``F.linear`` → this: 1 row 12 → 17, 3 rows 7 → 17, 8 rows 8 → 13;
bfloat16 9 → 24, 8 → 18, 7 → 14.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

PACK_ROWS_HINT = 8
FULL_SPEED_ROWS = 4
"""Fewer rows than this cost as much in float32 as this many, so the executor pads up to it."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far the packed product may lie from the plain one, relative to its largest value, to be trusted."""


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in oneDNN's own layout. ``weight`` keeps shape and dtype, without memory."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACK_ROWS_HINT)
        self._multiply: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self.weight = nn.Parameter(torch.empty_like(linear.weight, device="meta"), requires_grad=False)
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` → ``[..., out_features]``."""
        return self._multiply(rows, self._packed, self.bias, "none", [], "")


class DirectLinear(nn.Module):
    """A linear layer through oneDNN on its weight as it is, for a weight that others read too (a tied head)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._multiply: Callable[..., torch.Tensor] = torch.ops.mkldnn._linear_pointwise.default
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """``[..., in_features]`` → ``[..., out_features]``."""
        return self._multiply(rows, self.weight, self.bias, "none", [], "")


def speed_up_linears(root: nn.Module, *, pack: bool) -> int:
    """Replace every plain CPU linear layer under ``root`` that comes out right; return how many were.

    A layer is left alone if it is a subclass (quantized, say), carries hooks, is too small to matter, or if oneDNN is
    missing or answers with anything but the plain product. ``pack`` lays weights out anew, one at a time, giving the
    old memory back; without it they stay where they are.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0
    replaced = 0
    # Names, not modules: a list of modules would keep every old weight alive until the last one is packed.
    for path in [name for name, module in root.named_modules() if type(module) is nn.Linear]:
        parent, _, name = path.rpartition(".")
        linear = root.get_submodule(path)
        if name and isinstance(linear, nn.Linear) and _suitable(linear):
            faster = _checked(linear, PackedLinear if pack else DirectLinear)
            if faster is not None:
                setattr(root.get_submodule(parent), name, faster)
                replaced += 1
    return replaced


def _suitable(linear: nn.Linear) -> bool:
    weight = linear.weight
    hooked = hasattr(linear, "_hf_hook") or linear._forward_hooks or linear._forward_pre_hooks
    return weight.device.type == "cpu" and weight.dtype in TOLERANCE and weight.is_contiguous() and not hooked


def _checked(linear: nn.Linear, kind: type[Any]) -> nn.Module | None:
    """The faster layer, if its product of three test rows is the plain layer's."""
    width = linear.in_features
    rows = torch.linspace(-1.0, 1.0, 3 * width).reshape(3, width).to(linear.weight.dtype)
    try:
        with torch.inference_mode():
            faster: nn.Module = kind(linear)
            wanted, got = linear(rows).float(), faster(rows).float()
    except (RuntimeError, NotImplementedError, AttributeError):
        return None
    # Written so that a NaN counts as wrong.
    right = (got - wanted).abs().max() <= TOLERANCE[linear.weight.dtype] * wanted.abs().max().clamp(min=1e-3)
    return faster if bool(right) else None
