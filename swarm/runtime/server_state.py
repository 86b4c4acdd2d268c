"""What a running server is doing, told to commands of the same user on the same machine."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            try:
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump({"pid": os.getpid(), "state": state, **fields}, file)
                os.replace(draft, self.path)
            finally:
                draft.unlink(missing_ok=True)

    def read(self, pid: int) -> dict[str, Any]:
        """What process ``pid`` last said, its ``state`` and perhaps more; empty if that was nothing."""
        try:
            with self.path.open("rb") as file:
                said = json.loads(file.read(MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        ours = isinstance(said, dict) and said.get("pid") == pid and isinstance(said.get("state"), str)
        return said if ours else {}

    def forget(self) -> None:
        """The server has gone."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
