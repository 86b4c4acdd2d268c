"""What a running server is doing, told to commands of the same user on the same machine."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.runtime.small_file import OWNER_ONLY, read_object, replace_file

MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerState:
    """A small JSON file beside an identity's key, there while the server runs (or where it was killed).

    ``pid`` tells whose it is; the identity's lock tells whether that one lives.
    """

    path: Path

    @classmethod
    def of(cls, identity_path: Path) -> ServerState:
        """Of the identity whose key lies in ``identity_path``."""
        return cls(identity_path.with_name(identity_path.name + ".state.json"))

    def tell(self, state: str, **fields: object) -> None:
        """Replace what is said; nobody but the owner reads it. A full disk costs the news, no more."""
        text = json.dumps({"pid": os.getpid(), "state": state, **fields})
        with contextlib.suppress(OSError):
            replace_file(self.path, text.encode(), lasting=False, mode=OWNER_ONLY)

    def read(self, pid: int) -> dict[str, Any]:
        """What process ``pid`` last said, its ``state`` and perhaps more; empty if that was nothing."""
        said = read_object(self.path, MAX_FILE_BYTES)
        return said if said.get("pid") == pid and isinstance(said.get("state"), str) else {}

    def forget(self) -> None:
        """The server has gone."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
