"""``swarm calibrate``: run a model over a text, layer by layer, and store what its hidden states look like."""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from swarm.cli.output.live_line import LiveLine, waiting
from swarm.cli.signals import stop_imports
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import ConfigError
from swarm.core.ids import ModelId
from swarm.models import ModelFiles, ProgressLine, resolve
from swarm.models.progress import Progress, human_bytes
from swarm.runtime.calibrations import calibration_path, store_calibration
from swarm.verification.verdicts.calibration import MIN_CALIBRATION_TOKENS, Calibration, calibrate
from swarm.verification.verdicts.calibration_text import TEXT
from swarm.verification.verdicts.whitening import SINK_ROWS

if TYPE_CHECKING:
    from swarm.engine.calibration import BoundaryStates

DEFAULT_TOKENS = 2048
MOST_TOKENS = 65536
PIECE_TOKENS = 256
"""A long text is cut into sessions of so many tokens: the many sizes of rows come from many texts, not long ones."""
MAX_TEXT_BYTES = 16 * 1024 * 1024

EXAMPLES = """\
examples:
  python -m swarm calibrate --model demo
  python -m swarm calibrate --model org/name@REVISION --device cuda
  python -m swarm calibrate --model ./folder --text my.txt --tokens 1024 --out my.calibration

One layer's weights are in memory at a time, in float32, whatever the checkpoint's dtype; hidden states wait in a
scratch file beside the result. Whoever audits a model needs its calibration, and its digest stands in receipts, so all
of a swarm use one file: the same machine makes the same one again, another kind of machine one that differs in the
last bits, with the same verdicts and another digest.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measure a model's hidden states on a text, for verifying servers, and store the result."
    parser.epilog = EXAMPLES
    parser.add_argument("--model", required=True, help="demo, a folder, or a Hugging Face id, optionally ID@REVISION")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write (default: in the data folder, where "
                        "servers and verifiers look)")  # fmt: skip
    parser.add_argument("--text", type=Path, metavar="FILE", help="text in UTF-8 (default: one of the package's own)")
    parser.add_argument("--tokens", type=int, default=DEFAULT_TOKENS, metavar="N",
                        help=f"how much of the text to read at most (default: {DEFAULT_TOKENS})")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (ROCm counts as cuda)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    began_s = time.monotonic()
    if not MIN_CALIBRATION_TOKENS < options.tokens <= MOST_TOKENS:
        hint = f"it must be over {MIN_CALIBRATION_TOKENS} and at most {MOST_TOKENS}"
        raise ConfigError(f"--tokens is {options.tokens}", hint=hint)
    text = TEXT if options.text is None else read_text(options.text)
    line = ProgressLine(sys.stderr)
    files = resolve(options.model, revision=options.revision, progress=line)
    reading = cut(files, text, options.tokens)
    path = options.out or calibration_path(files.model_id)
    check_place(path, own=options.out is None, needed=_scratch_bytes(files, reading))
    made = make(files, reading, path, device=options.device, progress=line)
    line.close()
    found = made.calibration
    report = {
        "model": found.header.model, "file": str(path), "digest": found.digest().hex(), "bytes": made.size,
        "tokens": found.header.tokens, "text": found.header.text, "layers": found.header.layers,
        "hidden": found.header.hidden, "device": made.device, "seconds": round(time.monotonic() - began_s, 1),
    }  # fmt: skip
    print(json.dumps(report) if options.json else as_text(report, made.size))
    return 0


@dataclass(frozen=True, slots=True)
class Made:
    """A calibration that was made and stored."""

    calibration: Calibration
    size: int
    device: str


def make_default(files: ModelFiles, *, device: str, progress: Progress) -> Made:
    """The calibration that ``swarm calibrate`` makes unless told otherwise, stored where it is looked for."""
    reading, path = cut(files, TEXT, DEFAULT_TOKENS), calibration_path(files.model_id)
    check_place(path, own=True, needed=_scratch_bytes(files, reading))
    return make(files, reading, path, device=device, progress=progress)


def make(files: ModelFiles, reading: Reading, path: Path, *, device: str, progress: Progress) -> Made:
    """Run the model over ``reading`` and store what comes of it in ``path``; says on standard error if it has to make
    do with the CPU. Raises as ``BoundaryStates`` does.
    """
    with stop_imports(), waiting(LiveLine(sys.stderr, logs=False), "loading torch"):
        from swarm.engine.calibration import BoundaryStates  # torch takes seconds: mistakes are told before that
    boundaries = BoundaryStates(files, reading.pieces, device=device, progress=progress)
    if boundaries.note:
        print(boundaries.note, file=sys.stderr)
    found = gather(boundaries, reading, files.model_id, path.parent)
    return Made(found, store_calibration(found, path), boundaries.device)


@dataclass(frozen=True, slots=True)
class Reading:
    """The text as sessions of token ids, and its name for the calibration's header."""

    pieces: tuple[npt.NDArray[np.int64], ...]
    name: str

    @property
    def rows(self) -> int:
        return sum(map(len, self.pieces))

    def counted(self) -> npt.NDArray[np.bool_]:
        """Which rows count, ``[rows]``: not the sinks."""
        return np.concatenate([np.arange(len(ids)) >= SINK_ROWS for ids in self.pieces])


