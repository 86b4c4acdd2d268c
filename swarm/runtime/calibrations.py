"""Calibrations on this machine's disk: one file for each model, in the data folder, found again by model id."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from swarm.core.errors import ConfigError, ModelError
from swarm.core.ids import ModelId
from swarm.runtime.folders import data_folder
from swarm.runtime.small_file import replace_file
from swarm.verification.verdicts.calibration import MAX_CALIBRATION_BYTES, Calibration

SUFFIX = ".calibration"
MAX_STEM_CHARS = 120


def calibration_path(model: ModelId, folder: Path | None = None) -> Path:
    """Where ``model``'s calibration lies by default: in ``folder``, else in ``calibrations`` in the data folder.

    The name is for people; the digest in it keeps models apart whose names look alike. Raises ``ConfigError`` for a
    user without a home.
    """
    name = str(model)
    stem = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).lstrip(".")[:MAX_STEM_CHARS]
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return (folder or data_folder() / "calibrations") / f"{stem}-{digest}{SUFFIX}"


def find_calibration(model: ModelId, folder: Path | None = None) -> Calibration | None:
    """The stored calibration of ``model``; None if there is none. Raises as ``read_calibration`` does."""
    path = calibration_path(model, folder)
    return read_calibration(path, model) if path.exists() else None


def read_calibration(path: Path, model: ModelId) -> Calibration:
    """The calibration in ``path``, checked through; ``ModelError`` if it is missing, damaged, or another model's."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CALIBRATION_BYTES + 1)
    except OSError as error:
        raise ModelError(
            f"cannot read the calibration {str(path)!r}: {error.strerror}", hint="make one with `swarm calibrate`"
        ) from error
    found = Calibration.from_bytes(data)
    if found.header.model != str(model):
        raise ModelError(
            f"{str(path)!r} calibrates {found.header.model}, not {model}", hint="give the file of this model"
        )
    return found


def store_calibration(calibration: Calibration, path: Path) -> int:
    """Write it so that a reader, whatever happens meanwhile, sees the file as it was or as it will be; its bytes.

    Raises ``ConfigError`` if it cannot be written.
    """
    data = calibration.to_bytes()
    try:
        replace_file(path, data, lasting=True)
    except OSError as error:
        raise ConfigError(
            f"cannot write the calibration {str(path)!r}: {error.strerror}", hint="choose another place with --out"
        ) from error
    return len(data)
