"""What a server may be told about its blocks, and how it says what it chose."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from swarm.cli.commands.serve import add_arguments, calibration_for, check
from swarm.cli.hosting.blocks import fields, sentence
from swarm.core.errors import ConfigError, ModelError
from swarm.core.ids import ModelId
from swarm.core.spans import Span
from swarm.runtime.calibrations import calibration_path, store_calibration
from swarm.scheduling.intents import Choice
from swarm.verification.verdicts.calibration import Calibration, calibrate

MODEL = ModelId("org/name", "v1", "0123456789abcdef")


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--new-swarm", *words])


def test_blocks_are_chosen_unless_told() -> None:
    parsed = options()
    check(parsed)
    assert (parsed.blocks, parsed.num_blocks, parsed.no_rebalance) == ("auto", None, False)
    check(options("--num-blocks", "10", "--region", "eu", "--rebalance-every", "5", "--claim-wait", "0.5"))
    check(options("--blocks", "0:10", "--no-rebalance", "--replay-mb", "0"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--blocks", "0-10"), "0-10"),
        (("--blocks", "0:10", "--num-blocks", "3"), "--num-blocks"),
        (("--num-blocks", "0"), "--num-blocks"),
        (("--rebalance-every", "0"), "--rebalance-every"),
        (("--rebalance-every", "nan"), "--rebalance-every"),
        (("--claim-wait", "inf"), "--claim-wait"),
        (("--replay-mb", "-1"), "--replay-mb"),
        (("--replay-mb", "nan"), "--replay-mb"),
        (("--audit-hold", "-1"), "--audit-hold"),
        (("--audit-hold", "nan"), "--audit-hold"),
        (("--no-receipts", "--calibration", "x"), "--calibration"),
        (("--region", "a\nb"), "--region"),
        (("--region", "x" * 65), "--region"),
    ],
)
def test_what_makes_no_sense_is_named(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check(options(*words))


def test_the_choice_in_one_sentence_and_in_figures() -> None:
    choice = Choice(Span(10, 20), "nobody held layers 10 to 19", 0.0, 12.345)
    assert sentence("Taking", choice) == (
        "Taking layers 10 to 19: nobody held layers 10 to 19. All sessions together can then get 12.3 tokens/s, "
        "without this server 0."
    )
    assert fields(choice) == {
        "span": [10, 20], "why": choice.why, "tokens_per_s_before": 0.0, "tokens_per_s_after": 12.345,
    }  # fmt: skip
    same = Choice(Span(0, 1), "it held them before", 5.0, 5.0)
    assert sentence("Taking", same).endswith(
        "All sessions together can then get 5 tokens/s, with or without this server."
    )
    alone = Choice(Span(0, 1), "nobody held any layer", 0.0, 0.0)
    assert sentence("Taking", alone) == (
        "Taking layer 0: nobody held any layer. Other layers are still missing, so there are no answers yet."
    )


def made(model: ModelId) -> Calibration:
    states = np.random.default_rng(0).standard_normal((4, 80, 8)).cumsum(axis=0)
    return calibrate(model, states, np.ones(80, bool), text="test")


def test_the_calibration_that_is_named_or_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert calibration_for(MODEL, options()) is None
    calibration, path = made(MODEL), calibration_path(MODEL)
    path.parent.mkdir(parents=True)
    store_calibration(calibration, path)
    stored = calibration_for(MODEL, options())
    assert stored is not None
    assert stored.digest() == calibration.digest()
    assert calibration_for(MODEL, options("--no-receipts")) is None
    other = tmp_path / "other"
    store_calibration(made(ModelId("org/other", "v1", "0123456789abcdef")), other)
    with pytest.raises(ModelError, match="org/other"):
        calibration_for(MODEL, options("--calibration", str(other)))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut short"):
        calibration_for(MODEL, options())


def test_a_user_without_a_home_has_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert calibration_for(MODEL, options()) is None
