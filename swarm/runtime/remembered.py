"""Which layers of which model an identity held last, so that a restarted server takes the same ones again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.core.errors import ConfigError
from swarm.core.spans import Span

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 64 * 1024
MAX_MODELS = 64


@dataclass(frozen=True, slots=True)
class RememberedSpans:
    """A small JSON file beside an identity's key file, by default in the data folder: model id to ``[start, end]``."""

    path: Path

    @classmethod
    def of(cls, identity_path: Path) -> RememberedSpans:
        """Of the identity whose key lies in ``identity_path``."""
        return cls(identity_path.with_name(identity_path.name + ".spans.json"))

    def get(self, model: str) -> Span | None:
        """What was held last; None if nothing, or nothing that can be read."""
        held = self._read().get(model)
        try:
            start, end = held  # type: ignore[misc]
            return Span(start, end) if isinstance(start, int) and isinstance(end, int) else None
        except (TypeError, ValueError, ConfigError):
            return None

    def put(self, model: str, span: Span) -> None:
        """Remember it. A reader sees the file as it was or as it will be; a full disk costs the memory, no more."""
        known = self._read()
        known.pop(model, None)
        kept = dict(list(known.items())[-(MAX_MODELS - 1) :]) | {model: [span.start, span.end]}
        draft = self.path.with_name(f"{self.path.name}.{secrets.token_hex(4)}")
        try:
            draft.write_text(json.dumps(kept, indent=1))
            os.replace(draft, self.path)
        except OSError as error:
            _log.warning("could not remember the span in %s: %s", self.path, error.strerror)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                known = json.loads(file.read(MAX_FILE_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}
