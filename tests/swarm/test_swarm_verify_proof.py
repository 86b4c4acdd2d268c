"""``swarm verify-proof``: a file, a model's folder, and a verdict for anybody."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from archives import SPANS, Library, Tale, calibrated
from msgspec.structs import replace

from swarm.cli.main import main
from swarm.engine.replica import Replica
from swarm.models.folder import open_folder
from swarm.runtime.calibrations import calibration_path, store_calibration
from swarm.verification.challenges.challenge import Table, walk
from swarm.verification.proofs import ChallengeText, FraudProof, ProofParts
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import sign_receipt
from swarm.verification.verdicts.calibration import Calibration, Floats

TABLE = Table(tuple(int(token) for token in np.random.default_rng(22).integers(4, 250, 300)))
PROMPT = walk(bytes(range(32)), 70, TABLE)
TEXT = ChallengeText(TABLE, len(PROMPT))

Run = Callable[..., tuple[int, str, str]]


@pytest_asyncio.fixture
async def library(replica: Replica, calibration: Calibration, folder: Path) -> AsyncIterator[Library]:
    built = Library(replica, calibration, open_folder(folder).model_id)
    yield built
    await built.close()


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def run(folder: Path, library: Library, data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(proof's bytes, *options)``: the exit code, and what was printed. The calibration is in the data folder."""
    path = calibration_path(library.model)
    path.parent.mkdir(parents=True)
    store_calibration(library.calibration, path)

    def command(proof: bytes, *options: str) -> tuple[int, str, str]:
        file = tmp_path / "proof.swarm"
        file.write_bytes(proof)
        code = main(["verify-proof", str(file), "--model", str(folder), *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return command


def wrong(inputs: Floats, outputs: Floats) -> Floats:
    return np.roll(outputs, 1, axis=1)


def proof_of(
    library: Library, place: int, window: int = 2, *, accused_by: Calibration | None = None, **tale: Any
) -> FraudProof:
    """What a verifier that kept everything would publish, guilty or not."""
    record = library.session(Tale(prompt=PROMPT, answers=12, **tale))
    kept = library.archives[place].kept[(record.session, place)]
    before = library.archives[place - 1].kept[(record.session, place - 1)] if place else None
    first, last = 32 * window, record.stages[place].receipts[window].receipt.last
    size = 4 * kept.hidden
    parts = ProofParts(
        seed=record.secret,
        receipts=record.stages[place].receipts[: window + 1],
        codec="raw",
        token_ids=record.token_ids,
        inputs=(before.sent or b"")[: last * size] if before is not None else b"",
        outputs=kept.outputs[first * size : last * size],
        leaves=kept.leaves[first:last],
        calibration=(accused_by or library.calibration).digest(),
    )
    return FraudProof.of(parts, TEXT)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_proof_that_holds_is_a_sentence(library: Library, run: Run, place: int) -> None:
    data = proof_of(library, place, cheats={place: wrong}).to_bytes()
    code, out, _ = run(data)
    assert code == 0
    assert out.count("\n") == 1
    assert out.startswith(f"{library.archives[place].peer} signed for layers {SPANS[place]} of {library.model}")
    code, out, _ = run(data, "--json")
    found = json.loads(out)
    assert (code, found["proven"], found["kind"], found["subject"]) == (0, True, "fraud", library.archives[place].peer)
    assert found["e"] > 0.5
    assert (found["window"], found["rows"], found["client"]) == (2, [64, 81], library.client.peer_id)


def test_two_receipts_with_one_counter_need_no_model(library: Library, run: Run) -> None:
    record = library.session(Tale(prompt=PROMPT, answers=1))
    [one, *_] = record.stages[1].receipts
    other = sign_receipt(library.archives[1].identity, replace(one.receipt, out_root=bytes(32)))
    data = EquivocationProof.of(one, other).to_bytes()
    code, out, _ = run(data, "--model", "no such model")
    assert (code, out.split()[0]) == (0, library.archives[1].peer)
    assert json.loads(run(data, "--json")[1])["kind"] == "equivocation"
    code, out, _ = run(data[:-1])
    assert (code, "not proven" in out) == (1, True)


def test_an_honest_server_is_right(library: Library, run: Run) -> None:
    code, out, err = run(proof_of(library, 1).to_bytes())
    assert (code, err) == (1, err)
    assert out.startswith("not proven: the server is right: e is")
    code, out, _ = run(proof_of(library, 1).to_bytes(), "--json")
    assert (code, json.loads(out)["proven"]) == (1, False)


@pytest.mark.parametrize("garbage", [b"", b"hello", bytes(5000), b"\x93\xafequivocation/1"])
def test_what_is_no_proof_proves_nothing(run: Run, garbage: bytes) -> None:
    code, out, _ = run(garbage)
    assert code == 1
    assert out.startswith("not proven: malformed")


def test_a_proof_that_was_tampered_with(library: Library, run: Run) -> None:
    proof = proof_of(library, 1, cheats={1: wrong})
    code, out, _ = run(replace(proof, outputs=bytes(len(proof.outputs))).to_bytes())
    assert code == 1
    assert "outputs are not those of the leaves" in out


def test_what_this_machine_cannot_tell(
    library: Library, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = calibrated(library.replica, library.model, texts=2)
    unnamed = proof_of(library, 1, cheats={1: wrong}, calibrated=False, accused_by=other)
    code, _, err = run(unnamed.to_bytes())
    assert code == 2
    assert "another calibration" in err
    path = tmp_path / "other.calibration"
    store_calibration(other, path)
    assert run(unnamed.to_bytes(), "--calibration", str(path))[0] == 0
    assert main(["verify-proof", str(tmp_path / "missing")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_proof_about_another_model_is_looked_for_elsewhere(library: Library, run: Run, tmp_path: Path) -> None:
    from tiny_model import write_model

    write_model(tmp_path / "another", num_hidden_layers=3)
    code, _, err = run(proof_of(library, 1, cheats={1: wrong}).to_bytes(), "--model", str(tmp_path / "another"))
    assert code == 2
    assert "--model" in err
