"""``swarm pause`` and ``resume``: which server they reach, and what they say."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.commands import pause, resume
from swarm.cli.hosting.control import done, state_text
from swarm.core.errors import ConfigError
from swarm.runtime.identity import IdentityLock, holder_of
from swarm.runtime.server_state import ServerState


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that this process, as the server, was sent."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: numbers.append(number))
        for number in (signal.SIGUSR1, signal.SIGUSR2)
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


def options(key: Path, **given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"identity": key, "wait": 0.0, "json": False} | given)


def test_they_reach_who_holds_the_key(tmp_path: Path, heard: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    with IdentityLock(key):
        assert holder_of(key) == os.getpid()
        ServerState.of(key).tell("paused", why="owner")
        assert pause.run(options(key, wait=5.0)) == 0
        ServerState.of(key).tell("serving")
        assert resume.run(options(key, wait=5.0, json=True)) == 0
    assert heard == [signal.SIGUSR1, signal.SIGUSR2]
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Paused.")
    assert json.loads(second)["state"] == "serving"


@pytest.mark.parametrize("before", ["nobody", "stale"])
def test_nobody_is_signalled_where_no_server_runs(tmp_path: Path, heard: list[int], before: str) -> None:
    key = tmp_path / "key"
    if before == "stale":  # a killed process's lock file names a pid that may be anybody's by now
        key.with_name("key.lock").write_text(str(os.getpid()))
    assert holder_of(key) is None
    with pytest.raises(ConfigError, match="no server runs with the key"):
        pause.run(options(key))
    assert not heard


def test_other_commands_that_hold_a_key_are_not_signalled(tmp_path: Path, heard: list[int]) -> None:
    """A bootstrap peer or a verifier would end of it."""
    key = tmp_path / "key"
    with IdentityLock(key):
        with pytest.raises(ConfigError, match="is no server"):
            pause.run(options(key))
        ServerState.of(key).tell("starting")
        assert pause.run(options(key)) == 0
    assert heard == [signal.SIGUSR1]


@pytest.mark.parametrize("holder", ["0", "-1", "99999999999999999999", "²", ""])
def test_what_is_no_process_is_not_signalled(tmp_path: Path, heard: list[int], holder: str) -> None:
    """Process 0 would be our own group."""
    key = tmp_path / "key"
    with IdentityLock(key):
        key.with_name("key.lock").write_text(holder)
        with pytest.raises(ConfigError, match="no server runs with the key"):
            pause.run(options(key))
    assert not heard


@pytest.mark.parametrize("said", ['{"pid": %d}', '{"pid": %d, "state": ["paused"]}', "[%d]", '{"pid": %d, "state'])
def test_a_state_that_makes_no_sense_is_none(tmp_path: Path, said: str) -> None:
    state = ServerState.of(tmp_path / "key")
    state.path.write_text(said % os.getpid())
    assert state.read(os.getpid()) == {}


@pytest.mark.parametrize(
    ("said", "paused", "resumed"),
    [
        ({}, True, True),
        ({"state": "starting"}, True, True),
        ({"state": "serving"}, False, True),
        ({"state": "draining"}, False, False),
        ({"state": "paused"}, True, False),
        ({"state": "resting", "until": 0.0}, False, True),
        ({"state": "waiting"}, False, True),
        ({"state": "resting", "until": 1e300}, False, True),
    ],
)
def test_when_it_is_done(said: dict[str, Any], paused: bool, resumed: bool) -> None:
    assert done(said, resume=False) is paused
    assert done(said, resume=True) is resumed
    assert all(state_text(said, resume=resume).endswith(".") for resume in (False, True))


def test_the_way_back_names_the_key_that_was_named(
    tmp_path: Path, heard: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it `resume` would reach another server, or none."""
    key = tmp_path / "second key"
    with IdentityLock(key):
        ServerState.of(key).tell("paused")
        assert pause.run(options(key)) == 0
    assert capsys.readouterr().out == f"Paused. `python -m swarm resume --identity '{key}'` goes on.\n"
    assert state_text({"state": "paused"}, resume=False) == "Paused. `python -m swarm resume` goes on."


def test_a_wait_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--wait"):
        resume.run(options(tmp_path / "key", wait=float("nan")))
