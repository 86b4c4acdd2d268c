"""Where files go: the XDG base directories, each with a ``swarm`` folder of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Files that can be fetched again: ``$XDG_CACHE_HOME/swarm``, else ``~/.cache/swarm``. Not created here."""
    return _folder("XDG_CACHE_HOME", ".cache", environ)


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Settings: ``$XDG_CONFIG_HOME/swarm``, else ``~/.config/swarm``. Not created here."""
    return _folder("XDG_CONFIG_HOME", ".config", environ)


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What must last, such as keys: ``$XDG_DATA_HOME/swarm``, else ``~/.local/share/swarm``. Not created here."""
    return _folder("XDG_DATA_HOME", ".local/share", environ)


def _folder(variable: str, fallback: str, environ: Mapping[str, str]) -> Path:
    chosen = environ.get(variable, "")
    # The XDG specification has relative paths ignored.
    base = Path(chosen) if chosen and Path(chosen).is_absolute() else _home(environ) / fallback
    return base / "swarm"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    return Path(home) if home else Path.home()
