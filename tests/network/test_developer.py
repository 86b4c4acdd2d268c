"""What is shown to developers, run against real servers: docs/developer.md, the notebook, the example, and the demo
model's text through ``SwarmForCausalLM`` beside transformers' own.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from opentelemetry import trace
from opentelemetry.util._once import Once
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

import swarm
from swarm import SwarmForCausalLM, SwarmModel
from swarm.models import ModelFiles

ROOT = Path(swarm.__file__).parents[1]
ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooW..."
PROMPTS = ["The capital of France is", "Once upon a time, in a village between two rivers, there lived"]


@pytest.fixture
def no_bars() -> Iterator[None]:
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.enable_progress_bar()


async def run_cells(cells: list[str], address: str) -> list[object]:
    """Run cells one after the other in one namespace, as a notebook does: inside a running loop, ``await`` anywhere.

    Returns what each shows: the value of its last line, if that is an expression.
    """
    shown: list[object] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        tree = ast.parse(cell.replace(ADDRESS, address))
        if isinstance(tree.body[-1], ast.Expr):
            last = tree.body[-1]
            tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
        names["_"] = None
        code = compile(ast.fix_missing_locations(tree), f"cell {number}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = FunctionType(code, names)()
        if inspect.iscoroutine(running):
            await running
        shown.append(names["_"])
    return shown


async def test_the_notebook(swarm30: list[Any], no_bars: None, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    shown = await run_cells(cells, swarm30[1].address)
    assert repr(shown[0]).startswith("<SwarmModel")
    assert "Paris" in shown[1]._repr_html_()  # type: ignore[attr-defined]
    assert len(capsys.readouterr().out.split()) > 10
    assert str(shown[3]).startswith("1 2 3 5 8")


async def test_the_document(
    swarm30: list[Any], no_bars: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    text = (ROOT / "docs" / "developer.md").read_text()
    cells = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(cells) == text.count("```python") == 5
    shown = await run_cells(cells, swarm30[1].address)
    out = capsys.readouterr().out
    assert "Paris" in out
    assert "torch.Size([1, 5, 49152])" in out
    assert "swarm.generate" in out, "spans on the console"
    assert shown[3].token_ids  # type: ignore[attr-defined]


def test_the_example(swarm30: list[Any], no_bars: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "with_transformers.py"))["main"]("demo", swarm30[1].address)
    out = capsys.readouterr().out
    told, both = out.split("two prompts")
    assert "u" not in told.split("Once upon a time")[1].lower()
    assert "Paris" in both
    assert "1 2 3 5 8" in both


def test_the_demo_model_says_what_transformers_says(local30: SwarmModel, demo_files: ModelFiles, no_bars: None) -> None:
    """Token for token in float32: a batch with padding, greedy, sampled from one seed, and by beams."""
    folder = demo_files.tokenizer_path.parent
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = SwarmForCausalLM.of(local30)
    assert model.name_or_path == str(folder)
    for options in (
        {"do_sample": False, "max_new_tokens": 20, "repetition_penalty": 1.1},
        {"do_sample": True, "max_new_tokens": 8, "top_p": 0.9},
        {"do_sample": False, "max_new_tokens": 5, "num_beams": 2},
    ):
        answers = []
        for asked in (model, reference):
            torch.manual_seed(1)
            answers.append(asked.generate(**inputs, **options))
        assert torch.equal(*answers), options
