"""A small file that a reader finds as it was or as it will be, whatever happens while it is written."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

USUAL_MODE = 0o666
"""Readable by whom the process's umask lets read it."""
OWNER_ONLY = 0o600


def replace_file(path: Path, data: bytes, *, lasting: bool, mode: int = USUAL_MODE) -> None:
    """Put ``data`` in place of what ``path`` holds, by a draft beside it that is renamed.

    ``lasting`` says that it must outlive a power cut too: the draft is on the disk before it takes the name, which may
    take some milliseconds. ``mode`` is the new file's, less the umask. Raises ``OSError``; no draft stays behind.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def read_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """The JSON object in ``path``; empty if there is none, or none that the first ``most_bytes`` bytes make."""
    try:
        with path.open("rb") as file:
            known = json.loads(file.read(most_bytes))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
