"""A few tensors of a remote shard, kept in a file with holes, each written down with its hash once it is complete."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from swarm.core.errors import DownloadError
from swarm.models.download import Locate, RemoteBytes, put
from swarm.models.progress import Progress
from swarm.models.safetensors_file import TensorInfo

MAX_GAP_BYTES = 1 << 16
"""Tensors at most this far apart are fetched by one request; what lies between is thrown away."""


@dataclass(frozen=True, slots=True)
class SparseShard:
    """``path`` has the shard's ``size``, with holes; ``journal_path`` one JSON line for each tensor it holds."""

    path: Path
    journal_path: Path
    name: str
    size: int
    locate: Locate

    def journal(self) -> dict[str, str]:
        """Tensor name -> sha256 in hex of each complete tensor; a line cut short by a crash is passed over."""
        held: dict[str, str] = {}
        if self.path.is_file() and self.journal_path.is_file():
            for line in self.journal_path.read_text(encoding="utf-8").splitlines():
                try:
                    name, digest = json.loads(line)
                except (ValueError, TypeError):
                    continue
                held[str(name)] = str(digest)
        return held

    def forget(self, name: str) -> None:
        """Strike a tensor whose bytes turned out wrong, so that the next fetch brings it again."""
        kept = {held: digest for held, digest in self.journal().items() if held != name}
        text = "".join(f"{json.dumps(entry)}\n" for entry in kept.items())
        put(self.journal_path, text.encode())

    def fetch(self, infos: Mapping[str, TensorInfo], progress: Progress) -> None:
        """Fetch those of ``infos`` (names as in the shard) that are not held yet; what arrived survives a failure.

        Raises ``DownloadError``.
        """
        held = self.journal()
        total = sum(info.length for info in infos.values())
        done = sum(info.length for name, info in infos.items() if name in held)
        missing = {name: info for name, info in infos.items() if name not in held}
        progress(self.name, done, total)
        with self.path.open("r+b" if self.path.exists() else "w+b") as stream, self.journal_path.open("ab") as journal:
            os.truncate(stream.fileno(), self.size)
            if journal.tell():
                journal.write(b"\n")  # ends a line that a crash cut short

            def moved(count: int) -> None:  # a tensor may have gigabytes
                nonlocal done
                done += count
                progress(self.name, done, total)

            for run in _runs(missing):
                for name, digest in self._fetch_run(run, stream, moved):
                    stream.flush()
                    os.fsync(stream.fileno())
                    journal.write(json.dumps([name, digest]).encode() + b"\n")
                    journal.flush()

    def _fetch_run(
        self, run: list[tuple[str, TensorInfo]], stream: BinaryIO, moved: Callable[[int], None]
    ) -> Iterator[tuple[str, str]]:
        """Fetch tensors that lie close together; yield (name, sha256) of each as it is complete."""
        start, stop = run[0][1].offset, run[-1][1].offset + run[-1][1].length
        source = RemoteBytes(self.locate, name=self.name, start=start, stop=stop, ranges_required=True)
        chunks = iter(source)
        position, rest = start, memoryview(b"")
        for name, info in run:
            digest, left = hashlib.sha256(), info.length
            stream.seek(info.offset)
            while left:
                if not rest:
                    rest = memoryview(next(chunks, b""))
                    if not rest or source.total != self.size:
                        raise DownloadError(f"{self.name} is not {self.size} bytes long, as the hub's listing says")
                gap = min(max(info.offset - position, 0), len(rest))
                part = rest[gap : gap + left]
                position += gap + len(part)
                rest = rest[gap + len(part) :]
                digest.update(part)
                stream.write(part)
                left -= len(part)
                moved(len(part))
            yield name, digest.hexdigest()


def _runs(infos: Mapping[str, TensorInfo]) -> Iterable[list[tuple[str, TensorInfo]]]:
    """Tensors in order of offset, grouped where the gap between them is small."""
    runs: list[list[tuple[str, TensorInfo]]] = []
    end = -1
    for name, info in sorted(infos.items(), key=lambda item: item[1].offset):
        if info.length == 0:
            continue
        if runs and info.offset - end <= MAX_GAP_BYTES:
            runs[-1].append((name, info))
        else:
            runs.append([(name, info)])
        end = info.offset + info.length
    return runs
