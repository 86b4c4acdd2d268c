"""Whole swarms in memory: one tiny model for all tests, virtual time, and a leak check after every test."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: harness and fakes lie beside the tests

from archives import calibrated
from fakes import FakeClient
from harness import Engines, Node, Swarm, leak_check
from tiny_model import LAYERS, Reference, write_model
from virtual_time import VirtualLoop

from swarm.core.spans import Span
from swarm.engine.replica import Replica, ReplicaRequest
from swarm.models.folder import open_folder
from swarm.models.progress import silent
from swarm.verification.verdicts.calibration import Calibration


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], VirtualLoop]]:
    return {"virtual": VirtualLoop}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("tiny-llama")
    write_model(path)
    return path


@pytest.fixture(scope="session")
def engines(folder: Path) -> Engines:
    return Engines(open_folder(folder))


@pytest.fixture(scope="session")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="session")
def replica(engines: Engines) -> Replica:
    """The whole tiny model's own weights."""
    return Replica.load(engines.files, ReplicaRequest(span=Span(0, LAYERS), threads=1), silent)


@pytest.fixture(scope="session")
def calibration(replica: Replica, engines: Engines) -> Calibration:
    """The tiny model calibrated."""
    return calibrated(replica, engines.files.model_id)


class _Errors(logging.Handler):
    """Collects what is logged as an error: in these tests nothing may be, unless a test says so."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def errors() -> Iterator[list[logging.LogRecord]]:
    handler = _Errors()
    loggers = [logging.getLogger("swarm"), logging.getLogger("asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.records
    for logger in loggers:
        logger.removeHandler(handler)


@pytest_asyncio.fixture
async def swarm(engines: Engines, reference: Reference, errors: list[logging.LogRecord]) -> AsyncIterator[Swarm]:
    built = Swarm(engines, reference)
    yield built
    await leak_check(built, errors)


@pytest_asyncio.fixture
async def client(swarm: Swarm) -> AsyncIterator[FakeClient]:
    built = FakeClient(swarm)
    yield built
    await built.close()


@pytest_asyncio.fixture
async def node(swarm: Swarm) -> Node:
    """One server that holds the whole model."""
    [started] = await swarm.serve("0:5")
    return started
