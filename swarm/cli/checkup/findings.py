"""What a check found, and the running of checks: side by side, each with a limit, told as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from swarm.core.errors import SwarmError

T = TypeVar("T")


class Level(StrEnum):
    """How bad it is; ``UNKNOWN`` is what could not be checked."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: which check, how bad, what, and what to do about it (empty if nothing)."""

    check: str
    level: Level
    what: str
    fix: str = ""


Report = Callable[[Finding], None]


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.WARNING, what, fix)


def error(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.ERROR, what, fix)


def unknown(check: str, what: str, fix: str) -> Finding:
    return Finding(check, Level.UNKNOWN, what, fix)


@dataclass(frozen=True, slots=True)
class Check:
    """Something to look at: ``run`` reports what it finds, one or several times, or raises a ``SwarmError``."""

    name: str
    run: Callable[[Report], Awaitable[None]]


async def run_checks(checks: Sequence[Check], report: Report, *, limit_s: float) -> None:
    """Run all at once. One that takes longer than ``limit_s`` is left, and one that fails is a finding."""
    await asyncio.gather(*(guarded(check, report, limit_s) for check in checks))


async def guarded(check: Check, report: Report, limit_s: float) -> None:
    """Run one so: it never raises."""
    try:
        async with asyncio.timeout(limit_s):
            await check.run(report)
    except TimeoutError:
        report(unknown(check.name, f"not done in {limit_s:g} s", "look again with a longer --limit"))
    except SwarmError as fault:
        report(error(check.name, fault.message, fault.hint))
    except Exception as bug:  # the other checks still say what they find
        what = f"the check itself failed: {type(bug).__name__}: {' '.join(str(bug).split())[:300]}"
        report(error(check.name, what, "please report this"))
