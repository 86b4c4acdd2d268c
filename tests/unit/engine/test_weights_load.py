"""``load_span`` and ``load_head`` on checkpoints that ``save_pretrained`` wrote, against the models they came from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from swarm.core.errors import ConfigError, ModelError, UnsupportedFamilyError
from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.quantize import held_bytes
from swarm.engine.weights import LoadOptions, load_head, load_span
from swarm.models import ModelFiles, silent
from swarm.models.folder import open_folder

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "mixtral", "qwen3_moe", "phi3", "gpt_oss",
            "deepseek_v3", "llama-tied"]  # fmt: skip
UNEVEN = Span(1, 4)
CPU = LoadOptions(device="cpu", dtype="float32")


def save(model: Any, folder: Path, **options: Any) -> Path:
    """A checkpoint folder as a user would have it: the library's own saved form, and a tokenizer."""
    model.save_pretrained(folder, **options)
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, kit: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    whole = kit.whole(kit.configs[request.param])
    return whole, open_folder(save(whole, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def llama(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    whole = kit.whole(kit.configs["llama"])
    return whole, save(whole, tmp_path_factory.mktemp("llama"))


def test_a_middle_span_holds_exactly_the_whole_models_layers(saved: tuple[Any, ModelFiles]) -> None:
    whole, files = saved
    loaded = load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)
    reference, here = whole.state_dict(), loaded.model.state_dict()
    names = loaded.model.checkpoint_tensors()
    assert set(names) == set(here)
    assert {name.split(".")[2] for name in names.values()} == {"1", "2", "3"}
    for name, source in names.items():
        assert torch.equal(here[name], reference[source]), name


def test_a_chain_of_loaded_spans_computes_what_the_whole_model_computes(
    kit: Any, saved: tuple[Any, ModelFiles]
) -> None:
    whole, files = saved
    engines = []
    for span in (Span(0, 1), Span(1, 4), Span(4, 5)):
        loaded = load_span(files, span, options=CPU, embeddings=span.start == 0, head=span.end == 5, progress=silent)
        engines.append(SpanEngine(loaded.model, EngineOptions(kv_tokens=64)))
    chain = kit.chain(whole.config)
    chain.engines, chain.whole = engines, whole
    ids = kit.tokens(14)
    (logits,) = chain.step([(chain.open(), ids, 0)])
    assert abs(logits - chain.reference(ids)).max() < 1e-4


def test_fused_experts_really_come_from_single_ones(kit: Any, tmp_path: Path) -> None:
    """Guards the tests above: the saved form is not the module's own."""
    files = open_folder(save(kit.whole(kit.configs["mixtral"]), tmp_path))
    assert "model.layers.2.block_sparse_moe.experts.3.w1.weight" in files.tensor_names()
    model = load_span(files, Span(2, 3), options=CPU, embeddings=False, head=False, progress=silent).model
    assert model.get_parameter("body.layers.0.mlp.experts.gate_up_proj").dim() == 3


def test_only_the_spans_tensors_are_read(llama: tuple[Any, Path]) -> None:
    reports: list[tuple[str, int, int]] = []
    files = open_folder(llama[1])
    read: list[str] = []
    source_read = files.source.read
    files.source.read = lambda infos: (read.extend(infos), source_read(infos))[1]  # type: ignore[method-assign]
    loaded = load_span(
        files, Span(1, 2), options=CPU, embeddings=False, head=False, progress=lambda *report: reports.append(report)
    )
    assert read
    assert all(name.startswith("model.layers.1.") for name in read)
    assert len(set(read)) == len(read)
    weight_bytes = sum(parameter.nbytes for parameter in loaded.model.parameters())
    assert reports[-1] == ("loading weights", weight_bytes, weight_bytes)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert held_bytes(loaded.model) >= weight_bytes


def test_a_sharded_checkpoint_loads_like_a_single_file(llama: tuple[Any, Path], tmp_path: Path) -> None:
    whole, _ = llama
    files = open_folder(save(whole, tmp_path, max_shard_size="20KB"))
    assert files.source.index is not None
    model = load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent).model
    reference, here = whole.state_dict(), model.state_dict()
    assert all(torch.equal(here[name], reference[source]) for name, source in model.checkpoint_tensors().items())


def test_a_tied_matrix_is_read_once_and_shared(kit: Any, tmp_path: Path) -> None:
    whole = kit.whole(kit.configs["llama-tied"])
    files = open_folder(save(whole, tmp_path))
    both = load_span(files, Span(0, 5), options=CPU, embeddings=True, head=True, progress=silent)
    assert both.model.head is not None
    assert both.model.embed is not None
    assert both.model.head.lm_head.weight is both.model.embed.weight
    tail = load_span(files, Span(4, 5), options=CPU, embeddings=False, head=True, progress=silent).model
    assert tail.head is not None
    assert torch.equal(tail.head.lm_head.weight, whole.get_input_embeddings().weight)


def test_the_head_alone_embeds_and_gives_logits(saved: tuple[Any, ModelFiles], kit: Any) -> None:
    whole, files = saved
    head = load_head(files, dtype="float32", progress=silent)
    rows = head.embed(kit.tokens(3))
    hidden = torch.frombuffer(bytearray(rows), dtype=torch.float32).reshape(1, 3, -1)
    with torch.no_grad():
        body = whole.base_model
        norm = body.norm(hidden)
        logits = whole.lm_head(norm)[0]
        cap = getattr(whole.config, "final_logit_softcapping", None)
        logits = torch.tanh(logits / cap) * cap if cap else logits
    assert torch.allclose(torch.from_numpy(head.logits(rows)), logits, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_narrower_dtype_is_what_transformers_loads(saved: tuple[Any, ModelFiles], dtype: str, tmp_path: Path) -> None:
    whole, files = saved
    loaded = load_span(
        files, UNEVEN, options=LoadOptions(device="cpu", dtype=dtype), embeddings=False, head=False, progress=silent
    )
    whole.save_pretrained(tmp_path)
    reference = type(whole).from_pretrained(tmp_path, dtype=getattr(torch, dtype)).state_dict()
    here = loaded.model.state_dict()
    for name, source in loaded.model.checkpoint_tensors().items():
        assert here[name].dtype == reference[source].dtype, name
        assert torch.equal(here[name], reference[source]), name
    assert loaded.dtype == dtype


def test_auto_takes_the_checkpoints_dtype(llama: tuple[Any, Path]) -> None:
    loaded = load_span(
        open_folder(llama[1]), Span(0, 1), options=LoadOptions(device="cpu"), embeddings=True, head=False,
        progress=silent,
    )  # fmt: skip
    assert loaded.dtype == "float32"
    assert (loaded.device, loaded.note, dict(loaded.devices)) == ("cpu", "", {})


def copy_without(folder: Path, target: Path, dropped: str) -> Path:
    shutil.copytree(folder, target)
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name != dropped}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_missing_tensor_is_named(llama: tuple[Any, Path], tmp_path: Path) -> None:
    folder = copy_without(llama[1], tmp_path / "cut", "model.layers.2.mlp.up_proj.weight")
    files = open_folder(folder)
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)
    load_span(files, Span(3, 5), options=CPU, embeddings=False, head=False, progress=silent)


