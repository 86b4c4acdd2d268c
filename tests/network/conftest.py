"""Real processes on loopback: servers that are started, watched and ended, and a swarm that several files share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes_at_hand import Launcher, ServerProcess
from processes_at_hand import nursery as nursery

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: directory_nodes lies beside the tests

from directory_nodes import create as create

from benchmarks.nursery import Nursery
from swarm.client.blocking import SwarmModel
from swarm.models import ModelFiles


@pytest.fixture
def launcher(tmp_path: Path, nursery: Nursery | None) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, nursery)
    yield launcher
    launcher.end()


@pytest.fixture(scope="module")
def module_launcher(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("servers"), nursery)
    yield launcher
    launcher.end()


@pytest.fixture(scope="session")
def swarm30(
    demo_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None
) -> Iterator[list[ServerProcess]]:
    """Three float32 servers of ten layers each. Several files share them: leave them running and idle."""
    launcher = Launcher(tmp_path_factory.mktemp("swarm30"), nursery)
    try:
        yield launcher.chain("0:10", "10:20", "20:30", options=["--dtype", "float32"])
    finally:
        launcher.end()


Connect = Callable[..., SwarmModel]


@contextmanager
def joining() -> Iterator[Connect]:
    """Clients that are closed at the end: those whose servers are gone would tell it in others' tests."""
    made: list[SwarmModel] = []

    def join(server: ServerProcess, **options: Any) -> SwarmModel:
        made.append(SwarmModel.connect("demo", initial_peers=[server.address], host="127.0.0.1", **options))
        return made[-1]

    try:
        yield join
    finally:
        for model in made:
            model.close()


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    """``connect(server, **options)``: a client of the demo model that joins through ``server``."""
    with joining() as join:
        yield join


@pytest.fixture(scope="session")
def model30(swarm30: list[ServerProcess]) -> Iterator[SwarmModel]:
    """A client of ``swarm30`` with the remote head."""
    with joining() as join:
        yield join(swarm30[0])


@pytest.fixture(scope="session")
def local30(swarm30: list[ServerProcess]) -> Iterator[SwarmModel]:
    """A client of ``swarm30`` that keeps embeddings and head itself."""
    with joining() as join:
        yield join(swarm30[0], head="local")


@pytest.fixture(scope="session")
def free_tokens() -> Callable[[SwarmModel], dict[str, int]]:
    """``free_tokens(model)``: the KV room of each server of a chain, by peer id, as their ACCEPTs tell it."""

    def ask(model: SwarmModel) -> dict[str, int]:
        async def look() -> dict[str, int]:
            opened = await model._inner._opener.open(1, lambda progress: None)
            try:
                return {peer: load.kv_free_tokens for peer, load in opened.chain.loads.items()}
            finally:
                await opened.close()

        return model._loop.run(look())

    return ask


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool], float], None]:
    """``eventually(condition, within_s)``: asks again until it holds; fails if it never does."""

    def wait(condition: Callable[[], bool], within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline_s, f"did not come about in {within_s:g} s"
            time.sleep(0.05)

    return wait
