"""A model in a local folder, as ``save_pretrained`` writes it or a hub snapshot leaves it."""

from __future__ import annotations

import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from swarm.core.errors import ModelError
from swarm.models.files import ModelFiles, text_config
from swarm.models.progress import Progress
from swarm.models.safetensors_file import TensorInfo, read_header

MANIFEST = "swarm-model.json"
"""Optional: name and revision a prepared folder goes by, sizes and hashes of its files."""
FROM_FOLDER = "local"
"""The revision of a model whose folder names none."""
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 * 1024 * 1024
READ_BYTES = 1 << 24
MAPPED_BYTES = 1 << 16


def open_folder(folder: Path) -> ModelFiles:
    """Open the model in ``folder``; no weights are read.

    Raises ``ModelError`` naming what is missing (folder, config.json, safetensors, tokenizer.json) or wrong.
    """
    if not folder.is_dir():
        raise ModelError(f"no model folder {folder}", hint="give a folder, a Hugging Face id like org/name, or demo")
    config = text_config(read_json(folder / "config.json", required=True), folder.name)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise ModelError(
            f"{folder} has no tokenizer.json",
            hint="load it with AutoTokenizer and save_pretrained it there: that writes the fast tokenizer",
        )
    manifest = read_json(folder / MANIFEST) or {}
    return ModelFiles(
        name=plain_name(str(manifest.get("name") or folder.resolve().name)),
        revision=plain_name(str(manifest.get("revision") or FROM_FOLDER)),
        config=config,
        generation=read_json(folder / "generation_config.json") or {},
        tokenizer_path=tokenizer,
        tokenizer_config_path=path if (path := folder / "tokenizer_config.json").is_file() else None,
        chat_template=chat_template(folder / "chat_template.jinja", folder / "tokenizer_config.json"),
        source=FolderTensors(folder),
    )


class FolderTensors:
    """Tensors of a folder's safetensors files, read with ``pread``: nothing is mapped, nothing is held twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        self.index: Mapping[str, str] | None = None
        if (folder / INDEX).is_file():
            self.index = parse_index(read_json(folder / INDEX, required=True), folder.name)
        elif not (folder / SINGLE).is_file():
            raise no_safetensors(str(folder), [path.name for path in folder.iterdir()])

    def locate(self, names: Iterable[str] | None) -> dict[str, TensorInfo]:
        if names is None:
            names = self.index if self.index is not None else self._header(SINGLE)
        return locate_tensors(names, self.index, self._header, str(self._folder))

    def fetch(self, infos: Mapping[str, TensorInfo], progress: Progress) -> None:
        """Nothing to do: the files are here."""

    def to_fetch_bytes(self) -> int:
        return 0

    def read(self, infos: Mapping[str, TensorInfo]) -> Iterator[tuple[str, memoryview]]:
        for file, group in by_file(infos).items():
            with (self._folder / file).open("rb", buffering=0) as stream:
                for name in group:
                    yield name, read_exactly(stream.fileno(), infos[name])

    def _header(self, file: str) -> dict[str, TensorInfo]:
        if file not in self._headers:
            self._headers[file] = read_header(self._folder / file)
        return self._headers[file]


def locate_tensors(
    names: Iterable[str], index: Mapping[str, str] | None, header: Any, where: str
) -> dict[str, TensorInfo]:
    """Look each name up in its shard's header; ``ModelError`` if the checkpoint lacks it."""
    found: dict[str, TensorInfo] = {}
    for name in names:
        file = SINGLE if index is None else index.get(name)
        info = header(file).get(name) if file is not None else None
        if info is None:
            raise ModelError(f"the checkpoint in {where} has no tensor {name}", hint="is it complete?")
        found[name] = info
    return found


def by_file(infos: Mapping[str, TensorInfo]) -> dict[str, list[str]]:
    """Tensor names grouped by file, in the order in which they lie there."""
    groups: dict[str, list[str]] = {}
    for name in sorted(infos, key=lambda name: (infos[name].file, infos[name].offset)):
        groups.setdefault(infos[name].file, []).append(name)
    return groups


def read_exactly(descriptor: int, info: TensorInfo) -> memoryview:
    """One tensor's bytes from an open file; ``ModelError`` if the file ends first."""
    # Anonymous pages go back to the system as soon as the tensor is dropped; a heap would keep and fragment them.
    data = memoryview(mmap.mmap(-1, info.length)) if info.length >= MAPPED_BYTES else memoryview(bytearray(info.length))
    done = 0
    while done < info.length:
        count = os.preadv(descriptor, [data[done : done + READ_BYTES]], info.offset + done)
        if count == 0:
            raise ModelError(f"{info.file} ends before its tensors do", hint="download it again")
        done += count
    return data


def parse_index(value: Any, where: str) -> dict[str, str]:
    """The name -> shard map of an ``index.json``; ``ModelError`` if malformed or a shard is not a plain file name."""
    weights = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise ModelError(f"{INDEX} of {where} has no weight_map")
    for name, file in weights.items():
        if not isinstance(file, str) or not re.fullmatch(r"[\w.-]+\.safetensors", file):
            raise ModelError(f"{INDEX} of {where} keeps {name} in {file!r}, which is no safetensors file beside it")
    return dict(sorted(weights.items()))


def no_safetensors(where: str, files: Iterable[str]) -> ModelError:
    """The error for a model without safetensors, which says what to do about what it has instead."""
    others = sorted(name for name in files if name.endswith((".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")))
    if others:
        return ModelError(
            f"{where} has no safetensors weights, only {', '.join(others[:3])}",
            hint="load it with transformers and save_pretrained it once: that writes safetensors",
        )
    return ModelError(f"{where} has no {SINGLE} and no {INDEX}", hint="download the model again")


def chat_template(jinja: Path | None, tokenizer_config: Path | None) -> str | None:
    """The chat template: its own file, or the tokenizer config's (the one named ``default`` of several)."""
    if jinja is not None and jinja.is_file() and jinja.stat().st_size <= MAX_JSON_BYTES:
        return jinja.read_text(encoding="utf-8")
    template = (read_json(tokenizer_config) or {}).get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def read_json(path: Path | None, *, required: bool = False) -> Any:
    """A JSON file's value, None if it is absent and not required; ``ModelError`` if absent, too large or malformed."""
    if path is None:
        return None
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path.name} is over {MAX_JSON_BYTES} bytes")
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if not required:
            return None
        raise ModelError(f"{path.parent} has no {path.name}", hint="give the folder of a transformers model") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def plain_name(text: str) -> str:
    """A name fit for a model id: no white space, no ``@`` or ``#``, at most 100 characters."""
    return re.sub(r"[@#\s]", "-", text)[:100] or "model"
