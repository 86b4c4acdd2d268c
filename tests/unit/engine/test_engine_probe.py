"""What the probe reads off a family: windows from its masks, and what spans cannot serve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import DeepseekV2Config, DiffLlamaConfig, OlmoConfig, PhimoeConfig
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    blockwise_overlay,
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from swarm.core.errors import UnsupportedFamilyError
from swarm.core.spans import Span
from swarm.engine.family import build_span
from swarm.engine.probe import NOT_SERVED, window_of


@pytest.mark.parametrize("longest", [10, 128, 4096])
def test_causal_has_no_window(longest) -> None:
    assert window_of(causal_mask_function, longest) == 0


@pytest.mark.parametrize("window", [1, 2, 6, 64, 127])
def test_sliding_windows(window) -> None:
    assert window_of(sliding_window_causal_mask_function(window), 128) == window


def test_a_window_wider_than_the_context_is_none() -> None:
    assert window_of(sliding_window_causal_mask_function(500), 128) == 0


def test_other_patterns_are_not_served() -> None:
    blocks = torch.zeros((1, 200), dtype=torch.long)
    patterns = {
        "two-way": bidirectional_mask_function,
        "chunked": chunked_causal_mask_function(16, torch.zeros(1, dtype=torch.long)),
        "blocks": or_masks(causal_mask_function, blockwise_overlay(blocks)),
        "hole": and_masks(causal_mask_function, lambda _b, _h, _q, k: k != 5),
        "nothing": lambda _b, _h, _q, k: k < 0,
        "strange": lambda: torch.tensor(True),
    }
    assert {name: window_of(pattern, 128) for name, pattern in patterns.items()} == dict.fromkeys(patterns, NOT_SERVED)


def _matches(kit, config) -> None:
    chain = kit.chain(config)
    ids = kit.tokens(20)
    session = chain.open()
    got = np.concatenate([chain.step([(session, ids[a:b], 20)])[0] for a, b in ((0, 11), (11, 12), (12, 20))])
    wanted = chain.reference(ids)
    assert float(np.abs(got - wanted).max()) <= 1e-5 * max(1.0, float(np.abs(wanted).max()))


def test_a_window_made_by_mask_alone(kit) -> None:
    """PhiMoE tells its attention nothing of the window, and has no list of layer types."""
    config = PhimoeConfig(**kit.base, sliding_window=6, num_local_experts=4, num_experts_per_tok=2)
    model = build_span(config, Span(0, 2), embeddings=False, head=False)
    assert [shape.window for shape in model.shapes] == [6, 6]
    _matches(kit, config)


def test_a_norm_without_weights(kit) -> None:
    _matches(kit, OlmoConfig(**kit.base))


def test_complex_rotary_tables(kit) -> None:
    mla = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 10}
    moe = {"n_routed_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
    _matches(kit, DeepseekV2Config(**(kit.base | {"num_key_value_heads": 4}), **mla, **moe, n_group=1, topk_group=1))


def test_layers_that_attend_twice_are_refused(kit) -> None:
    with pytest.raises(UnsupportedFamilyError, match=r"diffllama.*attends 2 times"):
        build_span(DiffLlamaConfig(**kit.base), Span(0, 2), embeddings=False, head=False)