def read_text(path: Path, *, flag: str = "--text") -> str:
    """The text in ``path``, which ``flag`` named; ``ConfigError`` if it cannot be read, is too long, or not UTF-8."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {flag} {str(path)!r}: {error.strerror}") from error
    if len(data) > MAX_TEXT_BYTES:
        raise ConfigError(f"{flag} {str(path)!r} is over {MAX_TEXT_BYTES} bytes", hint="give a part of it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {str(path)!r} is not UTF-8: {error.reason}", hint="convert it") from error


def cut(files: ModelFiles, text: str, tokens: int) -> Reading:
    """The first ``tokens`` of ``text`` in pieces, each beginning as this model's texts do.

    ``ConfigError`` if too few of them count.
    """
    tokenizer = Tokenizer.of(files)
    bare = tokenizer.encode(text, add_special_tokens=False)[:tokens]
    marked = tokenizer.encode(text)
    opening = marked[: marked.index(bare[0])] if bare and bare[0] in marked else []
    length = min(PIECE_TOKENS, files.context_tokens) - len(opening)
    pieces = [opening + bare[start : start + length] for start in range(0, len(bare), max(length, 1))]
    digest = hashlib.sha256(text.encode()).hexdigest()
    reading = Reading(tuple(np.array(ids, np.int64) for ids in pieces), f"sha256:{digest} in {PIECE_TOKENS}s")
    counted = int(reading.counted().sum()) if pieces else 0
    if counted < MIN_CALIBRATION_TOKENS:
        hint = f"give a text of {MIN_CALIBRATION_TOKENS} tokens or more, better of 1000"
        raise ConfigError(f"{counted} tokens of the text would count, which is too few", hint=hint)
    return reading


def check_place(path: Path, *, own: bool, needed: int) -> None:
    """Raise ``ConfigError`` now, not after hours, if ``path`` cannot be written; ``own``: its folder may be made."""
    try:
        if own:
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ConfigError(f"{str(path)!r} is a folder", hint="give --out a file")
        with tempfile.TemporaryFile(dir=path.parent):
            free = shutil.disk_usage(path.parent).free
    except OSError as error:
        why = f"cannot write to {str(path.parent)!r}: {error.strerror}"
        raise ConfigError(why, hint="choose another place with --out") from error
    if free < needed:
        raise ConfigError(
            f"{str(path.parent)!r} has {human_bytes(free)} free, and hidden states take {human_bytes(needed)}",
            hint="choose another place with --out, or fewer --tokens",
        )


def gather(boundaries: BoundaryStates, reading: Reading, model: ModelId, folder: Path) -> Calibration:
    """Run the model, its states in a scratch file in ``folder`` that has no name and cannot stay behind."""
    with tempfile.TemporaryFile(dir=folder) as scratch:
        states = _kept(boundaries, scratch, reading.rows)
        with waiting(LiveLine(sys.stderr, logs=False), f"calibrating: measuring {boundaries.layers} layers"):
            return calibrate(model, states, reading.counted(), text=reading.name)


def as_text(report: dict[str, object], size: int) -> str:
    """The report for people."""
    return (
        f"{report['model']}: calibrated on {report['tokens']} tokens in {report['seconds']} s ({report['device']})\n"
        f"  {report['file']}: {human_bytes(size)}, {report['layers']} layers of {report['hidden']} channels\n"
        f"  digest {report['digest']}"
    )


def _kept(boundaries: BoundaryStates, scratch: BinaryIO, rows: int) -> npt.NDArray[np.float32]:
    # Written, not mapped, at first: a full disk is then an error and no signal that kills the process.
    for state in boundaries:
        scratch.write(state.data)
    scratch.flush()
    shape = (boundaries.layers + 1, rows, boundaries.hidden_size)
    return np.memmap(scratch, np.float32, "r", shape=shape)


def _scratch_bytes(files: ModelFiles, reading: Reading) -> int:
    return (files.layer_count + 1) * reading.rows * files.hidden_size * np.dtype(np.float32).itemsize
