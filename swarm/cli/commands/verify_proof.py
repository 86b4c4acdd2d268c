"""``swarm verify-proof``: whether a file proves that a server cheated, checked from scratch on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.commands.calibrate import make_default
from swarm.cli.signals import stop_imports
from swarm.core.errors import BadProofError, ConfigError, PeerError
from swarm.core.ids import ModelId
from swarm.core.limits import MAX_PROOF_BYTES
from swarm.models.demo import SMOLLM2
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress, ProgressLine
from swarm.models.resolve import DEMO, resolve
from swarm.runtime.calibrations import find_calibration, read_calibration
from swarm.verification.proofs import Charge, FraudProof, check_calibration
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import Receipt
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import thresholds_for

if TYPE_CHECKING:
    from swarm.client.auditing.accusing import Conviction
    from swarm.client.auditing.reference import Reference

EXAMPLES = """\
examples:
  python -m swarm verify-proof proof.swarm
  python -m swarm verify-proof proof.swarm --model ./folder --calibration swarm.calibration
  python -m swarm verify-proof proof.swarm --json

Two receipts with one counter prove themselves: nothing but their signatures is checked. A fraud proof says that a
server answered what it did not compute: its signatures, hashes and seed are checked, then the rows are computed again
with the model's own weights, of the accused layers alone. Nobody is asked anything over the network, except for
those weights if they are not on this machine.

exit code: 0 it holds (one sentence says what it proves), 1 it proves nothing (the reason is printed), 2 or more if
this machine cannot tell: no such file, another calibration than the one the server named.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check a proof against a server: exit 0 and a sentence if it holds, 1 and the reason if not."
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the proof, as `challenge --out` and verifiers write it"
    )
    parser.add_argument("--model", help="where the model is: demo, a folder, or a Hugging Face id, optionally "
                        "ID@REVISION (default: the one that the proof names)")  # fmt: skip
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="the model's, as the swarm uses it (default: "
                        "the one in the data folder; if there is none it is made)")  # fmt: skip
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda, cuda:N or mps (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


@dataclass(frozen=True, slots=True)
class Proven:
    """What a proof proves, for people and for programs."""

    sentence: str
    fields: dict[str, object]


def run(options: argparse.Namespace) -> int:
    data = read_proof(options.file)
    try:
        found = equivocation(data) if is_equivocation(data) else fraud(data, options)
    except PeerError as error:
        print(
            json.dumps({"proven": False, "reason": error.message}) if options.json else f"not proven: {error.message}"
        )
        return 1
    print(
        json.dumps({"proven": True} | found.fields | {"sentence": found.sentence}) if options.json else found.sentence
    )
    return 0


def read_proof(path: Path) -> bytes:
    """The file; ``ConfigError`` if it cannot be read or is larger than any proof."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROOF_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}", hint="give the proof's file") from error
    if len(data) > MAX_PROOF_BYTES:
        raise ConfigError(f"{str(path)!r} is larger than any proof", hint="give the proof's file")
    return data


def is_equivocation(data: bytes) -> bool:
    """Proofs say at the beginning what they are; what is neither is read as a fraud proof, and says so."""
    return b"equivocation/" in data[:32]


def equivocation(data: bytes) -> Proven:
    """Two signatures, and nothing else."""
    one, other = EquivocationProof.parse(data).verify()
    sentence = (
        f"{one.signer} signed two different receipts with counter {one.counter}: for rows {one.first}:{one.last} and "
        f"{other.first}:{other.last} of layers {one.opening.span} of {one.opening.model}"
    )
    return Proven(sentence, {"kind": "equivocation", "counter": one.counter} | _of_receipt(one))


def fraud(data: bytes, options: argparse.Namespace) -> Proven:
    """Signatures, hashes and seed first: weights are only looked for if those hold."""
    charge = FraudProof.parse(data).check()
    line = ProgressLine(sys.stderr)
    files = resolve(options.model or _place_of(charge.opening.model), progress=line)
    if str(files.model_id) != charge.opening.model:
        raise ConfigError(
            f"the proof is about {charge.opening.model}, not {files.model_id}",
            hint="say with --model where that one is",
        )
    if charge.opening.end > files.layer_count:
        raise BadProofError(f"about layers {charge.opening.span} of a model that has {files.layer_count}")
    if options.calibration is not None:
        calibration = read_calibration(options.calibration, files.model_id)
    else:
        calibration = find_calibration(files.model_id) or _made(files, options.device, line)
    check_calibration(charge, calibration)
    found = _convicted(data, charge, files, calibration, options.device, line)
    line.close()
    verdict = found.verdicts[0]
    fields = {
        "kind": "fraud", "window": verdict.window, "e": verdict.found.error, "cosine": verdict.found.cosine,
        "norm_difference": verdict.found.norm_difference,
    }  # fmt: skip
    return Proven(found.sentence, fields | _of_receipt(charge.receipt))


def _convicted(
    data: bytes, charge: Charge, files: ModelFiles, calibration: Calibration, device: str, progress: Progress
) -> Conviction:
    """Load the accused layers in the arithmetic that was declared, and compute the rows again."""
    with stop_imports():
        from swarm.client.auditing.accusing import convict
        from swarm.client.auditing.reference import OwnReference
        from swarm.engine.replica import Replica, ReplicaRequest
        from swarm.engine.weights import LoadOptions
    numerics = charge.numerics
    weights = LoadOptions(device=device, dtype=numerics.dtype, quantization=numerics.quantization)
    replica = Replica.load(files, ReplicaRequest(span=charge.opening.span, weights=weights), progress)

    async def references(_: Charge) -> Sequence[Reference]:
        return [OwnReference(replica)]

    thresholds = thresholds_for(experts=files.has_experts)
    return asyncio.run(convict(data, references, calibration, thresholds, length_matters=files.length_matters))


def _place_of(model: str) -> str:
    """Where the model that a receipt names may be found."""
    try:
        named = ModelId.parse(model)
    except ConfigError as error:
        raise BadProofError(error.message) from error
    if (named.name, named.revision) == (SMOLLM2.name, SMOLLM2.revision):
        return DEMO
    return f"{named.name}@{named.revision}"


def _made(files: ModelFiles, device: str, progress: Progress) -> Calibration:
    print(f"no calibration of {files.name} on this machine: making one", file=sys.stderr)
    return make_default(files, device=device, progress=progress).calibration


def _of_receipt(receipt: Receipt) -> dict[str, object]:
    opening = receipt.opening
    return {
        "subject": receipt.signer, "client": opening.client, "model": opening.model, "layers": str(opening.span),
        "numerics": opening.numerics, "rows": [receipt.first, receipt.last],
    }  # fmt: skip
