"""A small file is whole, whoever reads it and whatever the disk says."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from swarm.runtime.small_file import OWNER_ONLY, read_object, replace_file


@pytest.mark.parametrize("lasting", [False, True])
def test_it_is_on_the_disk_first_only_where_it_must_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool
) -> None:
    path, synced = tmp_path / "file", []
    monkeypatch.setattr("swarm.runtime.small_file.os.fsync", lambda _: synced.append(path.exists()))
    replace_file(path, b"{}", lasting=lasting)
    assert synced == ([False] if lasting else []), "before it takes the name"
    assert path.read_bytes() == b"{}"


def test_what_is_its_owners_is_nobody_elses(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        replace_file(tmp_path / "private", b"1", lasting=False, mode=OWNER_ONLY)
        replace_file(tmp_path / "usual", b"1", lasting=False)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "usual")] == [0o600, 0o644]


def test_a_full_disk_leaves_what_was_there_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"before", lasting=False)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("swarm.runtime.small_file.os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"after", lasting=True)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("file", b"before")]


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"a": 1', "[" * 100_000, "\ud800", " " * 64 + '{"a": 1}'])
def test_what_is_no_small_object_is_an_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    assert read_object(path, 64) == {}, "none there"
    path.write_bytes(text.encode(errors="surrogatepass"))
    assert read_object(path, 64) == {}


def test_an_object_of_just_the_size_is_read(tmp_path: Path) -> None:
    path, data = tmp_path / "file", json.dumps({"a": [1, None]}).encode()
    replace_file(path, data, lasting=False)
    assert read_object(path, len(data)) == {"a": [1, None]}
    assert read_object(path, len(data) - 1) == {}
