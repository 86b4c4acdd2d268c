"""Ragged attention: one function, registered with transformers, that walks the sessions of a packed sequence.

No mask function is registered under this name, and transformers then builds no mask: causality, windows and session
borders are kept here. Shapes: T packed rows, H query heads, K key/value heads, G = H / K, L keys seen, D key size,
E value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from swarm.engine.batch import RaggedState, Segment
from swarm.engine.kv import layer_buffers

NAME = "swarm_ragged"


def register() -> None:
    """Make the function known to transformers, whose registry is process-wide. Idempotent."""
    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(NAME, ragged_attention)


def ragged_attention(  # noqa: PLR0913 - the signature is transformers'
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_others: object,
) -> tuple[torch.Tensor, None]:
    """Append each session's keys and values to its KV and attend within it.

    ``query`` ``[1, H, T, D]``, ``key`` ``[1, K, T, D]``, ``value`` ``[1, K, T, E]``; returns ``[1, T, H, E]``. No mask
    comes in and none is needed; windows were learnt when the span was built. That a family passes nothing else of
    consequence was checked then, too.
    """
    state: RaggedState = module.ragged  # type: ignore[assignment]
    index: int = module.layer_idx  # type: ignore[assignment]
    window = state.windows[index]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch = state.current()
    parts = []
    for segment in batch.segments:
        keys, values = layer_buffers(segment.layers, index, segment.capacity, (key, value))
        past, start, end, length = segment.past, segment.start, segment.end, segment.length
        keys[:, past:length] = key[0, :, start:end]
        values[:, past:length] = value[0, :, start:end]
        low = max(0, past + 1 - window) if window else 0
        q, k, v = query[0, :, start:end], keys[:, low:length], values[:, low:length]
        if softcap is not None or s_aux is not None:
            mask = _mask(segment, window, low, query.device)
            parts.append(_explicit(q, k, v, mask, scale, softcap=softcap, sinks=s_aux))
        elif past == 0 and not 0 < window < length:
            parts.append(_from_the_start(q, k, v, scale))
        else:
            parts.append(_fast(q, k, v, _mask(segment, window, low, query.device), scale))
    return batch.pad(parts, dim=1).transpose(0, 1).unsqueeze(0).contiguous(), None


def _mask(segment: Segment, window: int, low: int, device: torch.device) -> torch.Tensor | None:
    """Boolean ``[rows, L]``, true where a row may look; None if one row may look at everything from ``low`` on."""
    if segment.rows == 1:
        return None
    place = (window, low, device)
    if place not in segment.masks:
        rows = torch.arange(segment.past, segment.length, device=device)[:, None]
        columns = torch.arange(low, segment.length, device=device)[None, :]
        # A tree of drafts would replace this comparison by its ancestor relation.
        visible = columns <= rows
        if window:
            visible &= columns > rows - window
        segment.masks[place] = visible
    return segment.masks[place]


def _from_the_start(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Fused attention of rows that have no past: kernels skip what causality hides. Shapes as for ``_fast``."""
    out = F.scaled_dot_product_attention(
        query[None], key[None], value[None], is_causal=True, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
    )
    return out[0]


def _fast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Fused attention. ``query`` ``[H, rows, D]``, ``key`` ``[K, L, D]``, ``value`` ``[K, L, E]`` → ``[H, rows, E]``.

    The G query heads of one key head become further query rows: no key is copied, and a single row needs no mask.
    """
    heads, rows, size = query.shape
    kv_heads = key.shape[0]
    group = heads // kv_heads
    folded = query.reshape(1, kv_heads, group * rows, size)
    if mask is not None and group > 1:
        mask = mask.repeat(group, 1)
    out = F.scaled_dot_product_attention(folded, key[None], value[None], attn_mask=mask, scale=scale)
    return out.reshape(heads, rows, value.shape[2])


def _explicit(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    *,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention written out, for a soft cap (Gemma 2: ``c·tanh(s/c)``) or sinks (gpt-oss: a logit without a value)."""
    heads, rows, size = query.shape
    kv_heads = key.shape[0]
    folded = query.reshape(kv_heads, -1, rows, size)  # [K, G, rows, D]
    scores = torch.matmul(folded, key[:, None].transpose(2, 3)) * scale  # [K, G, rows, L]
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.float()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.float().reshape(kv_heads, -1, 1, 1).expand(-1, -1, rows, 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=3), dim=3)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=3)
    out = torch.matmul(weights.to(value.dtype), value[:, None])  # [K, G, rows, E]
    return out.reshape(heads, rows, value.shape[2])
