"""Devices, dtypes, and one span over several devices: device maps of a meta model by accelerate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.engine.devices import dtype_name, pick_device, pick_dtype
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_span
from swarm.engine.placement import dispatch, span_device_map
from swarm.engine.span_model import SpanModel

CPU = torch.device("cpu")
needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="this machine has a GPU"
)


@needs_no_gpu
def test_auto_without_a_gpu_falls_back_to_the_cpu_loudly() -> None:
    device, note = pick_device("auto")
    assert device == CPU
    assert "NO GPU" in note
    assert pick_device("cpu") == (CPU, "")


@needs_no_gpu
@pytest.mark.parametrize("wanted", ["cuda", "cuda:1", "mps"])
def test_a_device_asked_for_by_name_must_be_there(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"torch sees.*--device cpu"):
        pick_device(wanted)


@pytest.mark.parametrize("wanted", ["gpu", "cpu:1", "cuda:x", "", "mps:0"])
def test_an_unknown_device_is_a_config_error(wanted: str) -> None:
    with pytest.raises(ConfigError, match="auto, cpu, cuda, mps"):
        pick_device(wanted)


@pytest.mark.parametrize(
    ("config", "device", "expected"),
    [
        ({"dtype": "float32"}, "cpu", torch.float32),
        ({"torch_dtype": "bfloat16"}, "cpu", torch.bfloat16),
        ({"dtype": "torch.bfloat16"}, "cuda", torch.bfloat16),
        ({"dtype": "float16"}, "cpu", torch.float32),
        ({"dtype": "float16"}, "cuda", torch.float16),
        ({}, "cuda", torch.float32),
        ({"dtype": "float8_e4m3fn"}, "cuda", torch.float32),
    ],
)
def test_auto_dtype_is_the_checkpoints(config: dict[str, str], device: str, expected: torch.dtype) -> None:
    assert pick_dtype("auto", config, torch.device(device)) == expected


def test_a_dtype_by_name() -> None:
    assert pick_dtype("float16", {}, CPU) == torch.float16
    assert dtype_name(torch.bfloat16) == "bfloat16"
    with pytest.raises(ConfigError, match="float32"):
        pick_dtype("int8", {}, CPU)


def meta_span(kit: Any, *, head: bool = False) -> SpanModel:
    return build_span(kit.configs["llama"], Span(0, 5), embeddings=True, head=head)


def layer_bytes(model: SpanModel) -> int:
    return sum(parameter.nbytes for parameter in model.get_submodule("body.layers.0").parameters())


def test_a_meta_span_is_spread_over_two_gpus_and_the_cpu(kit: Any) -> None:
    model = meta_span(kit)
    size = layer_bytes(model)
    embeddings = sum(parameter.nbytes for parameter in model.embed.parameters()) if model.embed else 0
    devices = span_device_map(model, {0: int(3.5 * size), 1: int(2.5 * size), "cpu": 10 * size + embeddings})
    where = {name: str(devices[f"body.layers.{i}"]) for i, name in enumerate("abcde")}
    assert set(where.values()) >= {"cuda:0", "cuda:1"}
    assert [where[name] for name in "abcde"] == sorted(where.values(), key=["cuda:0", "cuda:1", "cpu"].index)
    for device, limit in (("cuda:0", 3.5), ("cuda:1", 2.5)):
        assert sum(place == device for place in where.values()) * size <= limit * size
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_layer_is_never_split(kit: Any) -> None:
    model = meta_span(kit)
    devices = span_device_map(model, {0: int(2.5 * layer_bytes(model)), "cpu": 1 << 30})
    assert not [name for name in devices if name.startswith("body.layers.") and name.count(".") > 2]


def test_what_does_not_fit_is_a_config_error(kit: Any) -> None:
    model = meta_span(kit)
    with pytest.raises(ConfigError, match=r"does not fit into.*fewer blocks"):
        span_device_map(model, {0: 2 * layer_bytes(model)})


def test_a_dispatched_span_computes_the_same(kit: Any) -> None:
    """The only device here is the CPU; the hooks that move inputs are there all the same."""
    whole = kit.whole(kit.configs["llama"])
    plain, hooked = (kit.fill(meta_span(kit, head=True), whole) for _ in range(2))
    dispatch(hooked, span_device_map(hooked, {"cpu": 1 << 30}))
    chain = kit.chain(kit.configs["llama"])
    chain.engines = [SpanEngine(plain, EngineOptions(kv_tokens=64))]
    ids = kit.tokens(9)
    (expected,) = chain.step([(chain.open(16), ids, 0)])
    chain.engines = [SpanEngine(hooked, EngineOptions(kv_tokens=64))]
    assert any(hasattr(module, "_hf_hook") for module in hooked.modules())
    (got,) = chain.step([(chain.open(16), ids, 0)])
    assert (got == expected).all()
