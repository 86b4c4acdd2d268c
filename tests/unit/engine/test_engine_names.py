"""What a span asks of the checkpoint, and under which names."""

from __future__ import annotations

import copy

import numpy as np
import torch

from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_head, build_span
from swarm.engine.work import Work


def test_layers_are_shifted_by_the_start(kit) -> None:
    model = build_span(kit.configs["llama"], Span(2, 4), embeddings=False, head=False)
    names = model.checkpoint_tensors()
    assert names["body.layers.0.self_attn.q_proj.weight"] == "model.layers.2.self_attn.q_proj.weight"
    assert names["body.layers.1.mlp.up_proj.weight"] == "model.layers.3.mlp.up_proj.weight"
    assert all(name.startswith(("model.layers.2.", "model.layers.3.")) for name in names.values())


def test_every_family_asks_for_what_the_whole_model_has(kit) -> None:
    for name, config in kit.configs.items():
        asked: list[str] = []
        for span in (Span(0, 2), Span(2, 5)):
            model = build_span(config, span, embeddings=span.start == 0, head=span.end == 5)
            assert all(parameter.is_meta for parameter in model.parameters()), name
            tensors = model.state_dict(keep_vars=True)
            reference = kit.whole(config).state_dict()
            for own, source in model.checkpoint_tensors().items():
                assert tensors[own].shape == reference[source].shape, (name, own)
            asked += model.checkpoint_tensors().values()
        shared = {"model.embed_tokens.weight"} if config.tie_word_embeddings else set()
        wanted = set(reference) - ({"lm_head.weight"} if shared else set())
        assert set(asked) == wanted, name
        assert sorted(asked) == sorted([*wanted, *shared]), name


def test_tied_head_shares_the_embeddings(kit) -> None:
    config = kit.configs["llama-tied"]
    head = build_head(config)
    names = head.checkpoint_tensors()
    assert sorted(names.values()) == ["model.embed_tokens.weight", "model.norm.weight"]
    kit.fill(head, kit.whole(config))
    assert head.head.lm_head.weight is head.embed.weight
    tail = build_span(config, Span(4, 5), embeddings=False, head=True)
    assert tail.checkpoint_name("head.lm_head.weight") == "model.embed_tokens.weight"


def test_buffers_are_real_from_the_start(kit) -> None:
    model = build_span(kit.configs["gemma3"], Span(0, 2), embeddings=True, head=True)
    assert not any(buffer.is_meta for buffer in model.buffers())
    assert float(model.embed.embed_scale) == np.float32(32**0.5)


def test_families_may_keep_parts_in_float32(kit) -> None:
    deepseek = build_span(kit.configs["deepseek_v3"], Span(2, 4), embeddings=False, head=False)
    gate = "body.layers.0.mlp.gate.weight"
    assert gate in deepseek.checkpoint_tensors()
    assert deepseek.parameter_dtype(gate, torch.bfloat16) == torch.float32
    assert deepseek.parameter_dtype("body.layers.0.mlp.experts.down_proj", torch.bfloat16) == torch.bfloat16
    oss = build_span(kit.configs["gpt_oss"], Span(0, 1), embeddings=False, head=False)
    norm = "body.layers.0.input_layernorm.weight"
    assert oss.parameter_dtype(norm, torch.bfloat16) == torch.bfloat16
    assert oss.parameter_dtype(norm, torch.float16) == torch.float32


def test_kv_bytes_are_what_the_buffers_take(kit) -> None:
    for name in ("llama", "deepseek_v3", "gemma3"):
        chain = kit.chain(kit.configs[name])
        session = chain.open(10)
        chain.step([(session, kit.tokens(3), 0)])
        for engine, slot in zip(chain.engines, session.slots, strict=True):
            taken = sum(tensor.nbytes for pair in slot.layers() for tensor in pair)
            assert taken == 10 * engine.info.kv_bytes_per_token, name


def test_a_copied_model_runs_on_its_own(kit) -> None:
    config = kit.configs["gemma2"]
    model = kit.fill(build_span(config, Span(0, 2), embeddings=True, head=False), kit.whole(config))
    twin = copy.deepcopy(model)
    first, second = SpanEngine(model, EngineOptions(kv_tokens=64)), SpanEngine(twin, EngineOptions(kv_tokens=64))
    ids = np.array(kit.tokens(9))
    outputs = [
        engine.run([Work(slot=engine.open(16), keep=0, hidden=None, token_ids=ids, rows=9, want=9)])[0].hidden
        for engine in (first, second, first)
    ]
    assert outputs[0] == outputs[1] == outputs[2]
