"""Odd surroundings are no bugs: closed streams, narrow encodings, full disks."""

from __future__ import annotations

import argparse
import errno
import io
import sys
from collections.abc import Callable

import pytest

from swarm.cli.main import _run


def run(command: Callable[[], object]) -> int:
    def called(_: argparse.Namespace) -> int:
        command()
        return 0

    parser = argparse.ArgumentParser()
    parser.set_defaults(run=called, verbose=0, log_level="warning")
    return _run(parser, [])


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    assert run(lambda: sys.stdout.write("so \N{GRINNING FACE}\n")) == 0
    assert raw.getvalue() == b"so \\U0001f600\n"


def test_closed_streams_are_empty_and_swallow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    read: list[str] = []

    def command() -> None:
        read.append(sys.stdin.read())
        sys.stderr.write("hello")
        assert not any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))

    assert run(command) == 0
    assert read == [""]
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_a_full_disk_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run(full) == 1
    assert "error: cannot write: No space left on device (free disk space" in capsys.readouterr().err
    assert run(lambda: dict[str, int]()["missing"]) == 1
    assert "this is a bug: KeyError" in capsys.readouterr().err
