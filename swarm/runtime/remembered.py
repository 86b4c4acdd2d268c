"""Which layers of which model an identity held last, so that a restarted server takes the same ones again."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.runtime.small_file import read_object, replace_file

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
        held = read_object(self.path, MAX_FILE_BYTES).get(model)
        try:
            start, end = held  # type: ignore[misc]
            return Span(start, end) if isinstance(start, int) and isinstance(end, int) else None
        except (TypeError, ValueError, ConfigError):
            return None

    def put(self, model: str, span: Span) -> None:
        """Remember it. A reader sees the file as it was or as it will be; a full disk costs the memory, no more."""
        known = read_object(self.path, MAX_FILE_BYTES)
        known.pop(model, None)
        kept = dict(list(known.items())[-(MAX_MODELS - 1) :]) | {model: [span.start, span.end]}
        try:
            replace_file(self.path, json.dumps(kept, indent=1).encode(), lasting=False)
        except OSError as error:
            _log.warning("could not remember the span in %s: %s", self.path, error.strerror)
