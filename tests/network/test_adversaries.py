"""Real server processes that cheat, one patched behaviour each, in a chain with honest ones: each is ejected.

Nobody else holds the cheater's layers, so every session goes through it. More kinds are in ``test_swarm_adversaries``,
and all of them in ``python -m benchmarks detection``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.detection import Bench, swarm
from benchmarks.lives import live
from benchmarks.trials import FLOAT32, HEAD, MIDDLE, TAIL, Trial
from swarm.cli.commands.calibrate import cut, gather
from swarm.client.blocking import SwarmModel
from swarm.core.errors import NoRouteError, SwarmError
from swarm.engine.calibration import BoundaryStates
from swarm.models import ModelFiles
from swarm.models.progress import silent
from swarm.runtime.calibrations import calibration_path, find_calibration, store_calibration
from swarm.verification.verdicts.calibration_text import TEXT

ALONE: dict[str, Any] = {"host": "127.0.0.1", "reputation": ":memory:", "heal_timeout_s": 0.5}
"""A client that knows nothing from before, and does not wait long for somebody to take over."""
CALIBRATION_TOKENS = 320
SETTLED_S = 20.0


@pytest.fixture(scope="module")
def bench(demo_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two honest servers; the layers between them are the cheaters'."""
    _calibrate(demo_files, tmp_path_factory.mktemp("calibration"))
    with swarm(FLOAT32, (HEAD, TAIL)) as bench:
        yield bench


def _calibrate(files: ModelFiles, scratch: Path) -> None:
    """By a short text, unless it has been done."""
    if find_calibration(files.model_id) is not None:
        return
    reading = cut(files, TEXT, CALIBRATION_TOKENS)
    boundaries = BoundaryStates(files, reading.pieces, device="cpu", progress=silent)
    path = calibration_path(files.model_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    store_calibration(gather(boundaries, reading, files.model_id, scratch), path)


@pytest.mark.parametrize(("kind", "reason"), [
    ("skip:13", "2 confirmed failures"),
    ("noise", "its errors are above what honest servers reach, window after window"),
])  # fmt: skip
def test_audits_eject_whoever_computes_something_else(bench: Bench, kind: str, reason: str) -> None:
    """The second session's first failure is the second strike; small errors in every window take some windows more."""
    trial = Trial(kind, prompt_tokens=232, new_tokens=25)
    with bench.processes.serving(MIDDLE, bench.addresses, cheat=kind, options=FLOAT32):
        found = bench.sessions(trial, 2 if kind == "skip:13" else 4, [HEAD, MIDDLE, TAIL])
    head, cheater, tail = (found[place::3] for place in range(3))
    assert live(cheater)["found_by"] == reason
    for honest in (head, tail):  # the latter is fed by the cheater
        assert live(honest)["found_by"] == ""
        assert not any(inspected.audit.hard for inspected in honest)


@pytest.mark.parametrize(("kind", "reason"), [
    ("equivocates", "it signed two different receipts with one counter"),
    ("claims-rows", "2 confirmed failures"),
])  # fmt: skip
def test_an_ordinary_client_ejects_who_lies_in_receipts(bench: Bench, kind: str, reason: str) -> None:
    """And asks nobody for help: what it was sent is enough. Nothing is routed over the liar any more."""
    with (
        bench.processes.serving(MIDDLE, bench.addresses, cheat=kind, options=FLOAT32) as liar,
        SwarmModel.connect("demo", initial_peers=bench.addresses, **ALONE) as model,
    ):
        reputation = model._inner.reputation
        for _ in range(2):
            if liar.peer not in reputation.ejected():
                _ask(model, liar.peer)
        assert reputation.standing(liar.peer).ejected == reason
        assert reputation.ejected() == {liar.peer}
        with pytest.raises(NoRouteError, match="ejected"):
            model.generate("Is anybody there?", max_new_tokens=2)


def _ask(model: SwarmModel, liar: str) -> None:
    """One answer, as far as it comes: whoever is caught in the middle of it is lost. Until it has consequences."""
    reputation = model._inner.reputation
    before = reputation.standing(liar)
    with suppress(SwarmError):
        model.generate("Once upon a time " * 12, max_new_tokens=4, ignore_eos=True)
    until_s = time.monotonic() + SETTLED_S
    while reputation.standing(liar) == before:
        assert time.monotonic() < until_s, "nothing came of it"
        time.sleep(0.05)
