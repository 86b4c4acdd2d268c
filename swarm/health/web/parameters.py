"""What a URL asks for, checked: a parameter that is unknown, repeated or out of bounds is refused by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.health.options import MAX_EVENTS_ASKED, MAX_HOURS
from swarm.health.web.errors import ApiError, bad_parameter

MAX_MODEL_CHARS = 300
MAX_NUMBER = 2**53 - 1
"""The largest whole number that every JSON reader holds exactly."""

Pairs = Sequence[tuple[str, str]]
"""A query string's parameters in order, decoded."""


@dataclass(frozen=True, slots=True)
class HistoryAsked:
    model: str
    hours: float


@dataclass(frozen=True, slots=True)
class EventsAsked:
    after: int
    limit: int


def read_history(query: Pairs) -> HistoryAsked:
    """``model`` (an id or a name) and ``hours`` above 0 up to ``MAX_HOURS`` (the default). ``ApiError`` for others."""
    given = _read(query, ("model", "hours"))
    model = given.get("model", "")
    if not model:
        raise ApiError(400, "model: say which, by its id or name", code="missing_parameter", param="model")
    if len(model) > MAX_MODEL_CHARS:
        raise bad_parameter("model", f"longer than {MAX_MODEL_CHARS} characters")
    hours = given.get("hours", str(MAX_HOURS))
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", hours, re.ASCII) or not 0 < float(hours) <= MAX_HOURS:
        raise bad_parameter("hours", f"a number above 0, up to {MAX_HOURS:g}")
    return HistoryAsked(model, float(hours))


def read_events(query: Pairs) -> EventsAsked:
    """``after``, a number of an event (default 0), and ``limit`` (default 100). ``ApiError`` for anything else."""
    given = _read(query, ("after", "limit"))
    return EventsAsked(
        after=_whole("after", given.get("after", "0"), 0, MAX_NUMBER),
        limit=_whole("limit", given.get("limit", "100"), 1, MAX_EVENTS_ASKED),
    )


def read_nothing(query: Pairs) -> None:
    """For URLs that take no parameters."""
    _read(query, ())


def read_digest(text: str) -> str:
    """The SHA-256 of a proof in lower-case hex; ``ApiError`` if it is none."""
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise bad_parameter("digest", "64 digits of lower-case hex")
    return text


def _read(query: Pairs, names: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in query:
        if name not in names:
            known = f"known are {', '.join(names)}" if names else "there are none here"
            raise ApiError(400, f"unknown parameter; {known}", code="unknown_parameter", param=name[:50])
        if name in given:
            raise bad_parameter(name, "given twice")
        given[name] = value
    return given


def _whole(name: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"\d{1,16}", text, re.ASCII) or not low <= int(text) <= high:
        raise bad_parameter(name, f"a whole number from {low} to {high}")
    return int(text)
