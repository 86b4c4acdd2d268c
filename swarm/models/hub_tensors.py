"""Tensors on a hub: whole shards where at least half of one is wanted, else only the byte ranges of the tensors.

On disk, under the commit's folder: ``S`` a whole shard, checked by the hub's sha256; ``S.part`` one on its way;
``S.header`` a header read by itself; ``S.sparse`` a file of the shard's size with holes where nothing was wanted, and
``S.journal``, one line for each tensor in it, with the sha256 of what was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from filelock import FileLock

from swarm.core.errors import DownloadError, ModelError
from swarm.models.download import CHECKING, Expected, Remote, RemoteBytes, disk_errors, download, put
from swarm.models.folder import by_file, locate_tensors, read_exactly
from swarm.models.hub_client import hub_errors, quiet_bar
from swarm.models.progress import Progress
from swarm.models.safetensors_file import LENGTH_BYTES, TensorInfo, header_length, parse_header, read_header
from swarm.models.sparse import SparseShard

WHOLE_SHARE = 0.5
"""From this share of a shard's bytes on, the whole shard is fetched."""
HEADER_GUESS_BYTES = 1 << 16
LABEL = "downloading weights"


@dataclass(frozen=True, slots=True)
class Repo:
    """One commit of one repository, the folder its weights are kept in, and the hub (None: the default one)."""

    name: str
    commit: str
    folder: Path
    endpoint: str | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """What the hub says of a file: bytes, and sha256 if it is kept as a large file."""

    size: int
    sha256: str | None


