"""Where files go: in the XDG base directories, each in a ``swarm`` folder of our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """What must last, such as keys: ``$XDG_DATA_HOME/swarm``, else ``~/.local/share/swarm``. Not created here."""
    chosen = Path(environ.get("XDG_DATA_HOME", ""))
    home = Path(environ.get("HOME") or Path.home())
    # The XDG specification has relative paths ignored.
    return (chosen if chosen.is_absolute() else home / ".local/share") / "swarm"
