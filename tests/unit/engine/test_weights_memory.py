"""Peak memory while a span is loaded, each measured in a fresh process on the real demo model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.models import ModelFiles

MB = 1_000_000
LAYER_BYTES = 14.2 * MB
SLACK_BYTES = 50 * MB
"""For what the loader itself needs, and for pages the allocator keeps."""

MEASURE = """
import json, sys
import torch
from swarm.core.spans import Span
from swarm.engine.quantize import check_quantization, held_bytes
from swarm.engine.weights import LoadOptions, load_span
from swarm.models import silent
from swarm.models.folder import open_folder

folder, start, end, quantization = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
files = open_folder(__import__("pathlib").Path(folder))
check_quantization(quantization, torch.device("cpu"))
# Not ru_maxrss: that one starts with what the parent process held.
peak = lambda: next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
before = peak()
options = LoadOptions(device="cpu", dtype="float32", quantization=quantization)
loaded = load_span(files, Span(start, end), options=options, embeddings=False, head=False, progress=silent)
print(json.dumps([peak() - before, held_bytes(loaded.model)]))
"""


def measure(files: ModelFiles, start: int, end: int, quantization: str) -> tuple[int, int]:
    """(peak above the process's own, bytes the span holds)"""
    command = [sys.executable, "-c", MEASURE, str(Path(files.tokenizer_path).parent), str(start), str(end)]
    done = subprocess.run([*command, quantization], capture_output=True, text=True, check=True)
    peak, held = json.loads(done.stdout.splitlines()[-1])
    return peak, held


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_ten_layers_of_thirty_take_a_third_of_the_memory(demo_files: ModelFiles) -> None:
    part, held = measure(demo_files, 10, 20, "none")
    whole, _ = measure(demo_files, 0, 30, "none")
    assert held == pytest.approx(10 * LAYER_BYTES, rel=0.01)
    assert part < held + LAYER_BYTES + SLACK_BYTES
    assert part < 0.5 * whole


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize(("quantization", "share"), [("int8", 0.26), ("nf4", 0.15)])
def test_a_quantized_span_never_holds_its_float32_form(demo_files: ModelFiles, quantization: str, share: float) -> None:
    peak, held = measure(demo_files, 10, 20, quantization)
    assert held < share * 10 * LAYER_BYTES
    assert peak < held + 2 * LAYER_BYTES + SLACK_BYTES < 10 * LAYER_BYTES
