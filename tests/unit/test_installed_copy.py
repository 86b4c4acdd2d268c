"""A program of somebody else, checked strictly against an installed copy: the public door has types, all of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import swarm

ROOT = Path(swarm.__file__).parents[1]

CONFIG = """
[mypy]
strict = true
[mypy-torch.*,transformers.*,accelerate.*,bitsandbytes.*,hivemind.*,huggingface_hub.*,aiohttp.*,zeroconf.*]
follow_imports = skip
"""
"""What takes a minute to read is passed over; what is passed over is Any, so the program asks nothing of it."""

PROGRAM = """
from typing import assert_type

from swarm import GenerationInterruptedError, GenerationResult, SwarmError, SwarmForCausalLM, SwarmModel, __version__
from swarm.client.blocking import Session, TextStream

assert_type(__version__, str)


def ask(peers: list[str]) -> str:
    with SwarmModel.connect("demo", initial_peers=peers, head="local", compression="int8") as model:
        assert_type(model, SwarmModel)
        result = model.generate("Hello", max_new_tokens=5, temperature=0.7)
        assert_type(result, GenerationResult)
        assert_type(result.token_ids, tuple[int, ...])
        assert_type(model.generate(["a", "b"]), list[GenerationResult])
        assert_type(model.generate("Hello", stream=True), TextStream)
        for piece in model.generate("Hello", stream=True):
            assert_type(piece, str)
        with model.session(max_tokens=64) as session:
            assert_type(session, Session)
            assert_type(session.generate(messages=[{"role": "user", "content": "Hi"}]), GenerationResult)
        model.generate("Hello", max_tokens=5)  # type: ignore[call-overload]
        model.generate("Hello", temperature="hot")  # type: ignore[call-overload]
        try:
            return model.generate("x").text
        except GenerationInterruptedError as error:
            assert_type(error.token_ids, tuple[int, ...])
            return error.text
        except SwarmError as error:
            return error.hint


async def ask_later(peers: list[str]) -> None:
    async with await SwarmModel.connect_async("demo", initial_peers=peers) as model:
        assert_type(await model.generate_async("Hello"), GenerationResult)
        async for piece in await model.stream_async("Hello"):
            assert_type(piece, str)
    await SwarmModel.connect_async("demo", colour="red")  # type: ignore[call-arg]
    SwarmModel.connect("demo", head="both")  # type: ignore[arg-type]


def with_transformers(peers: list[str]) -> None:
    with SwarmForCausalLM.from_pretrained("demo", initial_peers=peers) as model:
        assert_type(model, SwarmForCausalLM)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment that has swarm from a wheel's worth of files, and all else from this one."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(ROOT / "swarm", source / "swarm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--no-compile", "--target", site, source],
        check=True,
    )  # fmt: skip
    return folder / "venv" / "bin" / "python"


def test_a_strict_program_has_types_for_all_it_uses(installed: Path, tmp_path: Path) -> None:
    """Also where it is wrong: an ignored error that is none is an error."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(CONFIG)
    checker = [sys.executable, "-m", "mypy", "--python-executable", installed, "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [*checker, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
