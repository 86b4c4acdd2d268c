"""Where the configuration file is, and its reading; what stands in it is the business of ``settings``."""

from __future__ import annotations

import os
import select
import stat
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

from swarm.core.errors import ConfigError
from swarm.runtime.folders import config_folder

FILE_NAME = "config.toml"
FILE_VARIABLE = "SWARM_CONFIG"
MAX_FILE_BYTES = 1 << 20
PIPE_S = 10.0
"""So long a pipe, such as a shell's ``<(…)``, may take to bring the whole file: without a writer it never ends."""
_NO_FILES = (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)


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


def read_tables(path: Path, named_by: str, *, pipe_s: float = PIPE_S) -> dict[str, object]:
    """The file's tables. Raises ``ConfigError`` with the line if it is no TOML, and if it cannot be read.

    A pipe is read as well, for up to ``pipe_s``; of devices only the one that is empty.
    """
    where = f"the configuration file {path} ({named_by})"
    try:
        if stat.S_IFMT(path.stat().st_mode) in _NO_FILES and not path.samefile(os.devnull):
            raise ConfigError(f"{where} is a device or a socket", hint="give a file, or /dev/null for none")
        data = _read(path, pipe_s)
    except TimeoutError as error:
        hint = "write to it at once, and close it, or give a file"
        raise ConfigError(f"{where} is a pipe that did not end within {pipe_s:g} s", hint=hint) from error
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


def _read(path: Path, pipe_s: float) -> bytes:
    """Up to a byte more than a file may have. Waits for nobody, except ``pipe_s`` for a pipe: then ``TimeoutError``."""
    deadline_s = time.monotonic() + pipe_s
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        piped = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        data = b""
        while len(data) <= MAX_FILE_BYTES:
            if piped and not select.select([file], [], [], max(deadline_s - time.monotonic(), 0.0))[0]:
                raise TimeoutError
            piece = file.read(MAX_FILE_BYTES + 1 - len(data))
            if not piece:
                break
            data += piece
        return data
