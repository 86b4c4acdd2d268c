"""`verifier` and `challenge` as processes over a swarm of processes: honest servers pass, and Ctrl-C loses nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.commands.calibrate import cut, gather
from swarm.engine.calibration import BoundaryStates
from swarm.models import ModelFiles
from swarm.models.progress import silent
from swarm.runtime.calibrations import store_calibration
from swarm.runtime.clock import SystemClock
from swarm.runtime.reputation import ReputationStore
from swarm.verification.verdicts.calibration_text import TEXT

CALIBRATION_TOKENS = 320
SAID_S = 180.0
PROMPTS = "Answer with the one word yes: is water wet?\nAnswer with the one word no: is ice warm, or not?\n"


@pytest.fixture(scope="module")
def means(demo_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a calibration by a short text, and prompts with short answers."""
    folder = tmp_path_factory.mktemp("means")
    reading = cut(demo_files, TEXT, CALIBRATION_TOKENS)
    boundaries = BoundaryStates(demo_files, reading.pieces, device="cpu", progress=silent)
    calibration = folder / "demo.calibration"
    store_calibration(gather(boundaries, reading, demo_files.model_id, folder), calibration)
    (folder / "prompts").write_text(PROMPTS)
    return ["--calibration", str(calibration), "--prompts", str(folder / "prompts"), "--threads", "1"]


def test_a_verifier_passes_honest_servers_and_keeps_what_it_found(
    launcher: Any, swarm30: list[Any], means: list[str], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    verifier = launcher.run(
        "swarm", "verifier", "--initial-peers", swarm30[0].address, "--host", "127.0.0.1", "--blocks", "10:20",
        "--interval", "0", "--json", "--store", str(store), "--identity", str(tmp_path / "key"), *means,
    )  # fmt: skip
    events: list[dict[str, Any]] = []
    while not events or events[-1]["event"] != "verdict":
        line = verifier.line(SAID_S)
        assert line is not None, verifier.stderr
        events.append(json.loads(line))
    verifier.signal(signal.SIGINT)
    assert verifier.wait(SAID_S) == 0, verifier.stderr
    verdict = events[-1]
    assert (verdict["peer"], verdict["verdict"]) == (swarm30[1].peer, "passed"), verdict
    assert verdict["worst_e"] < 0.001, "both compute in float32"
    unchecked = {event["peer"]: event["spot_checkable"] for event in events if event["event"] == "unchecked"}
    assert unchecked == {swarm30[0].peer: False, swarm30[2].peer: False}
    with ReputationStore(store, SystemClock()) as kept:
        known = {one.peer: one.standing for one in kept.known()}
    assert known[swarm30[1].peer].audited >= verdict["audited"] > 0
    assert not any(standing.strikes or standing.ejected for standing in known.values())


def test_one_challenge_says_what_it_found_in_each_window(launcher: Any, swarm30: list[Any], means: list[str]) -> None:
    """The tail's tokens are judged with its rows; the same seed is the same challenge on every machine."""
    challenge = launcher.run(
        "swarm", "challenge", "--initial-peers", swarm30[0].address, "--host", "127.0.0.1",
        "--peer", swarm30[2].peer[-12:], "--seed", "3", "--json", *means,
    )  # fmt: skip
    line = challenge.line(SAID_S)
    assert challenge.wait(SAID_S) == 0, challenge.stderr
    found = json.loads(line)
    assert (found["peer"], found["span"], found["verdict"]) == (swarm30[2].peer, [20, 30], "passed")
    assert found["seed"] == "7594911dff000df464eca4b075bff80f88a031c3a189dd25ba9cf5b81b7022cb"
    assert sum(window["tokens"]["pass"] for window in found["windows"]) > 0
    assert all(window["tokens"]["hard"] == 0 for window in found["windows"])
