"""A client with a remote head needs no torch: nothing in ``swarm.client`` or ``swarm.core`` asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import swarm

ROOT = Path(swarm.__file__).parents[1]


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("thin_client.py")), str(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    return run(folder)


def test_a_remote_head_session_runs_without_torch_in_the_process(report: dict[str, Any]) -> None:
    assert report["tokens"] == 15
    assert report["loaded"] == []


def test_no_module_of_the_client_or_the_core_imports_it(report: dict[str, Any]) -> None:
    """Not even one that the session did not need; but for the door of those who have torch, which no other imports."""
    assert report["guilty"] == []
    modules = {path.stem for package in ("client", "core") for path in (ROOT / "swarm" / package).rglob("*.py")}
    assert {name.rpartition(".")[2] for name in report["walked"]} >= modules - {"__init__", "causal_lm"}
    assert "swarm.client.causal_lm" not in report["walked"]


def test_a_planted_import_is_found(folder: Path) -> None:
    modules = ["swarm.client.generation", "swarm.core.records"]
    assert run(folder, *modules)["guilty"] == [[module, "torch"] for module in modules]
