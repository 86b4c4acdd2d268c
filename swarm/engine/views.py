"""Part of a span as a module of its own: the same layers and weights, a shorter stack."""

from __future__ import annotations

import copy
import types
from typing import Any

from torch import nn

from swarm.core.spans import Span
from swarm.engine.family import cut_config
from swarm.engine.span_model import SpanModel


class Views:
    """The body of a span, cut to any span inside it. Cuts are made once and share every weight with the whole."""

    def __init__(self, model: SpanModel) -> None:
        self._model = model
        self._made: dict[Span, nn.Module] = {}

    def body(self, span: Span | None) -> nn.Module:
        """The stack of layers of ``span``, None for all of them; it must lie inside the model's own."""
        body, whole = self._model.body, self._model.span
        if body is None or whole is None:
            raise ValueError("a model without layers has no views")
        if span is None or span == whole:
            return body
        if span not in self._made:
            self._made[span] = self._cut(body, Span(span.start - whole.start, span.end - whole.start))
        return self._made[span]

    def _cut(self, body: Any, local: Span) -> nn.Module:
        """A shallow copy of ``body`` whose stack and per-layer configuration hold only the ``local`` layers.

        Layers keep their index in the whole span, which is where their KV lies.
        """
        view = copy.copy(body)
        vars(view)["_modules"] = dict(body._modules)
        stack = self._model.parts.layers
        view._modules[stack] = nn.ModuleList(list(getattr(body, stack))[local.start : local.end])
        vars(view)["config"] = copy.deepcopy(body.config)
        cut_config(view.config, local)
        if "forward" in vars(body):  # bound to the whole body by peel_forwards
            vars(view)["forward"] = types.MethodType(body.forward.__func__, view)
        return view  # type: ignore[no-any-return]
