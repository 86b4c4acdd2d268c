"""Commands in this process: what they say, and no traces afterwards."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest

from swarm.cli.main import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def said() -> Callable[..., Said]:
    """``said(*arguments)``: run ``python -m swarm`` with them, here."""

    def run(*arguments: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
        return Said(code, out.getvalue(), err.getvalue())

    return run
