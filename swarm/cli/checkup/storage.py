"""What lies on disks: folders, key files, the store of reputations, room for weights."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from swarm.cli.checkup.findings import Finding, Report, error, ok, warning
from swarm.core.errors import ConfigError
from swarm.core.keys import Identity
from swarm.models.progress import human_bytes
from swarm.models.resolve import default_cache
from swarm.runtime.clock import SystemClock
from swarm.runtime.folders import data_folder
from swarm.runtime.reputation import ReputationStore

SPARE_BYTES = 1_000_000_000
"""What a disk should have left beside the weights: logs, stores, others' files."""
MAX_KEY_BYTES = 4096


async def look_at_folders(report: Report) -> None:
    report(check_writable("data folder", data_folder(), "XDG_DATA_HOME"))
    report(check_writable("cache folder", default_cache(), "XDG_CACHE_HOME"))


def check_writable(name: str, folder: Path, variable: str) -> Finding:
    """Whether files can be made in ``folder``, or where it would be made: by making one, which is gone afterwards."""
    place = _nearest(folder)
    fix = f"give this user a folder that it may write to, or set {variable} to one"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
            file.flush()
    except OSError as fault:
        return error(name, f"{folder} cannot be written: {place}: {fault.strerror}", fix)
    return ok(name, f"{folder} can be {'written' if place == folder else 'made'}")


def check_key(path: Path) -> Finding:
    """Whether the key file holds a key that nobody else can read, if it is there already."""
    name = "key"
    try:
        with path.open("rb") as file:
            found, data = os.fstat(file.fileno()), file.read(MAX_KEY_BYTES)
        peer = Identity.from_protobuf(data).peer_id
    except FileNotFoundError:
        return ok(name, f"{path} is made at the first start")
    except OSError as fault:
        return error(name, f"{path} cannot be read: {fault.strerror}", "chown it to this user, or give --identity")
    except ConfigError:
        return error(name, f"{path} holds no key", "move it away: a new key is made, and with it a new peer")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        what = f"{path} can be read by others (mode {stat.S_IMODE(found.st_mode):o}), who could pose as this server"
        return warning(name, what, f"chmod 600 {path}; if somebody may have read it, move it away for a new one")
    return ok(name, f"{path}, peer …{peer[-8:]}")


def check_reputation(path: Path) -> Finding:
    """Whether the store of reputations opens, if there is one; ``ConfigError`` if it does not."""
    if not os.path.exists(path):
        return ok("reputation", "nothing is remembered of any server yet")
    with ReputationStore(path, SystemClock()) as store:
        known = store.known()
    ejected = sum(bool(one.standing.ejected) for one in known)
    return ok(
        "reputation", f"{len(known)} servers remembered, {ejected} of them ejected" if known else "no server remembered"
    )


def free_bytes(folder: Path) -> int:
    """Free for this user on the disk where ``folder`` is, or would be."""
    return shutil.disk_usage(_nearest(folder)).free


def _nearest(folder: Path) -> Path:
    """The folder, or the one above it that this user can see; unlike ``Path.exists`` a forbidden one is not there."""
    return next((one for one in (folder, *folder.parents) if os.path.exists(one)), Path("/"))


def judge_disk(free: int, needed: int, where: str) -> Finding:
    """Bytes free and bytes still to be fetched."""
    wants = f", {human_bytes(needed)} to be fetched" if needed else ""
    what = f"{human_bytes(free)} free for downloads in {where}{wants}"
    fix = "free some, or set XDG_CACHE_HOME to a larger disk"
    if free < needed:
        return error("disk", what, fix)
    return warning("disk", what, fix) if free < needed + SPARE_BYTES else ok("disk", what)
