"""Tiny random models of eleven families, and the harness that runs them whole and in spans."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_head, build_span
from swarm.engine.head import HeadEngine
from swarm.engine.kv import KVSlot
from swarm.engine.span_model import SpanModel
from swarm.engine.work import Work

VOCAB = 96
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE: dict[str, Any] = {"num_experts_per_tok": 2}
MLA: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
DEEPSEEK: dict[str, Any] = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 2,
}
GPT_OSS: dict[str, Any] = {
    "head_dim": 8,
    "num_local_experts": 4,
    "sliding_window": 6,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
WINDOW = 6
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16}
LONG |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}


def configs() -> dict[str, PretrainedConfig]:
    """One tiny configuration per family; windows and original lengths are shorter than the tests' sequences."""
    base = dict(BASE)
    return {
        "llama": LlamaConfig(**base),
        "qwen2": Qwen2Config(**base, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
        "qwen3": Qwen3Config(**base, head_dim=8),
        "mistral": MistralConfig(**base, sliding_window=WINDOW),
        "gemma2": Gemma2Config(**base, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8),
        "gemma3": Gemma3TextConfig(
            **base, head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8, layer_types=ALTERNATING
        ),
        "mixtral": MixtralConfig(**base, **MOE, num_local_experts=4),
        "qwen3_moe": Qwen3MoeConfig(
            **base, **MOE, head_dim=8, moe_intermediate_size=24, num_experts=4, mlp_only_layers=[1]
        ),
        "phi3": Phi3Config(**base),
        "gpt_oss": GptOssConfig(**(base | MOE | GPT_OSS)),
        "deepseek_v3": DeepseekV3Config(**(base | MOE | MLA | DEEPSEEK)),
    }


def extra_configs() -> dict[str, PretrainedConfig]:
    """Rotary tables that depend on the length, and tied embeddings."""
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    return {
        "phi3-longrope": Phi3Config(**BASE, original_max_position_embeddings=16, rope_parameters=dict(LONG)),
        "llama-dynamic": LlamaConfig(**(BASE | {"max_position_embeddings": 16}), rope_parameters=dynamic),
        "llama-tied": LlamaConfig(**BASE, tie_word_embeddings=True),
    }


FAMILIES = sorted(configs())
SPLIT = (Span(0, 1), Span(1, 4), Span(4, 5))


def whole_model(config: PretrainedConfig, seed: int = 0) -> Any:
    """transformers' own model with lively random weights, attention written out ("eager")."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
            else:
                parameter.uniform_(0.3, 1.0)
    return model


def fill(model: SpanModel, whole: nn.Module, dtype: torch.dtype = torch.float32) -> SpanModel:
    """Copy every tensor a span asks for out of a whole model, by its checkpoint name."""
    tensors = whole.state_dict()
    for name, source in model.checkpoint_tensors().items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        value = tensors[source].clone().to(model.parameter_dtype(name, dtype))
        if leaf in module._parameters:
            module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        else:
            module._buffers[leaf] = value
    model.retie()
    assert not any(parameter.is_meta for parameter in model.parameters())
    return model


@dataclass
class Session:
    """One session's slot in every engine of a chain, and how many rows it holds."""

    slots: list[KVSlot]
    length: int = 0


@dataclass
class Chain:
    """A whole model cut into engines, driven the way a chain of servers is."""

    engines: list[SpanEngine]
    whole: Any
    sessions: list[Session] = field(default_factory=list)

    def open(self, tokens: int = 64) -> Session:
        return Session([engine.open(tokens) for engine in self.engines])

    def step(self, parts: Sequence[tuple[Session, Sequence[int], int]], *, logits: bool = True) -> list[np.ndarray]:
        """One packed step for several sessions: (session, token ids, horizon), all rows wanted back.

        ``session.length`` is the ``keep`` sent, so a test rolls back by lowering it. Returns logits ``[n, vocab]`` or
        float32 hidden rows ``[n, hidden]``.
        """
        hidden: list[bytes | None] = [None] * len(parts)
        last = len(self.engines) - 1
        for stage, engine in enumerate(self.engines):
            works = [
                Work(
                    slot=session.slots[stage],
                    keep=session.length,
                    hidden=hidden[i],
                    token_ids=np.array(ids, dtype=np.int64) if stage == 0 else None,
                    rows=len(ids),
                    horizon=horizon,
                    want=len(ids),
                    logits=logits and stage == last,
                )
                for i, (session, ids, horizon) in enumerate(parts)
            ]
            outputs = engine.run(works)
            hidden = [output.hidden for output in outputs]
        for session, ids, _ in parts:
            session.length += len(ids)
        if logits:
            return [output.logits for output in outputs if output.logits is not None]
        width = self.engines[-1].info.hidden_size
        return [np.frombuffer(rows or b"", dtype=np.float32).reshape(-1, width) for rows in hidden]

    def reference(self, ids: Sequence[int]) -> np.ndarray:
        """Logits ``[n, vocab]`` of one whole-model call, on a copy: a dynamic rotary module remembers long calls."""
        with torch.no_grad():
            return copy.deepcopy(self.whole)(torch.tensor([list(ids)]), use_cache=False).logits[0].float().numpy()


def make_chain(config: PretrainedConfig, spans: Sequence[Span] = SPLIT, kv_tokens: int = 4096) -> Chain:
    whole = whole_model(config)
    engines = []
    for span in spans:
        model = build_span(config, span, embeddings=span.start == 0, head=span.end == config.num_hidden_layers)
        engines.append(SpanEngine(fill(model, whole), EngineOptions(kv_tokens=kv_tokens)))
    return Chain(engines, whole)


def make_head(chain: Chain, config: PretrainedConfig) -> HeadEngine:
    return HeadEngine(fill(build_head(config), chain.whole))


class Kit:
    """What tests of the engine build with; handed out as a fixture since test folders are no packages."""

    chain = staticmethod(make_chain)
    head = staticmethod(make_head)
    fill = staticmethod(fill)
    whole = staticmethod(whole_model)
    vocab = VOCAB
    base = BASE

    def __init__(self) -> None:
        self.configs = configs() | extra_configs()

    def tokens(self, count: int, seed: int = 1) -> list[int]:
        return np.random.default_rng(seed).integers(3, self.vocab, count).tolist()


@pytest.fixture(scope="session")
def kit() -> Kit:
    torch.set_num_threads(1)
    return Kit()


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest, kit: Kit) -> Chain:
    """A chain of three uneven spans, once per family; tests open their own sessions on it."""
    return kit.chain(kit.configs[request.param])
