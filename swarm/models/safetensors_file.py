"""The safetensors format: a little-endian u64 header length, a JSON header, raw tensor bytes. Nothing is executed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.core.errors import ModelError

DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
"""Bytes per element of each dtype we read; the names are the format's own."""

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: ``length`` bytes at absolute ``offset`` of ``file`` (a name within the model)."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


def header_length(prefix: bytes, file: str) -> int:
    """Header length in bytes from a file's first eight; ``ModelError`` if absurd."""
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if len(prefix) < LENGTH_BYTES or not 2 <= length <= MAX_HEADER_BYTES:
        raise ModelError(f"{file} is not a safetensors file", hint="download it again")
    return length


def parse_header(header: bytes, *, file: str, file_size: int) -> dict[str, TensorInfo]:
    """Every tensor a header lists, by name; ``header`` is the JSON without its length prefix.

    Raises ``ModelError`` if an entry is malformed, lies outside ``file_size`` bytes, or has a length that dtype and
    shape do not explain.
    """
    try:
        entries = json.loads(header)
        base = LENGTH_BYTES + len(header)
        return {
            name: _tensor_info(name, entry, file=file, base=base, file_size=file_size)
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file} has a damaged safetensors header: {error}", hint="download it again") from error


def _tensor_info(name: str, entry: dict[str, Any], *, file: str, base: int, file_size: int) -> TensorInfo:
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    begin, end = (int(edge) for edge in entry["data_offsets"])
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"tensor {name} in {file} has the dtype {dtype}, which this version cannot read")
    if not 0 <= begin <= end <= file_size - base or min(shape, default=0) < 0:
        raise ModelError(f"tensor {name} lies outside {file}", hint="the file is cut short; download it again")
    if end - begin != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise ModelError(f"tensor {name} in {file} has a length that its shape does not explain")
    return TensorInfo(file, dtype, shape, base + begin, end - begin)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The header of a local file, tensor bytes untouched; ``ModelError`` if it is not a sound safetensors file."""
    try:
        with path.open("rb") as stream:
            length = header_length(stream.read(LENGTH_BYTES), path.name)
            size = os.fstat(stream.fileno()).st_size
            if length > size:
                raise ModelError(f"{path.name} is cut short", hint="download it again")
            return parse_header(stream.read(length), file=path.name, file_size=size)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def write_file(
    path: Path,
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    tensors: Iterable[tuple[str, bytes | memoryview]],
    written: Callable[[int], None],
) -> str:
    """Write a safetensors file tensor by tensor, one in memory at a time; return its sha256 in hex.

    ``layout`` gives name -> (dtype, shape) in file order, ``tensors`` the bytes in the same order. The bytes of the
    file follow from the arguments alone. ``written`` is told the total so far. Raises ``ValueError`` if
    the two disagree.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in layout.items():
        length = math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + length]}
        offset += length
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors start on an eight-byte boundary
    digest = hashlib.sha256()
    with path.open("wb") as stream:
        for part in (len(header).to_bytes(LENGTH_BYTES, "little"), header):
            digest.update(part)
            stream.write(part)
        done = 0
        for expected, (name, data) in zip(layout, tensors, strict=True):
            start, end = entries[expected]["data_offsets"]
            if name != expected or memoryview(data).nbytes != end - start:
                raise ValueError(f"expected {expected} of {end - start} bytes, got {name}")
            digest.update(data)
            stream.write(data)
            done += end - start
            written(done)
        stream.flush()
        os.fsync(stream.fileno())
    return digest.hexdigest()
