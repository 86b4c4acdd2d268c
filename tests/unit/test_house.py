"""The house's own limits: rooms and functions that one can hold in the head, tests and documents that fit the rooms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "swarm").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])

MOST_LINES = 400
MOST_FUNCTION_LINES = 39
MOST_MODULES = 30
OF_NO_PACKAGE = {"benchmarks", "packaging", "seed_models"}
"""Test folders for what lies beside ``swarm/``."""

FUNCTION = re.compile(r"^( *)(?:async )?def (\w+)", re.MULTILINE)
PATH = re.compile(r"(?<![\w/.~-])(?:swarm|benchmarks|tests|docs|examples|packaging)/[\w/-]+(?:\.\w+)?")
HASH_DOMAIN = re.compile(r"/\d+/?$")
"""``swarm/receipt/1`` is no path."""
MODULE = re.compile(r"(?<![\w/.-])(?:swarm|benchmarks)(?:\.[a-z_]\w*)+")


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Each function's name and its lines, from ``def`` to before what next stands no deeper (a signature's end aside).

    ``ast`` would say the same and takes twenty times as long.
    """
    for head in FUNCTION.finditer(text):
        end = re.compile(rf"^ {{0,{len(head[1])}}}(?![ \n)])", re.MULTILINE).search(text, head.end())
        yield head[2], text[head.start() : end and end.start()].rstrip().count("\n") + 1


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_how_lines_are_counted() -> None:
    text = (
        "class A:\n    def one(\n        self,\n    ) -> None:\n\n        def two(): pass\n        x\n\n"
        "    y = 1\ndef three():\n  z\n"
    )
    assert list(functions(text)) == [("one", 6), ("two", 1), ("three", 2)]


@pytest.mark.parametrize("folder", ["swarm", "tests", "benchmarks", "examples"])
def test_no_file_is_too_long(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    assert named([path for path in files if path.read_bytes().count(b"\n") > MOST_LINES]) == []


def test_no_function_is_too_long() -> None:
    found = [(path.name, *function) for path in MODULES for function in functions(path.read_text())]
    assert len(found) > 3000
    assert [function for function in found if function[2] > MOST_FUNCTION_LINES] == []


def test_no_room_is_crowded() -> None:
    rooms = {path.parent for path in MODULES}
    assert all((room / "__init__.py").exists() for room in rooms), "every room says what it is for"
    assert named([room for room in rooms if len(list(room.glob("*.py"))) > MOST_MODULES + 1]) == []


def test_unit_tests_lie_as_the_packages_do() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert len(folders) > 20
    mirrored = [folder for folder in folders if folder.parts and folder.parts[0] not in OF_NO_PACKAGE]
    assert [str(folder) for folder in mirrored if not (ROOT / "swarm" / folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_document_names_rooms_that_are_there(page: Path) -> None:
    text = page.read_text()
    paths = [path for path in PATH.findall(text) if not HASH_DOMAIN.search(path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [name for name in MODULE.findall(text) if not _is_there(name.split("."))] == []


def _is_there(parts: list[str]) -> bool:
    """True for a package, a module, or something in one."""
    places = [ROOT.joinpath(*some) for some in (parts, parts[:-1])]
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)
