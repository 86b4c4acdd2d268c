"""Where files go: in the XDG base directories, each in a ``swarm`` folder of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from swarm.core.errors import ConfigError


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What must last, such as keys: ``$XDG_DATA_HOME/swarm``, else ``~/.local/share/swarm``. Not created here.

    Raises ``ConfigError`` for a user without a home, as in many containers.
    """
    return _folder("XDG_DATA_HOME", ".local/share", environ, "set HOME, XDG_DATA_HOME, or --identity")


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a user's settings are looked for: ``$XDG_CONFIG_HOME/swarm``, else ``~/.config/swarm``. As above."""
    return _folder("XDG_CONFIG_HOME", ".config", environ, "set HOME or XDG_CONFIG_HOME")


def _folder(variable: str, usual: str, environ: Mapping[str, str], hint: str) -> Path:
    chosen = Path(environ.get(variable, ""))
    if chosen.is_absolute():  # the XDG specification has relative paths ignored
        return chosen / "swarm"
    try:
        return Path(environ.get("HOME") or Path.home()) / usual / "swarm"
    except RuntimeError as error:
        raise ConfigError("this user has no home folder", hint=hint) from error
