"""The machine's own: Python, packages, memory, open files. Figures in, verdicts out."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, metadata, requires, version

import psutil
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from swarm.cli.checkup.findings import Finding, Report, error, ok, unknown, warning
from swarm.core.version import VERSION
from swarm.models.progress import human_bytes
from swarm.runtime.files import raise_open_file_limit

PACKAGE = "swarm"
LEAST_OPEN_FILES = 256
ENOUGH_OPEN_FILES = 4096
LEAST_MEMORY_BYTES = 500_000_000
"""Python and its libraries take so much before the first layer."""
ENOUGH_MEMORY_BYTES = 2_000_000_000


async def look_at_packages(report: Report) -> None:
    try:
        needed = requires(PACKAGE) or []
        wanted = str(metadata(PACKAGE)["Requires-Python"] or "")
    except PackageNotFoundError:
        report(unknown("python", f"{platform.python_version()}, swarm {VERSION} runs without being installed: what it "
                       "requires is not known", "install it with `pip install -e .`"))  # fmt: skip
        return
    report(judge_python(platform.python_version(), wanted))
    for finding in judge_packages(needed, installed_version):
        report(finding)


def installed_version(name: str) -> str | None:
    """The version of an installed package; None if it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def judge_python(running: str, wanted: str) -> Finding:
    """``wanted`` is a version specifier like ``>=3.11``."""
    if SpecifierSet(wanted).contains(running, prereleases=True):
        return ok("python", f"{running} (swarm {VERSION} wants {wanted or 'any'})")
    return error("python", f"{running}, and swarm {VERSION} wants {wanted}", "make the environment with another Python")


def judge_packages(needed: Iterable[str], installed: Callable[[str], str | None]) -> list[Finding]:
    """``needed`` are requirements as in a package's metadata; those of extras do not count. One finding if all is well,
    else one for each package that is not."""
    wrong, count = [], 0
    for requirement in map(Requirement, needed):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        count += 1
        found, wanted = installed(requirement.name), f"{requirement.name}{requirement.specifier}"
        if found is None:
            wrong.append(error("packages", f"{requirement.name} is missing", f"pip install '{wanted}'"))
        elif not requirement.specifier.contains(found, prereleases=True):
            what = f"{requirement.name} {found} is installed, and {requirement.specifier} is needed"
            wrong.append(error("packages", what, f"pip install '{wanted}'"))
    return wrong or [ok("packages", f"all {count} in versions that fit")]


async def look_at_memory(report: Report) -> None:
    memory = psutil.virtual_memory()
    report(judge_memory(int(memory.available), int(memory.total)))


def judge_memory(available_bytes: int, total_bytes: int) -> Finding:
    what = f"{human_bytes(available_bytes)} of {human_bytes(total_bytes)} free"
    if available_bytes < LEAST_MEMORY_BYTES:
        return error("memory", f"{what}: not even Python's libraries fit", "end other programs")
    if available_bytes < ENOUGH_MEMORY_BYTES:
        return warning("memory", f"{what}: few layers will fit", "end other programs, or use --quantization int8")
    return ok("memory", what)


async def look_at_open_files(report: Report) -> None:
    report(judge_open_files(raise_open_file_limit()))


def judge_open_files(limit: int) -> Finding:
    """``limit`` is how many files and sockets a process may have open; negative: any number."""
    if 0 <= limit < ENOUGH_OPEN_FILES:
        fix = f"raise the hard limit: `ulimit -Hn {ENOUGH_OPEN_FILES}`, LimitNOFILE= of a unit, or limits.conf"
        what = f"{limit} at most: enough for some {max(limit // 8, 1)} sessions"
        return (error if limit < LEAST_OPEN_FILES else warning)("open files", what, fix)
    return ok("open files", "any number" if limit < 0 else f"{limit} at most")