def test_a_missing_expert_is_an_error(kit: Any, tmp_path: Path) -> None:
    folder = save(kit.whole(kit.configs["mixtral"]), tmp_path / "full")
    cut = copy_without(folder, tmp_path / "cut", "model.layers.1.block_sparse_moe.experts.2.w2.weight")
    with pytest.raises(ModelError, match="experts"):
        load_span(open_folder(cut), UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)


def edit_config(folder: Path, target: Path, **changes: Any) -> ModelFiles:
    shutil.copytree(folder, target)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return open_folder(target)


def test_weights_of_another_shape_are_an_error(llama: tuple[Any, Path], tmp_path: Path) -> None:
    files = edit_config(llama[1], tmp_path / "wide", intermediate_size=56)
    with pytest.raises(ModelError, match="does not fit"):
        load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)


def test_a_quantized_checkpoint_and_an_unknown_family_are_refused_by_name(
    llama: tuple[Any, Path], tmp_path: Path
) -> None:
    files = edit_config(llama[1], tmp_path / "fp8", quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedFamilyError, match="fp8"):
        load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)
    files = edit_config(llama[1], tmp_path / "odd", model_type="nonesuch")
    with pytest.raises(UnsupportedFamilyError, match="nonesuch"):
        load_span(files, UNEVEN, options=CPU, embeddings=False, head=False, progress=silent)


def test_a_span_outside_the_model_is_a_config_error(llama: tuple[Any, Path]) -> None:
    with pytest.raises(ConfigError, match="outside the model"):
        load_span(open_folder(llama[1]), Span(3, 6), options=CPU, embeddings=False, head=False, progress=silent)
