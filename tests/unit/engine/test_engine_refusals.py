"""Families that cannot be cut are refused by name, with the reason."""

from __future__ import annotations

import pytest
from transformers import (
    BambaConfig,
    BertConfig,
    BloomConfig,
    Gemma3Config,
    GPT2Config,
    GraniteConfig,
    JambaConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    OPTConfig,
    Qwen3NextConfig,
    T5Config,
    ViTConfig,
)

from swarm.core.errors import ConfigError, UnsupportedFamilyError
from swarm.core.spans import Span
from swarm.engine.family import build_head, build_span

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
KV = {"num_key_value_heads": 2, "intermediate_size": 48}

REFUSED = {
    "mamba": (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=4), "recurrent state"),
    "mamba2": (
        Mamba2Config(vocab_size=64, hidden_size=32, num_hidden_layers=4, num_heads=8, head_dim=8),
        "recurrent state",
    ),
    "jamba": (JambaConfig(), "recurrent state"),
    "bamba": (BambaConfig(), "recurrent state"),
    "qwen3_next": (Qwen3NextConfig(), "recurrent state"),
    "t5": (T5Config(vocab_size=64, d_model=32, num_layers=4, num_heads=4), "encoder-decoder"),
    "bert": (BertConfig(**SMALL, intermediate_size=48), "not causal"),
    "vit": (ViTConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=4), "no causal language model"),
    "gemma3": (Gemma3Config(), "multimodal"),
    "gpt2": (GPT2Config(vocab_size=64, n_embd=32, n_layer=4, n_head=4, n_positions=64), "wpe"),
    "opt": (OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32), "cannot be served"),
    "bloom": (BloomConfig(vocab_size=64, hidden_size=32, n_layer=4, n_head=4), "interface"),
    "granite": (GraniteConfig(**SMALL, **KV, embedding_multiplier=12.0), "changes the hidden states"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_by_name_and_reason(name) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(UnsupportedFamilyError) as caught:
        build_span(config, Span(1, 2), embeddings=False, head=False)
    assert name in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["mamba", "t5", "granite"])
def test_a_client_with_a_local_head_hears_the_same(name) -> None:
    with pytest.raises(UnsupportedFamilyError, match=name):
        build_head(REFUSED[name][0])


def test_granite_without_a_multiplier_fits() -> None:
    """The refusal above is for what the forward does, not for the name."""
    config = GraniteConfig(**SMALL, **KV, embedding_multiplier=1.0)
    model = build_span(config, Span(1, 3), embeddings=False, head=False)
    assert len(model.shapes) == 2


def test_span_outside_the_model() -> None:
    config = LlamaConfig(**SMALL, **KV)
    with pytest.raises(ConfigError, match="0:4"):
        build_span(config, Span(2, 5), embeddings=False, head=False)
