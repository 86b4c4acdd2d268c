"""``swarm calibrate`` on a tiny model: where the file goes, that it is the same every time, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM

from swarm.cli.output.console import HumanConsole
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.engine.calibration import LABEL
from swarm.models import ModelFiles
from swarm.models.folder import open_folder
from swarm.runtime.calibrations import find_calibration, read_calibration

Run = Callable[..., Any]
LAYERS, HIDDEN, CONTEXT = 3, 32, 128
BOS = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama that reads bytes, and begins every text with a token of its own."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=BOS, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: index for index, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def files(folder: Path) -> ModelFiles:
    return open_folder(folder)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of this test's own; where calibrations go in it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "swarm" / "calibrations"


def test_stored_where_it_is_found_again_and_always_the_same(
    said: Run, folder: Path, files: ModelFiles, data: Path
) -> None:
    code, out, err = said("calibrate", "--model", str(folder), "--device", "cpu", "--json", "--tokens", "500")
    assert code == 0, err
    told = json.loads(out)
    found = find_calibration(files.model_id)
    assert found is not None
    assert (told["digest"], told["model"]) == (found.digest().hex(), str(files.model_id))
    assert (told["layers"], told["hidden"], told["device"]) == (LAYERS, HIDDEN, "cpu")
    assert [Path(told["file"])] == list(data.iterdir())
    assert told["bytes"] == Path(told["file"]).stat().st_size
    # 500 bytes of text in sessions of 128, of which the first is a token that begins it, and the sink
    assert told["tokens"] == found.header.tokens == 500
    code, again, err = said("calibrate", "--model", str(folder), "--device", "cpu", "--tokens", "500")
    assert code == 0
    assert told["digest"] in again
    assert "calibrating: " in err
    assert find_calibration(files.model_id, data) is not None
    assert len(list(data.iterdir())) == 1


def test_its_scales_are_the_models(said: Run, folder: Path, files: ModelFiles, tmp_path: Path) -> None:
    """Against transformers: the spread of every channel's update over the text, position 0 left out."""
    text, place = tmp_path / "text", tmp_path / "result"
    text.write_text("Ein kurzer Text, der für diesen Versuch lang genug ist. " * 2, encoding="utf-8")
    code, _, err = said(
        "calibrate", "--model", str(folder), "--device", "cpu", "--text", str(text), "--out", str(place)
    )
    assert code == 0, err
    found = read_calibration(place, files.model_id)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text.read_text(encoding="utf-8")).ids
    assert ids[0] == BOS
    assert found.header.tokens == len(ids) - 1 < CONTEXT
    with torch.no_grad():
        states = LlamaForCausalLM.from_pretrained(folder)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    rows = [state[0, 1:].numpy() for state in states]
    for span in (Span(0, 1), Span(0, 2), Span(1, 2)):
        wanted = (rows[span.end] - rows[span.start]).std(axis=0)
        assert np.allclose(found.scale(span), wanted, rtol=0.01)  # the file has eight bits of each
    assert found.high_rms[0] == pytest.approx(np.sqrt((rows[0] ** 2).mean(axis=1)).max(), rel=1e-5)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ("cannot read --text", "No such file")),
        (b"\xff\xfe" * 200, ("is not UTF-8",)),
        (b"", ("0 tokens of the text would count",)),
        (b"too short", ("9 tokens of the text would count", "64 tokens or more")),
    ],
)
def test_a_bad_text(said: Run, folder: Path, data: Path, tmp_path: Path, content: bytes | None, parts: Any) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    code, out, err = said("calibrate", "--model", str(folder), "--text", str(path))
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert all(part in line for part in parts), line
    assert not data.exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "/no/such/folder"), "no model folder"),
        (("--model", "TINY", "--tokens", "64"), "--tokens is 64"),
        (("--model", "TINY", "--tokens", "65537"), "--tokens is 65537"),
        (("--model", "TINY", "--out", "/no/such/folder/file"), "cannot write to '/no/such/folder'"),
        (("--model", "TINY", "--out", "TINY"), "is a folder"),
        (("--model", "TINY", "--device", "abacus"), "unknown device"),
    ],
)
def test_mistakes_are_one_line(said: Run, folder: Path, data: Path, arguments: tuple[str, ...], part: str) -> None:
    code, out, err = said("calibrate", *(str(folder) if word == "TINY" else word for word in arguments))
    assert (code, out) == (2, "")
    [line] = err.splitlines()
    assert line.startswith("error: ")
    assert part in line
    assert not data.exists() or not list(data.iterdir())


def test_a_full_disk_is_told_before_the_work(
    said: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr("swarm.cli.commands.calibrate.shutil.disk_usage", lambda _: Usage)
    code, _, err = said("calibrate", "--model", str(folder), "--out", str(tmp_path / "result"))
    assert code == 2
    assert "1.0 kB free" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", [0, 2])
def test_ctrl_c_leaves_nothing(
    said: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    from swarm.engine.calibration import BoundaryStates

    whole = BoundaryStates.__iter__

    def cut_short(self: BoundaryStates) -> Iterator[Any]:
        for index, state in enumerate(whole(self)):
            if index == after:
                raise KeyboardInterrupt
            yield state

    monkeypatch.setattr(BoundaryStates, "__iter__", cut_short)
    code, out, _ = said("calibrate", "--model", str(folder), "--device", "cpu", "--out", str(tmp_path / "result"))
    assert (code, out) == (130, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["challenge", "--peer", "x"], ["verifier", "--blocks", "0:1"]])
def test_a_calibration_that_ctrl_c_ends_is_said_to_be_lost(
    said: Run, folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def stopped(console: HumanConsole, label: str, done: int, total: int) -> None:
        if label == LABEL:
            raise KeyboardInterrupt

    monkeypatch.setattr(HumanConsole, "progress", stopped)
    address = "/ip4/192.0.2.1/tcp/31337/p2p/" + Identity(b"1" * 32).peer_id
    ended = said(*command, "--initial-peers", address, "--model", str(folder))
    assert ended.code == 130
    assert "interrupted: nothing was decided; the calibration under way is lost" in ended.out + ended.err
    assert not list(data.iterdir())
