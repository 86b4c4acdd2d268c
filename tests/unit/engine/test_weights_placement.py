"""Devices, dtypes, and one span over several devices: device maps of a meta model by accelerate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.engine.devices import dtype_name, pick_device, pick_dtype
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_span
from swarm.engine.placement import dispatch, span_device_map
from swarm.engine.span_model import SpanModel
from swarm.engine.weights import LoadOptions, load_span
from swarm.models import silent
from swarm.models.folder import open_folder

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


def ends_bytes(model: SpanModel) -> int:
    return sum(parameter.nbytes for part in (model.embed, model.head) if part for parameter in part.parameters())


def test_a_meta_span_is_spread_over_two_gpus_and_the_cpu(kit: Any) -> None:
    model = meta_span(kit, head=True)
    size = layer_bytes(model)
    limits = {0: int(3.5 * size) + ends_bytes(model), 1: int(1.5 * size), "cpu": 10 * size}
    devices = span_device_map(model, limits)
    where = [str(devices[f"body.layers.{i}"]) for i in range(5)]
    assert set(where) == {"cuda:0", "cuda:1", "cpu"}
    assert where == sorted(where, key=["cuda:0", "cuda:1", "cpu"].index)
    assert where.count("cuda:0") <= 3
    assert where.count("cuda:1") <= 1
    assert {str(devices["embed"]), str(devices["head"])} == {"cuda:0"}
    assert all(parameter.is_meta for parameter in model.parameters())


def test_weights_of_half_the_size_need_fewer_devices(kit: Any) -> None:
    """The dtype a span will have counts, not the one it was built in."""
    model = meta_span(kit)
    limits = {0: int(3.5 * layer_bytes(model)) + ends_bytes(model), "cpu": 1 << 30}
    assert {str(device) for device in span_device_map(model, limits).values()} == {"cuda:0", "cpu"}
    for name, parameter in list(model.named_parameters()):
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, torch.nn.Parameter(parameter.half(), requires_grad=False))
    assert {str(device) for device in span_device_map(model, limits).values()} == {"cuda:0"}


def test_a_layer_is_never_split(kit: Any) -> None:
    model = meta_span(kit)
    devices = span_device_map(model, {0: int(2.5 * layer_bytes(model)), "cpu": 1 << 30})
    assert not [name for name in devices if name.startswith("body.layers.") and name.count(".") > 2]


def test_what_does_not_fit_is_a_config_error(kit: Any) -> None:
    model = meta_span(kit)
    with pytest.raises(ConfigError, match=r"does not fit into.*fewer blocks"):
        span_device_map(model, {0: 2 * layer_bytes(model)})
    with pytest.raises(ConfigError, match=r"embeddings or head.*100 bytes"):
        span_device_map(model, {0: 100})
    with pytest.raises(ConfigError, match="0 bytes"):
        span_device_map(model, {})


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


def test_loading_with_a_memory_limit_places_and_hooks(kit: Any, tmp_path: Path) -> None:
    whole = kit.whole(kit.configs["llama"])
    whole.save_pretrained(tmp_path)
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    options = LoadOptions(device="cpu", dtype="float32", max_memory={"cpu": 1 << 30})
    loaded = load_span(
        open_folder(tmp_path), Span(1, 4), options=options, embeddings=False, head=False, progress=silent
    )
    assert set(loaded.devices.values()) == {"cpu"}
    assert any(hasattr(module, "_hf_hook") for module in loaded.model.modules())
    reference, here = whole.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(here[name], reference[source]) for name, source in loaded.model.checkpoint_tensors().items())
    tight = LoadOptions(device="cpu", dtype="float32", max_memory={"cpu": 1000})
    with pytest.raises(ConfigError, match="1000 bytes"):
        load_span(open_folder(tmp_path), Span(1, 4), options=tight, embeddings=False, head=False, progress=silent)
