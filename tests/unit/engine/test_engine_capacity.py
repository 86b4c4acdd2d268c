"""How many layers fit: against the memory that the same layers really take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swarm.core.errors import ConfigError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.engine import capacity
from swarm.engine.capacity import room_for
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.models.folder import open_folder
from swarm.models.progress import silent

LAYERS = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("capacity")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return open_folder(folder)


def held(files: Any, span: str, dtype: str, *, ends: bool = False) -> int:
    """Bytes of weights a loaded span takes."""
    request = SpanRequest(
        span=Span.parse(span), embeddings=ends, head=ends, weights=LoadOptions("cpu", dtype), kv_tokens=16
    )
    return open_span(files, request, silent).engine.info.memory_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_layers_that_fit_are_those_that_memory_takes(
    files: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoadOptions("cpu", dtype)
    monkeypatch.setattr(capacity, "free_bytes", lambda *_: 10**12)
    room = room_for(files, options)
    assert room.capacity_layers == LAYERS, "never more than there are"
    assert room.numerics == Numerics(dtype)
    one = held(files, "1:2", dtype)
    assert room.layer_bytes == pytest.approx(one, rel=0.1)
    assert room.power_layers_per_s > 0

    ends = held(files, "0:6", dtype, ends=True) - held(files, "0:6", dtype)
    kv_bytes = 100 * 2 * 2 * 16 * (4 if dtype == "float32" else 2)  # keys and values, two heads of 16
    for count in range(4):
        limit = (ends + (count + 0.5) * (room.layer_bytes + kv_bytes)) / capacity.USABLE
        monkeypatch.setattr(capacity, "free_bytes", lambda *_, limit=limit: limit)
        assert room_for(files, options, kv_tokens=100).capacity_layers == count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_kv_stay_within_the_share_of_memory(
    files: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = held(files, "0:6", dtype, ends=True)
    monkeypatch.setattr(capacity, "total_bytes", lambda *_: 2 * whole)
    options = LoadOptions("cpu", dtype, memory_share=0.4)
    room = room_for(files, options, kv_tokens=16)
    assert 0 < room.capacity_layers < LAYERS
    span = Span(0, room.capacity_layers)
    request = SpanRequest(span=span, embeddings=True, head=False, weights=options)
    engine = open_span(files, request, silent).engine
    taken = engine.info.memory_bytes + engine.free_tokens * engine.info.kv_bytes_per_token
    assert taken <= 0.4 * 2 * whole
    assert taken + engine.info.kv_bytes_per_token > 0.4 * 2 * whole, "and all of it is used"


@pytest.mark.parametrize(("span", "kv_tokens"), [("0:6", None), ("0:1", 10**6)])
def test_more_than_the_share_of_memory_is_refused_before_it_is_loaded(
    files: Any, span: str, kv_tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "total_bytes", lambda *_: 2 * held(files, "0:6", "float32", ends=True))
    options = LoadOptions("cpu", "float32", memory_share=0.4)
    request = SpanRequest(span=Span.parse(span), embeddings=True, head=True, weights=options, kv_tokens=kv_tokens)
    with pytest.raises(ConfigError, match="--memory-share") as caught:
        open_span(files, request, lambda *_: pytest.fail("something was read"))
    assert "fewer layers" in (caught.value.hint or "")


def test_the_head_is_told_in_layers(files: Any) -> None:
    room = room_for(files, LoadOptions("cpu", "float32"))
    head = held(files, "5:6", "float32", ends=True) - held(files, "5:6", "float32")
    assert room.head_layers == pytest.approx(head / 2 / room.layer_bytes, rel=0.05)  # as large as the embeddings


def test_limits_given_count_instead_of_what_is_free() -> None:
    assert capacity.free_bytes(torch.device("cpu"), {0: 10, "cpu": 5}) == 15
    assert capacity.free_bytes(torch.device("cpu"), None) > 2**20


def test_quantized_layers_are_smaller_and_the_rest_is_not() -> None:
    layer = torch.nn.ModuleDict({"linear": torch.nn.Linear(64, 64, bias=False), "norm": torch.nn.LayerNorm(64)})
    plain = capacity._held_bytes(layer, torch.bfloat16, "none")
    assert plain == 2 * (64 * 64 + 128)
    norm = 2 * 128
    assert 64 * 64 + norm <= capacity._held_bytes(layer, torch.bfloat16, "int8") < 1.1 * 64 * 64 + norm
    assert 32 * 64 + norm <= capacity._held_bytes(layer, torch.bfloat16, "nf4") < 0.65 * 64 * 64 + norm


def test_a_measured_speed_is_one(tmp_path: Path) -> None:
    assert capacity.read_bytes_per_s(torch.device("cpu"), torch.float32) > 1e6