class HubTensors:
    """The tensors of one commit; implements ``TensorSource``."""

    def __init__(self, repo: Repo, files: Mapping[str, HubFile], index: Mapping[str, str] | None) -> None:
        self.index = index
        self._repo = repo
        self._files = files
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        if missing := sorted(set(index.values() if index else ()) - set(files)):
            raise ModelError(f"{repo.name} lists the shard {missing[0]}, which it does not have")

    def locate(self, names: Iterable[str] | None) -> dict[str, TensorInfo]:
        if names is None:
            names = self.index if self.index is not None else self._header("model.safetensors")
        return locate_tensors(names, self.index, self._header, self._repo.name)

    def fetch(self, infos: Mapping[str, TensorInfo], progress: Progress) -> None:
        plan: dict[str, tuple[list[str], int]] = {}
        for file, names in by_file(infos).items():
            wanted = sum(infos[name].length for name in names)
            whole = wanted >= WHOLE_SHARE * self._files[file].size
            plan[file] = ([], self._files[file].size) if whole else (names, wanted)
        total, done = sum(count for _, count in plan.values()), 0
        for file, (names, count) in plan.items():
            start = done
            self._fetch_shard(file, {name: infos[name] for name in names}, _shifted(progress, start, total))
            done += count
        progress(LABEL, total, total)

    def to_fetch_bytes(self) -> int:
        """Shards of which only parts are here count as a whole."""
        shards = set(self.index.values()) if self.index is not None else {"model.safetensors"}
        return sum(self._files[shard].size for shard in shards if self._whole(shard) is None)

    def read(self, infos: Mapping[str, TensorInfo]) -> Iterator[tuple[str, memoryview]]:
        for file, names in by_file(infos).items():
            whole = self._whole(file)
            journal = {} if whole else self._sparse(file).journal()
            with (whole or self._sparse(file).path).open("rb", buffering=0) as stream:
                for name in names:
                    data = read_exactly(stream.fileno(), infos[name])
                    if whole is None and hashlib.sha256(data).hexdigest() != journal.get(name):
                        self._sparse(file).forget(name)
                        raise DownloadError(
                            f"tensor {name} of {file} is damaged in the cache", hint="run it again, it is fetched anew"
                        )
                    yield name, data

    def _fetch_shard(self, file: str, ranges: Mapping[str, TensorInfo], progress: Progress) -> None:
        """Bring the tensors in ``ranges``, or the whole shard if there are none, onto the disk."""
        if self._whole(file) is not None:
            return
        with disk_errors(self._repo.folder):
            self._repo.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(str(self._path(file, ".lock"))):
                if self._whole(file) is not None:  # another process was faster
                    return
                if ranges:
                    self._sparse(file).fetch(ranges, progress)
                else:
                    self._fetch_whole(file, progress)

    def _fetch_whole(self, file: str, progress: Progress) -> None:
        expected = self._files[file]
        if expected.sha256 is None:  # so small that the hub keeps it in git; its client checks it
            from huggingface_hub import hf_hub_download

            repo = self._repo
            with hub_errors(repo.name, repo.commit):
                hf_hub_download(repo.name, file, revision=repo.commit, endpoint=repo.endpoint, tqdm_class=quiet_bar())
            return
        download(
            partial(self._locate, file), self._path(file), Expected(file, expected.sha256, expected.size), progress
        )
        for suffix in (".sparse", ".journal"):
            self._path(file, suffix).unlink(missing_ok=True)

    def _whole(self, file: str) -> Path | None:
        """The complete shard, fetched by us or by the hub's own client."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self._repo.name, file, revision=self._repo.commit)
        for path in (self._path(file), Path(found) if isinstance(found, str) else None):
            if path is not None and path.is_file() and path.stat().st_size == self._files[file].size:
                return path
        return None

    def _header(self, file: str) -> dict[str, TensorInfo]:
        if file not in self._headers:
            whole = self._whole(file)
            infos = read_header(whole) if whole else self._remote_header(file)
            # A file in the hub client's cache is called by its hash; here it goes by its name.
            self._headers[file] = {name: replace(info, file=file) for name, info in infos.items()}
        return self._headers[file]

    def _remote_header(self, file: str) -> dict[str, TensorInfo]:
        kept, size = self._path(file, ".header"), self._files[file].size
        if not kept.is_file():
            header = self._download_header(file, size)
            with disk_errors(self._repo.folder):
                kept.parent.mkdir(parents=True, exist_ok=True)
                put(kept, header)
        return parse_header(kept.read_bytes(), file=file, file_size=size)

    def _download_header(self, file: str, size: int) -> bytes:
        start = self._download_range(file, 0, min(HEADER_GUESS_BYTES, size))
        end = LENGTH_BYTES + header_length(start, file)
        if end > size:
            raise ModelError(f"{file} of {self._repo.name} is no safetensors file")
        if end > len(start):
            start += self._download_range(file, len(start), end)
        header = start[LENGTH_BYTES:end]
        parse_header(header, file=file, file_size=size)  # only a sound one is kept
        return header

    def _download_range(self, file: str, start: int, stop: int) -> bytes:
        remote = RemoteBytes(partial(self._locate, file), name=file, start=start, stop=stop, ranges_required=True)
        return b"".join(remote)

    def _sparse(self, file: str) -> SparseShard:
        return SparseShard(
            path=self._path(file, ".sparse"),
            journal_path=self._path(file, ".journal"),
            name=file,
            size=self._files[file].size,
            locate=partial(self._locate, file),
        )

    def _path(self, file: str, suffix: str = "") -> Path:
        return self._repo.folder / f"{file}{suffix}"

    def _locate(self, file: str) -> Remote:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # public, lazily exported

        url = hf_hub_url(self._repo.name, file, revision=self._repo.commit, endpoint=self._repo.endpoint)
        return Remote(url, build_hf_headers(library_name="swarm"))


def _shifted(progress: Progress, start: int, total: int) -> Progress:
    """Report one shard's bytes as part of all that is fetched; what is only checked keeps its own line, and speed."""

    def shifted(label: str, done: int, _total: int) -> None:
        progress(label if label.endswith(CHECKING) else LABEL, start + done, total)

    return shifted
