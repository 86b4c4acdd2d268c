"""Shorter calls: take off transformers' bookkeeping decorators, which cost more than a small layer's arithmetic."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import nn

BOOKKEEPING = frozenset({
    "transformers.utils.deprecation",
    "transformers.utils.generic",
    "transformers.utils.output_capturing",
    "transformers.modeling_layers",
})  # fmt: skip
"""Modules whose decorators rename old arguments, fill defaults, record outputs or checkpoint: none of it is used here,
since the executor passes every argument by its present name. A decorator from anywhere else stays."""


def peel_forwards(root: nn.Module) -> None:
    """Give every module under ``root`` its forward without the bookkeeping decorators, as an instance attribute."""
    for module in root.modules():
        forward = _peeled(type(module).forward)
        if forward is not type(module).forward and "forward" not in vars(module):
            module.forward = types.MethodType(forward, module)


def _peeled(function: Callable[..., Any]) -> Callable[..., Any]:
    while hasattr(function, "__wrapped__") and function.__globals__.get("__name__") in BOOKKEEPING:
        function = function.__wrapped__
    return function
