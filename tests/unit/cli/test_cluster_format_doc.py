"""docs/cluster-format.md is true: its example runs as shown, and it names every field and key there is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.scheduling import cluster_file

PAGE = (Path(__file__).parents[3] / "docs" / "cluster-format.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> str:
    path = tmp_path / "swarm.json"
    path.write_text(BLOCKS[0])
    return str(path)


def test_the_example_is_routed_as_shown(said: Callable[..., Any], example: str) -> None:
    code, out, _ = said("route", "--cluster", example)
    assert code == 0
    assert BLOCKS[1] == f"$ python -m swarm route --cluster swarm.json\n{out}"
    found = json.loads(said("route", "--cluster", example, "--json").out)
    assert json.loads(BLOCKS[2]).items() <= found.items()
    assert all(f"`{key}`" in PAGE for key in found)


def test_the_example_is_planned_as_shown(said: Callable[..., Any], example: str) -> None:
    code, out, _ = said("plan", "--cluster", example, "--place-gateway")
    assert code == 0
    assert BLOCKS[3] == f"$ python -m swarm plan --cluster swarm.json --place-gateway\n{out}"
    found = json.loads(said("plan", "--cluster", example, "--place-gateway", "--json").out)
    assert found["k"] > 0
    assert all(f"`{key}`" in PAGE for key in (*found, *(key for key in found["gateway"] if key != "exact")))


def test_every_field_is_explained() -> None:
    for entry in (cluster_file._File, cluster_file._Entry, cluster_file._DefaultsEntry):
        assert [field for field in entry.__struct_fields__ if f"`{field}`" not in PAGE] == []
