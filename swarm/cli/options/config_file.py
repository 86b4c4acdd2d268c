"""Where the configuration file is, and its reading; what stands in it is the business of ``settings``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from swarm.core.errors import ConfigError
from swarm.runtime.folders import config_folder

FILE_NAME = "config.toml"
FILE_VARIABLE = "SWARM_CONFIG"
MAX_FILE_BYTES = 1 << 20


def find_file(told: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Path, str] | None:
    """The file to read and who named it: ``--config``, else ``$SWARM_CONFIG``, else the user's own if there is one."""
    if told is not None:
        return told, "--config"
    if named := environ.get(FILE_VARIABLE, ""):
        return Path(named).expanduser(), FILE_VARIABLE
    try:
        own = config_folder(environ) / FILE_NAME
        return (own, "the user's own") if own.is_file() else None
    except (ConfigError, OSError):
        return None  # a user without a home has written none


def read_tables(path: Path, named_by: str) -> dict[str, object]:
    """The file's tables. Raises ``ConfigError`` with the line if it is no TOML, and if it cannot be read."""
    where = f"the configuration file {path} ({named_by})"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        hint = f"give an existing file, or leave {named_by} out"
        raise ConfigError(f"cannot read {where}: {error.strerror}", hint=hint) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{where} is over {MAX_FILE_BYTES} bytes", hint="docs/configuration.md has an example")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is no text in UTF-8", hint="save it as UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is no TOML: {error}", hint="docs/configuration.md has an example") from error
