"""Local folders and the safetensors format: what is read, and every way a folder can be wrong."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, ModelError, UnsupportedFamilyError
from swarm.models import resolve, silent
from swarm.models.files import text_config
from swarm.models.folder import open_folder
from swarm.models.resolve import default_cache
from swarm.models.safetensors_file import DTYPE_BYTES, parse_header, read_header, write_file

Checkpoint = tuple[Path, dict[str, bytes]]


def test_a_folder_tells_what_it_is(checkpoint: Checkpoint) -> None:
    folder, data = checkpoint
    files = resolve(str(folder))
    assert (files.name, files.revision) == ("tiny", "local")
    assert (files.layer_count, files.hidden_size, files.vocab_size, files.context_tokens) == (4, 64, 300, 256)
    assert files.eos_token_ids == (2, 5)
    assert files.chat_template == "{{ messages }}"
    assert files.tensor_names() == frozenset(data)
    assert len(files.fingerprint) == 16


@pytest.mark.parametrize(
    ("config", "experts", "by_length"),
    [
        ({}, False, False),
        ({"num_local_experts": 8}, True, False),
        ({"num_experts": 1}, False, False),
        ({"n_routed_experts": 64}, True, False),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, False, True),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}}, False, True),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, False, False),
        ({"rope_scaling": "nonsense", "num_experts": "many"}, False, False),
    ],
)
def test_what_verdicts_must_know_of_a_model(
    checkpoint: Checkpoint, config: dict[str, Any], experts: bool, by_length: bool
) -> None:
    folder, _ = checkpoint
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    files = open_folder(folder)
    assert (files.has_experts, files.length_matters) == (experts, by_length)


def test_tensors_are_read_exactly_and_alone(checkpoint: Checkpoint) -> None:
    folder, data = checkpoint
    files = open_folder(folder)
    names = ["model.norm.weight", "model.layers.2.up.weight"]
    files.fetch(names, silent)
    got = {name: (bytes(buffer), dtype, shape) for name, buffer, dtype, shape in files.read(names)}
    assert got == {names[0]: (data[names[0]], "F32", (64,)), names[1]: (data[names[1]], "F32", (512, 64))}


def test_a_buffer_is_the_receivers_own(checkpoint: Checkpoint) -> None:
    files = open_folder(checkpoint[0])
    ((_, first, _, _),) = files.read(["model.norm.weight"])
    first[:] = bytes(len(first))
    ((_, second, _, _),) = files.read(["model.norm.weight"])
    assert bytes(second) == checkpoint[1]["model.norm.weight"]


def test_the_fingerprint_sees_config_and_tensors_but_not_who_wrote_them(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Any], tmp_path: Path
) -> None:
    folder, _ = checkpoint
    before = open_folder(folder).fingerprint
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(dict(reversed(config.items())) | {"transformers_version": "9"}))
    assert open_folder(folder).fingerprint == before
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1.0}))
    assert open_folder(folder).fingerprint != before
    make_checkpoint(tmp_path / "other", rows=256)
    assert open_folder(tmp_path / "other").fingerprint != before


def test_folder_errors_name_what_is_missing_and_what_to_do(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder, _ = checkpoint
    with pytest.raises(ModelError, match=r"no model folder .*nowhere.*org/name, or demo"):
        resolve(str(tmp_path / "nowhere"))
    (folder / "tokenizer.json").rename(folder / "x")
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*AutoTokenizer"):
        open_folder(folder)
    (folder / "x").rename(folder / "tokenizer.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pytorch_model\.bin.*save_pretrained"):
        open_folder(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        open_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        open_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_folder(folder)


def test_a_missing_tensor_shard_or_byte_is_an_error(
    checkpoint: Checkpoint, make_checkpoint: Callable[..., Any], tmp_path: Path
) -> None:
    files = open_folder(checkpoint[0])
    with pytest.raises(ModelError, match=r"no tensor model\.layers\.9\.up"):
        files.tensors(["model.layers.9.up.weight"])
    make_checkpoint(tmp_path / "sharded", shards=3)
    (tmp_path / "sharded" / "model-00002-of-00003.safetensors").unlink()
    sharded = open_folder(tmp_path / "sharded")
    with pytest.raises(ModelError, match="model-00002-of-00003"):
        sharded.tensors()
    weights = checkpoint[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut short"):
        open_folder(checkpoint[0]).tensor_names()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ([], ModelError, "model_type"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, ModelError, "BertForMaskedLM"),
        ({"model_type": "llama"}, ModelError, "none named"),
        (
            {"model_type": "t5", "architectures": ["T5ForCausalLM"], "is_encoder_decoder": True},
            ModelError,
            "not a causal",
        ),
        ({"model_type": "llava", "text_config": {"hidden_size": 8}}, UnsupportedFamilyError, "multimodal llava"),
    ],
)
def test_what_is_no_causal_language_model_is_refused(config: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        text_config(config, "it")


def test_a_multimodal_checkpoint_shows_its_text_model(checkpoint: Checkpoint) -> None:
    folder, data = checkpoint
    text = json.loads((folder / "config.json").read_text()) | {"model_type": "gemma3_text"}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    )
    stored = {f"language_{name}".replace("language_model.", "language_model.model."): name for name in data}
    layout = {name: ("F32", (len(data[plain]) // 4,)) for name, plain in stored.items()}
    layout |= {"vision_tower.layers.0.weight": ("F32", (1,))}
    parts = [(name, data[plain]) for name, plain in stored.items()] + [("vision_tower.layers.0.weight", bytes(4))]
    write_file(folder / "model.safetensors", layout, parts, lambda _: None)
    files = open_folder(folder)
    assert files.config["model_type"] == "gemma3_text"
    assert files.tensor_names() == frozenset(data)
    ((name, buffer, _, _),) = files.read(["model.norm.weight"])
    assert (name, bytes(buffer)) == ("model.norm.weight", data["model.norm.weight"])
    with pytest.raises(ModelError, match="vision_tower"):
        files.tensors(["vision_tower.layers.0.weight"])


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [3, 1, 3]}, {"eos_token_id": 2}, (1, 3)),
        ({"eos_token_id": None}, {"eos_token_id": 2}, (2,)),
        ({}, {"eos_token_id": [7]}, (7,)),
        ({}, {"eos_token_id": None}, ()),
        ({"eos_token_id": "</s>"}, {}, ()),
    ],
)
def test_end_tokens(checkpoint: Checkpoint, generation: Any, config: Any, expected: tuple[int, ...]) -> None:
    folder, _ = checkpoint
    base = json.loads((folder / "config.json").read_text())
    base.pop("eos_token_id")
    (folder / "config.json").write_text(json.dumps(base | config))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert open_folder(folder).eos_token_ids == expected


def test_chat_templates_in_their_three_places(checkpoint: Checkpoint) -> None:
    folder, _ = checkpoint
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert open_folder(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert open_folder(folder).chat_template == "J"
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert open_folder(folder).chat_template is None


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), shapes, max_size=5))
def test_what_we_write_the_format_s_own_library_reads(tmp_path_factory: Any, layout: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("st") / "x.safetensors"
    generator = np.random.default_rng(3)
    data = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in layout.items()}
    write_file(
        path, {name: ("F32", shape) for name, shape in layout.items()}, [(n, a.tobytes()) for n, a in data.items()],
        lambda _: None,
    )  # fmt: skip
    loaded = safetensors.numpy.load_file(path)
    assert loaded.keys() == data.keys()
    assert all(np.array_equal(loaded[name], data[name]) for name in data)
    infos = read_header(path)
    raw = path.read_bytes()
    assert {n: raw[i.offset : i.offset + i.length] for n, i in infos.items()} == {
        n: a.tobytes() for n, a in data.items()
    }


@given(st.binary(max_size=200))
def test_garbage_is_never_taken_for_a_header(header: bytes) -> None:
    try:
        infos = parse_header(header, file="x", file_size=1000)
    except ModelError:
        return
    assert all(info.offset + info.length <= 1000 for info in infos.values())


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [250], "data_offsets": [0, 1000]},
        {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "no", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        7,
    ],
)
def test_a_lying_header_entry_is_refused(entry: Any) -> None:
    with pytest.raises(ModelError):
        parse_header(json.dumps({"w": entry}).encode(), file="x", file_size=1000)


def test_an_absurd_header_length_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in (0, 1, 10**9, 2**63):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(ModelError, match="not a safetensors file"):
            read_header(path)
    assert all(math.log2(size).is_integer() for size in DTYPE_BYTES.values())


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert default_cache() == Path("/somewhere/cache/swarm/models")
    for unset in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_cache() == Path.home() / ".cache" / "swarm" / "models"

    def nobody(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HOME")
    with pytest.raises(ConfigError, match="no home folder"):
        default_cache()


def test_opening_a_model_imports_no_torch(checkpoint: Checkpoint) -> None:
    """In a fresh interpreter: a remote-head client goes this way."""
    code = (
        "import sys; from swarm.models import resolve; resolve(sys.argv[1]).fingerprint;"
        "sys.exit(bool({'torch', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(checkpoint[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
