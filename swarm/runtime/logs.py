"""Logging for the commands: one line an event on standard error, quiet by default, tracebacks only when asked for."""

from __future__ import annotations

import copy
import json
import logging
import sys
from collections.abc import Callable
from typing import TextIO

from swarm.core.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error")

NOISY = ("hivemind", "asyncio", "torch", "transformers", "accelerate", "bitsandbytes", "urllib3", "filelock", "aiohttp")
"""Loggers of other packages: silent below CRITICAL unless ``verbosity`` is 2."""


def setup_logging(
    level: str = "warning", *, verbosity: int = 0, json_lines: bool = False, stream: TextIO | None = None
) -> None:
    """Send the package's log to ``stream`` (standard error if None) from ``level`` on.

    ``verbosity`` counts ``-v``: 1 is debug with tracebacks, 2 shows other packages too. ``json_lines`` writes one JSON
    object a line. Calling it again replaces the earlier setting. Raises ``ConfigError`` for an unknown level.
    """
    if level not in LEVELS:
        raise ConfigError(f"unknown log level {level!r}", hint=f"choose one of {', '.join(LEVELS)}")
    handler = _Handler(stream if stream is not None else sys.stderr)
    handler.setFormatter((_JsonLines if json_lines else _Lines)(tracebacks=verbosity >= 1))
    _attach("swarm", handler, logging.DEBUG if verbosity >= 1 else logging.getLevelName(level.upper()))
    for name in NOISY:
        _attach(name, handler, logging.DEBUG if verbosity >= 2 else logging.CRITICAL)


def make_room(before: Callable[[], None] | None) -> None:
    """Have ``before`` called ahead of each log line: who redraws a line of the terminal takes it away then."""
    for handler in logging.getLogger("swarm").handlers:
        if isinstance(handler, _Handler):
            handler.before = before


def _attach(name: str, handler: logging.Handler, level: int) -> None:
    logger = logging.getLogger(name)
    for old in [old for old in logger.handlers if isinstance(old, _Handler)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


class _Handler(logging.StreamHandler[TextIO]):
    """A stream handler that can be told from other people's. ``before`` makes room on the terminal."""

    before: Callable[[], None] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self.before is not None:
            self.before()
        super().emit(record)


class _Lines(logging.Formatter):
    """``12:34:56 warning server.service: text``; what peers wrote cannot break the line or drive the terminal."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        line = copy.copy(record)
        line.levelname = line.levelname.lower()
        line.name = line.name.removeprefix("swarm.")
        line.msg, line.args = printable(record.getMessage()), None
        if not self._tracebacks:
            line.exc_info = line.exc_text = line.stack_info = None
        return super().format(line)


class _JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (since 1970, in s), ``level``, ``logger``, ``message``, maybe ``traceback``."""

    def __init__(self, *, tracebacks: bool) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._tracebacks and record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event)


def printable(text: str) -> str:
    """The text on one line: control characters (line ends, terminal sequences) written as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
