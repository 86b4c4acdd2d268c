"""Commands in this process: what they say, and no traces afterwards."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from swarm.cli.main import main
from swarm.runtime.logs import NOISY


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    """A command sets up logging for its own standard error, which here is gone afterwards."""
    loggers = [logging.getLogger(name) for name in ("swarm", *NOISY)]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def said() -> Callable[..., Said]:
    """``said(*arguments)``: run ``python -m swarm`` with them, here."""

    def run(*arguments: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        return Said(code, out.getvalue(), err.getvalue())

    return run
