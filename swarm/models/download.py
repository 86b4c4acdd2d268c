"""Downloads that survive cuts: byte ranges, a ``.part`` file, a hash checked before a file gets its name."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from swarm.core.errors import DownloadError
from swarm.models.progress import Progress

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30.0
CHECKING = ": checking what is here"
"""Ends the label under which bytes are told that an earlier run has brought."""
TOLD_BYTES = 1 << 30
"""Reading less than this from a disk takes no time worth telling of."""
MAX_IDLE_ATTEMPTS = 5
"""Connections in a row that bring not one byte before a download gives up."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True, slots=True)
class Remote:
    """A URL and the headers it wants. Credentials in ``headers`` never follow a redirect to another host."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


Locate = Callable[[], Remote]
"""Called before each connection, since signed URLs expire."""


class _CarefulRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            following.remove_header("Authorization")
        return following


class RemoteBytes:
    """Bytes ``[start, stop)`` of a remote file, in order, reconnecting where a connection was cut.

    ``total`` is the size of the whole file once a server has said it. With ``ranges_required`` a server that ignores
    byte ranges is an error; without, the bytes before ``start`` are read and thrown away. Iterating raises
    ``DownloadError`` when ``MAX_IDLE_ATTEMPTS`` connections in a row bring nothing, or the server refuses.
    """

    def __init__(
        self,
        locate: Locate,
        *,
        name: str,
        start: int = 0,
        stop: int | None = None,
        ranges_required: bool = False,
        pause: Callable[[float], None] | None = None,
    ) -> None:
        self.total: int | None = None
        self._locate = locate
        self._name = name
        self._position = start
        self._stop = stop
        self._ranges_required = ranges_required
        self._pause = pause or time.sleep
        self._opener = urllib.request.build_opener(_CarefulRedirects())

    def __iter__(self) -> Iterator[bytes]:
        idle = 0
        while self._stop is None or self._position < self._stop:
            before = self._position
            reason = "the connection was cut"
            try:
                if (yield from self._one_connection()):
                    return
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 416 and self._stop is None and before > 0:
                        return  # nothing beyond what we hold; the hash decides
                    if error.code not in _RETRY_STATUS:
                        raise self._refused(error) from error
                    reason = f"the server answers {error.code} {error.reason}"
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = str(getattr(error, "reason", None) or error) or type(error).__name__
            idle = idle + 1 if self._position == before else 0
            if idle >= MAX_IDLE_ATTEMPTS:
                raise DownloadError(f"cannot download {self._name}: {reason}", hint="run it again, it resumes")
            if idle:
                self._pause(min(2.0**idle, 20.0))

    def _one_connection(self) -> Generator[bytes, None, bool]:
        remote = self._locate()
        last = "" if self._stop is None else self._stop - 1
        headers = {**remote.headers, "Accept-Encoding": "identity"}
        if self._position or self._stop is not None:
            headers["Range"] = f"bytes={self._position}-{last}"
        request = urllib.request.Request(remote.url, headers=headers)
        with self._opener.open(request, timeout=TIMEOUT_S) as response:
            skip, end = self._placement(response)
            while end is None or self._position < end:
                chunk = response.read(CHUNK_BYTES if end is None else min(CHUNK_BYTES, end - self._position + skip))
                if not chunk:
                    break
                dropped = min(skip, len(chunk))
                skip -= dropped
                if chunk := chunk[dropped:]:
                    self._position += len(chunk)
                    yield chunk
            # Without a known end only the close of the connection says that the file is complete.
            return end is None or self._position >= end

    def _placement(self, response: Any) -> tuple[int, int | None]:
        """Bytes to throw away first, and the position at which we are done (None: at the end of the stream)."""
        if response.status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != self._position:
                raise DownloadError(f"{self._name}: the server sent another byte range than asked for")
            self.total = int(match[3])
            return 0, self.total if self._stop is None else min(self._stop, self.total)
        if self._ranges_required:
            raise DownloadError(
                f"{self._name}: the server ignores byte ranges", hint="download the model and give its folder instead"
            )
        length = response.headers.get("Content-Length")
        self.total = int(length) if length and length.isdecimal() else None
        return self._position, self.total if self._stop is None else self._stop

    def _refused(self, error: urllib.error.HTTPError) -> DownloadError:
        hint = "check the access token" if error.code in (401, 403) else "check the name and the network's proxy"
        return DownloadError(f"cannot download {self._name}: the server answers {error.code} {error.reason}", hint=hint)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Say in ``DownloadError`` what went wrong with the cache folder: no room, no permission, no disk."""
    try:
        yield
    except OSError as error:
        raise DownloadError(
            f"cannot write to the cache {folder}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a folder that this user may write to and that has room",
        ) from error


@dataclass(frozen=True, slots=True)
class Expected:
    """What a file must be. ``size`` None: unknown beforehand; ``sha256`` in hex."""

    name: str
    sha256: str
    size: int | None = None


def put(path: Path, data: bytes) -> None:
    """Write a small file so that a reader finds it as it was or as it will be. Raises ``OSError``.

    A power cut may take it back; then it is asked for again.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_bytes(data)
    os.replace(unfinished, path)


def download(
    locate: Locate,
    target: Path,
    expected: Expected,
    progress: Progress,
    *,
    pause: Callable[[float], None] | None = None,
) -> None:
    """Fetch a file to ``target``, resuming from ``target.part`` if one is left from an earlier run.

    ``target`` appears only whole and with the right hash. Raises ``DownloadError`` naming the file when the network
    fails for good (the part stays for the next run) or hash or size is wrong (nothing stays).
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with part.open("a+b") as stream:
        done = _hash_existing(stream, digest, expected.name, progress)
        source = RemoteBytes(locate, name=expected.name, start=done, stop=None, pause=pause)
        if expected.size is None or done < expected.size:
            for chunk in source:
                stream.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress(expected.name, done, expected.size or source.total or 0)
        stream.flush()
        os.fsync(stream.fileno())
    if digest.hexdigest() != expected.sha256:
        part.unlink()
        raise DownloadError(
            f"{expected.name} does not match its sha256 (expected {expected.sha256[:16]}…, got "
            f"{digest.hexdigest()[:16]}…); nothing was kept",
            hint="run it again; if it happens twice, the source is damaged or not what it claims to be",
        )
    progress(expected.name, done, done)
    os.replace(part, target)


def _hash_existing(stream: Any, digest: Any, name: str, progress: Progress) -> int:
    """Read what an earlier run left; many gigabytes take a while, so that is told too."""
    total = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    count = 0
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
        count += len(chunk)
        if total > TOLD_BYTES:
            progress(f"{name}{CHECKING}", count, total)
    return count
