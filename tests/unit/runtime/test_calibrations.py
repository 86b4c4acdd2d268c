"""Stored calibrations: found again by model id, never half written, never believed unread."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import ConfigError, ModelError
from swarm.core.ids import ModelId
from swarm.runtime.calibrations import calibration_path, find_calibration, read_calibration, store_calibration
from swarm.verification.verdicts.calibration import Calibration, calibrate

MODEL = ModelId("org/name", "v1", "0123456789abcdef")
OTHER = ModelId("org/name", "v2", "0123456789abcdef")


def make(model: ModelId = MODEL, seed: int = 0) -> Calibration:
    states = np.random.default_rng(seed).standard_normal((4, 80, 8)).cumsum(axis=0)
    return calibrate(model, states, np.ones(80, bool), text="test")


def test_found_again_by_the_models_id(tmp_path: Path) -> None:
    assert find_calibration(MODEL, tmp_path) is None
    size = store_calibration(make(), calibration_path(MODEL, tmp_path))
    store_calibration(make(OTHER, seed=1), calibration_path(OTHER, tmp_path))
    found, other = find_calibration(MODEL, tmp_path), find_calibration(OTHER, tmp_path)
    assert found is not None
    assert other is not None
    assert (found.digest(), other.digest()) == (make().digest(), make(OTHER, seed=1).digest())
    assert size == calibration_path(MODEL, tmp_path).stat().st_size
    assert len(list(tmp_path.iterdir())) == 2


def test_the_default_place_is_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = calibration_path(MODEL)
    assert path.parent == tmp_path / "swarm" / "calibrations"
    assert path.name.startswith("org-name-v1-0123456789abcdef-")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", ".hidden", "x" * 200, "ä/ö", "a\0b"])
def test_a_name_never_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    path = calibration_path(ModelId(name, "local", "0" * 16), tmp_path)
    assert path.parent == tmp_path
    assert path.name == os.path.basename(path.name)
    assert not path.name.startswith(".")
    assert len(path.name.encode()) < 200
    assert path.name.isascii()
    store_calibration(make(), path)


def test_names_that_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    names = ["a/b", "a-b", "a--b", "x" * 150 + "y", "x" * 150 + "z"]
    assert len({calibration_path(ModelId(name, "r", "0" * 16), tmp_path) for name in names}) == len(names)


def test_another_models_file_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "given"
    store_calibration(make(OTHER), path)
    assert read_calibration(path, OTHER).digest() == make(OTHER).digest()
    with pytest.raises(ModelError, match="calibrates org/name@v2"):
        read_calibration(path, MODEL)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read the calibration .*No such file.*swarm calibrate"):
        read_calibration(tmp_path / "none", MODEL)
    with pytest.raises(ModelError, match="Is a directory"):
        read_calibration(tmp_path, MODEL)
    path = calibration_path(MODEL, tmp_path)
    path.write_bytes(make().to_bytes()[:-1])
    with pytest.raises(ModelError, match="cut short"):
        find_calibration(MODEL, tmp_path)


@pytest.mark.parametrize("failing", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, failure: BaseException
) -> None:
    path = tmp_path / "kept"
    store_calibration(make(), path)
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(f"swarm.runtime.small_file.os.{failing}", fail)
    wanted = ConfigError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(wanted):
        store_calibration(make(seed=1), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write the calibration .*No such file.*--out"):
        store_calibration(make(), tmp_path / "no" / "such" / "folder")
