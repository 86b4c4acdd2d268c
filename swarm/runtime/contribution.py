"""What an identity has done for its swarms, kept beside its key over all its processes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from swarm.runtime.small_file import read_object, replace_file

_log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1024 * 1024
MAX_MODELS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Figures that only grow.

    Rows are tokens: ``decode_rows`` one by one, ``prefill_rows`` of prompts; ``…_row_layers`` counts each once for
    every layer it was computed through. ``answers`` were drawn here as the last server of a chain. ``heals`` are spans
    taken over from others. ``countersigned`` are sessions whose client signed that it was served and that the answer's
    links fit. ``sent_bytes`` is payload.
    """

    sessions: int = 0
    decode_rows: int = 0
    prefill_rows: int = 0
    decode_row_layers: int = 0
    prefill_row_layers: int = 0
    answers: int = 0
    heals: int = 0
    receipts: int = 0
    countersigned: int = 0
    sent_bytes: int = 0
    online_s: float = 0.0

    def __add__(self, other: Contribution) -> Contribution:
        return Contribution(**{name: getattr(self, name) + getattr(other, name) for name in NAMES})

    def __sub__(self, other: Contribution) -> Contribution:
        return Contribution(**{name: getattr(self, name) - getattr(other, name) for name in NAMES})

    def as_dict(self) -> dict[str, float]:
        """By name."""
        return {name: round(getattr(self, name), 1) for name in NAMES}

    @classmethod
    def of(cls, known: object) -> Self:
        """From ``as_dict``'s form; what is missing, or is no figure, counts as nothing."""
        found = known if isinstance(known, Mapping) else {}
        return cls(**{name: found[name] for name in NAMES if _is_figure(found.get(name))})


NAMES = tuple(field.name for field in fields(Contribution))


@dataclass(frozen=True, slots=True)
class Contributions:
    """One identity's, by model; ``since_s`` is when the first was noted, ``until_s`` the last (wall time)."""

    since_s: float
    until_s: float
    models: Mapping[str, Contribution]

    @property
    def total(self) -> Contribution:
        return sum(self.models.values(), Contribution())


@dataclass(frozen=True, slots=True)
class ContributionFile:
    """A small JSON file beside an identity's key. One process writes it, the one that holds the identity's lock."""

    path: Path

    @classmethod
    def of(cls, identity_path: Path) -> ContributionFile:
        """Of the identity whose key lies in ``identity_path``."""
        return cls(identity_path.with_name(identity_path.name + ".contributed.json"))

    def read(self) -> Contributions | None:
        """What is noted; None if nothing is, or nothing that can be read."""
        known = read_object(self.path, MAX_FILE_BYTES)
        models = known.get("models")
        if not isinstance(models, dict):
            return None
        since_s, until_s = (_time(known.get(name)) for name in ("since", "until"))
        return Contributions(since_s, until_s, {model: Contribution.of(found) for model, found in models.items()})

    def write(self, noted: Contributions) -> bool:
        """Replace the file; a reader, or a crash, finds it as it was or as it will be. False if the disk refused."""
        kept = dict(sorted(noted.models.items(), key=lambda item: item[1].online_s)[-MAX_MODELS:])
        text = json.dumps(
            {
                "since": round(noted.since_s, 3),
                "until": round(noted.until_s, 3),
                "models": {model: found.as_dict() for model, found in kept.items()},
            },
            indent=1,
        )
        try:
            replace_file(self.path, text.encode(), lasting=True)
        except OSError as error:
            _log.warning("could not note what was contributed in %s: %s", self.path, error.strerror)
            return False
        return True

    def set_aside(self) -> Path | None:
        """Move a file that cannot be read out of the way of the next one; where to, None if there was none."""
        if not self.path.exists() or self.read() is not None:
            return None
        aside = self.path.with_name(f"{self.path.name}.unreadable")
        with contextlib.suppress(OSError):
            os.replace(self.path, aside)
        return aside


def _time(value: Any) -> float:
    """Wall time that a calendar knows."""
    return float(value) if _is_figure(value) and value < 1e11 else 0.0


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300
