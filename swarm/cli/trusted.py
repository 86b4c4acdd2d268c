"""What `verifier` and `challenge` share: weights of one's own, a calibration, prompts, and clients nobody has seen."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.commands.calibrate import DEFAULT_TOKENS, make_default, read_text
from swarm.cli.joining import add_joining, check_joining, lan_of
from swarm.cli.output.console import Console
from swarm.cli.signals import STOPPED_EARLY, stop_imports
from swarm.client.auditing.traffic import Script, everyday, read_prompts
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import ConfigError, SwarmError
from swarm.core.numerics import DTYPE_BYTES, QUANTIZATIONS, Numerics
from swarm.core.spans import Span
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress
from swarm.models.resolve import resolve
from swarm.runtime.calibrations import find_calibration, read_calibration
from swarm.runtime.reputation import IN_MEMORY
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import Thresholds, thresholds_for

if TYPE_CHECKING:
    from swarm.client.model import AsyncSwarmModel
    from swarm.engine.replica import Replica


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Which swarm, and what this machine computes by itself."""
    where = parser.add_argument_group("which swarm")
    where.add_argument(
        "--model", default="demo", help="demo (default), a folder, or a Hugging Face id, optionally ID@REVISION"
    )
    where.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    add_joining(where)
    where.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    own = parser.add_argument_group("what this machine computes by itself")
    own.add_argument("--dtype", default="float32", choices=("auto", *DTYPE_BYTES), help="of the replica (default: "
                     "float32, so that a difference is the server's; auto: the checkpoint's own)")  # fmt: skip
    own.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="servers are only compared with "
                     "weights quantized as they declare")  # fmt: skip
    own.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (ROCm counts as cuda)")
    own.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    own.add_argument("--calibration", type=Path, metavar="FILE", help="the model's, as the swarm uses it (default: the "
                     "one in the data folder; if there is none it is made, which takes a while)")  # fmt: skip
    own.add_argument("--prompts", type=Path, metavar="FILE", help="what challenges ask: real prompts of eight tokens "
                     "or more, one a line, or as JSON strings (default: text that is on every machine, which a server "
                     "that looks for it can tell from people's)")  # fmt: skip


def check_trust(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what is wrong whatever the model and the network say."""
    check_joining(options)
    if options.threads is not None and options.threads < 1:
        raise ConfigError(f"--threads is {options.threads}", hint="give at least 1")


@dataclass(frozen=True, slots=True)
class Trust:
    """A model that is open here, with what verdicts on its servers rest on; the replica is loaded when it is needed."""

    options: argparse.Namespace
    files: ModelFiles
    tokenizer: Tokenizer
    calibration: Calibration
    script: Script
    progress: Progress

    @classmethod
    def of(
        cls, options: argparse.Namespace, console: Console, *, interval_s: float, prompts: Sequence[str] = ()
    ) -> Trust:
        """Open the model and find or make its calibration. Raises what is wrong with the model or a file.

        ``prompts`` are for who gives none.
        """
        with stop_imports(), console.waiting("loading torch"):
            import swarm.engine.replica  # noqa: F401  torch takes seconds, and later Ctrl-C has its own meaning
        if options.prompts is not None:
            prompts = read_prompts(read_text(options.prompts, flag="--prompts"))
        progress = console.progress
        with console.waiting(f"opening the model {options.model}"):
            files = resolve(options.model, revision=options.revision, progress=progress)
        tokenizer = Tokenizer.of(files)
        script = everyday(tokenizer, files.context_tokens, interval_s=interval_s, prompts=prompts)
        return cls(options, files, tokenizer, _calibration(options, files, console, progress), script, progress)

    @property
    def thresholds(self) -> Thresholds:
        """Mixtures of experts are judged softly: where rounding changes a row's expert, it changes the row."""
        return thresholds_for(experts=self.files.has_experts)

    @property
    def numerics(self) -> Numerics:
        """Of the replica, as far as they matter for a comparison: its quantization."""
        dtype = self.options.dtype
        return Numerics("float32" if dtype == "auto" else dtype, self.options.quantization)

    def replica(self, span: Span, stopped: Callable[[], bool] = lambda: False) -> Replica:
        """The weights of ``span``, loaded now. Blocks; raises as ``load_span`` does.

        For a thread, which nothing else can end: ``SwarmError`` once ``stopped`` says so.
        """
        from swarm.engine.replica import Replica, ReplicaRequest
        from swarm.engine.weights import LoadOptions

        def progress(label: str, done: int, total: int) -> None:
            if stopped():
                raise SwarmError("loading was stopped")
            self.progress(label, done, total)

        options = self.options
        weights = LoadOptions(device=options.device, dtype=options.dtype, quantization=options.quantization)
        request = ReplicaRequest(span=span, weights=weights, threads=options.threads)
        return Replica.load(self.files, request, progress)

    async def client(self) -> AsyncSwarmModel:
        """A client like any other, with a key of its own that no server has seen, and no memory that others have."""
        from swarm.client.connect import ConnectOptions, join

        given = self.options
        asked = ConnectOptions(
            initial_peers=given.initial_peers, lan=lan_of(given), host=given.host, reputation=IN_MEMORY
        )
        return await join(self.files, self.tokenizer, asked)


def interrupted(console: Console, stopped: BaseException | None = None) -> int:
    """Say that a command was stopped before it found anything, and what is lost by it; its exit code."""
    lost = "".join(f"; {why}" for why in stopped.args) if isinstance(stopped, KeyboardInterrupt) else ""
    console.event("interrupted", f"interrupted: nothing was decided{lost}")
    return STOPPED_EARLY


def _calibration(options: argparse.Namespace, files: ModelFiles, console: Console, progress: Progress) -> Calibration:
    if options.calibration is not None:
        return read_calibration(options.calibration, files.model_id)
    found = find_calibration(files.model_id)
    if found is not None:
        return found
    console.event(
        "calibrating",
        f"No calibration of {files.name} on this machine: making one, once, of {DEFAULT_TOKENS} tokens through "
        f"{files.layer_count} layers. Who verifies one swarm should use one file (`python -m swarm calibrate --help`).",
    )
    try:
        made = make_default(files, device=options.device, progress=progress)
    except (KeyboardInterrupt, SystemExit) as stopped:
        raise KeyboardInterrupt("the calibration under way is lost, the next run begins it again") from stopped
    digest = made.calibration.digest().hex()
    console.event("calibrated", f"Calibrated; digest {digest[:16]}…", digest=digest, bytes=made.size)
    return made.calibration
