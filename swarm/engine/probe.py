"""Find out what a family's layers do, by watching its own forward on tensors without memory.

During a probe the model uses another attention implementation, which computes nothing: it notes with what shapes a
layer attends and which mask the family made for it. transformers describes a mask by a function of query and key
index; asking that function tells whether it is causal, how wide its window is, and whether it is anything else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swarm.core.spans import Span
from swarm.engine.batch import LayerShape, RaggedState

NAME = "swarm_probe"
MAX_PROBED_POSITION = 1 << 20
"""Windows wider than this many tokens are not told from full attention."""
NOT_SERVED = -1

HARMLESS = frozenset({
    "dropout", "is_causal", "position_ids", "position_embeddings", "use_cache", "cache", "cache_position", "scaling",
    "sliding_window", "softcap", "s_aux", "output_attentions", "output_hidden_states", "return_dict",
    "output_router_logits",
})  # fmt: skip
"""What families pass to their attention that the ragged attention serves, or that changes nothing in inference. The
window is read off the mask: transformers' own plain attention goes by that alone."""

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Cut = Callable[[PretrainedConfig, Span], None]


class MisfitError(Exception):
    """Why a family cannot be served in spans; never leaves the engine's family module."""


@dataclass(frozen=True)
class Stack:
    """Where a base model keeps its layers and its norm."""

    layers: str
    norm: str | None


def register() -> None:
    """Make the watching functions known to transformers, whose registries are process-wide. Idempotent."""
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _watched_mask)
        ALL_ATTENTION_FUNCTIONS.register(NAME, _watched_attention)


def probe_identity(base: Any, stack: Stack) -> None:
    """Without layers and norm the family's forward must return its input: else only the first span could run it.

    Leaves ``base`` without both. The norm must be called once: a family may also use it on the embeddings.
    """
    norm = _CountedIdentity()
    setattr(base, stack.layers, nn.ModuleList())
    if stack.norm is not None:
        setattr(base, stack.norm, norm)
    width = int(base.config.hidden_size)
    rows = torch.linspace(-1.0, 1.0, 3 * width).reshape(1, 3, width)
    try:
        with torch.inference_mode():
            out = base(inputs_embeds=rows, position_ids=torch.arange(3)[None], use_cache=False)[0]
    except Exception as error:  # whatever a stranger family's code raises, the answer is the same
        raise MisfitError(f"its forward does not run on hidden states: {error}") from error
    if out.shape != rows.shape or not torch.equal(out, rows) or norm.calls != (stack.norm is not None):
        raise MisfitError("its forward changes the hidden states outside its layers")


def probe_layers(base: Any, stack: Stack, layers: list[nn.Module], state: RaggedState, cut: Cut) -> list[LayerShape]:
    """Run each layer alone on meta, at least as far as its attention, and return what each attends with.

    ``cut`` shortens a configuration to a span. Leaves ``base`` without layers. Raises ``MisfitError``.
    """
    own, shapes = base.config, []
    try:
        for index, layer in enumerate(layers):
            base.config = copy.deepcopy(own)
            cut(base.config, Span(index, index + 1))
            setattr(base, stack.layers, nn.ModuleList([layer]))
            state.probe = []
            shapes.append(_probe_layer(base, state.probe))
    finally:
        base.config, state.probe = own, None
        setattr(base, stack.layers, nn.ModuleList())
    return shapes


def _probe_layer(base: Any, seen: list[LayerShape]) -> LayerShape:
    rows = torch.empty((1, 2, int(base.config.hidden_size)), device="meta", dtype=torch.float32)
    positions = torch.arange(2, device="meta")[None]
    try:
        base(inputs_embeds=rows, position_ids=positions, cache=_PassingCache(), use_cache=True)
    except MisfitError:
        raise
    except Exception as error:  # experts, say, look at values, which meta has not: but only after the attention
        if not seen:
            raise MisfitError(f"a layer fails before its attention: {error}") from error
    if len(seen) != 1:
        raise MisfitError(f"a layer attends {len(seen)} times, and a cache keeps one set of keys and values")
    return seen[0]


def _watched_mask(mask_function: MaskFunction, config: PretrainedConfig, **_others: object) -> torch.Tensor:
    """Stands for a mask ``[1, 1, 1, 1]``: carries the window of ``mask_function`` as an attribute."""
    longest = min(int(getattr(config, "max_position_embeddings", None) or 1) + 2, MAX_PROBED_POSITION)
    mask = torch.zeros((1, 1, 1, 1), dtype=torch.bool)
    mask.swarm_window = window_of(mask_function, longest)  # type: ignore[attr-defined]
    return mask


def window_of(mask_function: MaskFunction, longest: int) -> int:
    """0 if rows up to ``longest`` see all rows before them, w if they see the last w, ``NOT_SERVED`` if neither.

    Four query positions are asked for every key position; chunked, block and two-way patterns give themselves away.
    """
    zero, keys = torch.zeros((), dtype=torch.long), torch.arange(longest + 2)
    window = None
    for query in sorted({longest, longest - 1, longest // 2, min(3, longest)}, reverse=True):
        try:
            answer = mask_function(zero, zero, torch.tensor(query), keys)
        except Exception:  # a function of more than indices
            return NOT_SERVED
        visible = torch.broadcast_to(torch.as_tensor(answer), keys.shape)
        width = int(visible.sum())
        if not 1 <= width <= query + 1 or not bool(visible[query + 1 - width : query + 1].all()):
            return NOT_SERVED
        window = width if window is None else window  # of the last query, the widest there is
        if width != min(window, query + 1):
            return NOT_SERVED
    return 0 if window is None or window > longest else window


def _watched_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Note what the layer attends with; the answer ``[1, T, H, E]`` is memory nobody reads."""
    unknown = sorted(name for name, given in others.items() if given is not None and name not in HARMLESS)
    if unknown:
        raise MisfitError(f"its attention wants {', '.join(unknown)}")
    window = getattr(attention_mask, "swarm_window", None)
    if window is None:
        raise MisfitError("it makes attention masks of its own")
    if window == NOT_SERVED:
        raise MisfitError("its attention mask is neither causal nor a sliding window")
    state: Any = module.ragged
    state.probe.append(LayerShape(key.shape[1], key.shape[3], value.shape[3], window))
    return query.new_empty((1, query.shape[2], query.shape[1], value.shape[3])), None


class _PassingCache:
    """An empty cache that keeps nothing; with one given, transformers does not look for packed sequences."""

    is_sliding: tuple[bool, ...] = ()
    is_compileable = False

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, ...]:
        return key, value

    def get_seq_length(self, *_: object) -> int:
        return 0

    def get_query_offset(self, *_: object) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: object) -> tuple[int, int]:
        return query_length, 0


class _CountedIdentity(nn.Module):
    """A norm that does nothing but count."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return rows
