"""What several test directories share."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from swarm.models import ModelFiles, resolve
from swarm.runtime.logs import NOISY

os.environ["SWARM_CONFIG"] = os.devnull  # not the options of the person who runs these tests
sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: helpers for all of them lie here

# The same examples on every run and no wall-clock limit per example: a slow machine must not fail a law.
settings.register_profile("swarm", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "swarm"))


class SideBySide(LoadScopeScheduling):
    """Of ``--dist loadfile``: one worker has all tests of a file, and all files that ask one swarm, so it starts once.

    Those files use the fixture ``swarm30``, or name their group with ``xdist_group``. (xdist's own ``loadgroup`` writes
    groups into ids that pytest 9.2 does not read any more.)
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@cache
def group_of(file: str) -> str:
    """Which tests are one worker's; ``file`` is a path from the root of the repository."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    if (named := re.search(r'xdist_group\("(\w+)"\)', text)) is not None:
        return named[1]
    return "swarm30" if re.search(r"\b(swarm|model|local)30\b", text) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide | None:
    """Ours for ``--dist loadfile``, xdist's for everything else."""
    return SideBySide(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def untouched_logs() -> Iterator[None]:
    """A command that runs in this process sets up logging for its own standard error, which is gone afterwards.

    So it may have been before this test: a fixture of a whole file may run a command. Other packages' loggers are left
    as they are found, since those packages set them up when they are imported.
    """
    for name in ("swarm", "asyncio"):
        set_logger(logging.getLogger(name), [], logging.NOTSET, propagate=True)
    loggers = [logging.getLogger(name) for name in ("swarm", *NOISY)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        set_logger(logger, handlers, level, propagate=propagate)


def set_logger(logger: logging.Logger, handlers: list[logging.Handler], level: int, *, propagate: bool) -> None:
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The real demo model; fetched and converted once per machine (``make demo`` does the same)."""
    return resolve("demo")
