"""Hidden states at every boundary, layer by layer, against transformers' own; and what is in memory meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models

from swarm.core.errors import ConfigError, ProtocolViolation, UnsupportedFamilyError
from swarm.engine.calibration import BoundaryStates
from swarm.engine.weights import LayerByLayer
from swarm.models import ModelFiles, silent
from swarm.models.folder import open_folder

MB = 1_000_000
EMBEDDINGS_BYTES = 113.2 * MB
LAYER_BYTES = 14.2 * MB
SLACK_BYTES = 50 * MB
"""For rows, what the loader itself needs, and pages the allocator keeps."""


MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
import torch
from swarm.engine.calibration import BoundaryStates
from swarm.models import silent
from swarm.models.folder import open_folder

torch.set_num_threads(1)
# Not ru_maxrss: that one starts with what the parent process held.
peak = lambda: next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
before = peak()
states = list(BoundaryStates(open_folder(Path(sys.argv[1])), [np.arange(64)], device="cpu", progress=silent))
print(json.dumps([peak() - before, len(states)]))
"""


def save(whole: Any, folder: Path) -> ModelFiles:
    whole.save_pretrained(folder)
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    return open_folder(folder)


@pytest.fixture(scope="module")
def llama(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return save(kit.whole(kit.configs["llama"]), tmp_path_factory.mktemp("llama"))


def boundaries(files: ModelFiles, pieces: Sequence[np.ndarray], device: str = "cpu") -> BoundaryStates:
    return BoundaryStates(files, pieces, device=device, progress=silent)


def before_the_norm(whole: Any, ids: np.ndarray) -> list[np.ndarray]:
    """transformers' ``output_hidden_states``, the last one without the final norm: the last layer's own output."""
    caught: list[torch.Tensor] = []
    hook = whole.model.norm.register_forward_pre_hook(lambda _module, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        states = whole(torch.tensor(ids[None]), output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return [state[0].numpy() for state in (*states[:-1], caught[0])]


@pytest.mark.parametrize("family", ["llama", "llama-tied", "gemma3", "qwen3_moe"])
def test_every_boundary_is_transformers_own(kit: Any, tmp_path: Path, family: str) -> None:
    whole = kit.whole(kit.configs[family])
    pieces = [np.array(kit.tokens(23, seed=1)), np.array(kit.tokens(9, seed=2))]
    found = list(boundaries(save(whole, tmp_path), pieces))
    wanted = [np.concatenate(rows) for rows in zip(*(before_the_norm(whole, ids) for ids in pieces), strict=True)]
    assert len(found) == len(wanted) == whole.config.num_hidden_layers + 1
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == np.float32
        assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, float(np.abs(theirs).max()))


def test_the_same_bits_every_time(kit: Any, llama: ModelFiles) -> None:
    pieces = [np.array(kit.tokens(40))]
    one, other = boundaries(llama, pieces), boundaries(llama, pieces)
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_one_layer_has_weights_at_a_time(llama: ModelFiles) -> None:
    layers = LayerByLayer(llama, device="cpu", progress=silent)

    def filled() -> set[str]:
        """Modules whose parameters have memory, a layer's all under its own name."""
        names = {name for name, weight in layers.model.named_parameters() if not weight.is_meta}
        return {".".join(name.split(".")[:3]) for name in names}

    assert filled() == {"embed.weight"}
    layers.drop_embeddings()
    assert filled() == set()
    for index in range(layers.layers):
        before = layers.done_bytes
        with layers.holding(index):
            assert filled() == {f"body.layers.{index}"}
        assert filled() == set()
        assert layers.done_bytes > before
    assert layers.done_bytes == layers.total_bytes


def test_a_failure_gives_the_layers_memory_back(llama: ModelFiles) -> None:
    layers = LayerByLayer(llama, device="cpu", progress=silent)
    layers.drop_embeddings()
    with pytest.raises(KeyboardInterrupt), layers.holding(1):
        raise KeyboardInterrupt
    assert all(weight.is_meta for weight in layers.model.parameters())


def test_progress_ends_with_all_bytes(kit: Any, llama: ModelFiles) -> None:
    told: list[tuple[str, int, int]] = []
    pieces = [np.array(kit.tokens(5))]
    running = BoundaryStates(llama, pieces, device="cpu", progress=lambda *said: told.append(said))
    count = len(list(running))
    done = [now for label, now, _ in told if label == "calibrating"]
    assert len(done) == count
    assert 0 < done[0] < done[-1] == told[-1][2]
    assert done == sorted(done)


def test_what_cannot_be_run_is_refused(kit: Any, llama: ModelFiles) -> None:
    with pytest.raises(ProtocolViolation, match="vocabulary"):
        boundaries(llama, [np.array([kit.vocab])])
    with pytest.raises(ConfigError, match="a piece of 129 tokens for a model of 128"):
        boundaries(llama, [np.array([3] * 129)])
    with pytest.raises(ConfigError, match="unknown device"):
        boundaries(llama, [np.array([3])], device="abacus")
    quantized = replace(llama, config={**llama.config, "quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(UnsupportedFamilyError, match="gptq"):
        boundaries(quantized, [np.array([3])])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_its_memory_is_that_of_the_embeddings_and_a_layer(demo_files: ModelFiles) -> None:
    command = [sys.executable, "-c", MEASURE, str(Path(demo_files.tokenizer_path).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak_bytes, count = json.loads(done.stdout.splitlines()[-1])
    assert count == 31
    assert peak_bytes < EMBEDDINGS_BYTES + LAYER_BYTES + SLACK_BYTES < (EMBEDDINGS_BYTES + 30 * LAYER_BYTES) / 3
