"""What the detection benchmark makes of audited windows, and how long the servers behind them last."""

from __future__ import annotations

import math

import pytest

from benchmarks.detection import errors_of, figures_of
from benchmarks.inspector import Inspected
from benchmarks.lives import Seen, audits_until_ejection, live, windows_until_ejection
from benchmarks.trials import HEAD, MIDDLE, TAIL, Trial, chosen_trials, honest_trials, trials
from swarm.client.auditing.audit import AuditedWindow, StageAudit, TokenTally
from swarm.client.evidence.records import StageRecord
from swarm.client.plan import StagePlan
from swarm.verification.signed.receipts import NO_HASH, Opening
from swarm.verification.verdicts.verdict import Outcome
from swarm.verification.verdicts.whitening import Comparison


def window(number: int, error: float, outcome: Outcome, tokens: TokenTally | None = None) -> AuditedWindow:
    return AuditedWindow(number, Comparison(1.0, 0.0, error, 32), outcome, tokens or TokenTally(), None)


@pytest.fixture
def inspected(stage: StageRecord) -> Inspected:
    windows = (
        window(0, math.inf, Outcome.UNCOUNTED),
        window(1, 0.01, Outcome.PASS),
        window(2, 0.06, Outcome.SOFT),
        window(3, 0.4, Outcome.HARD),
        window(4, 0.001, Outcome.PASS, TokenTally(passed=31, hard=1)),
    )
    return Inspected(StageAudit(stage, None, windows), decode_from=4)


@pytest.fixture
def stage() -> StageRecord:
    opening = Opening("s", "c", bytes(16), bytes(16), 0, 10, 20, "m", NO_HASH, "float32", NO_HASH)
    return StageRecord(opening, StagePlan.__new__(StagePlan), (), None)


def test_a_window_that_does_not_count_is_no_miss(inspected: Inspected) -> None:
    figures = figures_of([inspected], Trial("nf4"))
    assert figures["windows"] == 5
    assert figures["cheated_windows"] == 4
    assert figures["d"] == 0.5  # one by its rows, one by a token
    assert figures["decode_windows"] == 1
    assert (figures["pass_windows"], figures["soft_windows"], figures["hard_windows"]) == (1, 1, 2)
    assert figures["hard_tokens"] == 1
    assert figures["e_min"] == 0.001
    assert figures["e_max"] == 0.4


def test_only_windows_cheated_on_count_for_d(inspected: Inspected) -> None:
    figures = figures_of([inspected], Trial("late:13", cheated=lambda _, found: found.window == 3))
    assert figures["d"] == 1.0
    assert figures["e_min"] == figures["e_max"] == 0.4


def test_no_windows_no_figures() -> None:
    assert errors_of([]) == {}
    assert figures_of([], Trial("nf4"))["d"] == 0.0


def test_every_position_is_skipped_in_its_own_span() -> None:
    skipped = chosen_trials(["skip"])
    assert list(skipped) == [f"skip:{layer}" for layer in range(30)]
    assert [trial.span for trial in skipped.values()] == [HEAD] * 10 + [MIDDLE] * 10 + [TAIL] * 10
    assert set(chosen_trials(["int8"])) == {"int8", "int8 in bfloat16"}
    assert chosen_trials([]) == trials()


def test_honest_configurations_are_all_different() -> None:
    assert len({trial.name for trial in honest_trials()}) == len(honest_trials()) == 12


def test_a_server_that_always_fails_lasts_two_sessions() -> None:
    found = windows_until_ejection(Seen([0.4], [], ceiling=None), 20)
    assert found["newcomer"] == {"windows": 9.0, "cheated": 9.0, "lasted": 0, "found_by": "2 confirmed failures"}
    assert 9 < found["known"]["windows"] < 200


def test_an_honest_server_lasts() -> None:
    found = windows_until_ejection(Seen([0.02], [0.02], ceiling=0.025, share=0.0), 2)
    assert found["newcomer"]["lasted"] == found["known"]["lasted"] == 2
    assert found["known"]["cheated"] == 0


def test_a_session_gives_one_strike(inspected: Inspected) -> None:
    assert live([inspected])["found_by"] == ""
    assert live([inspected, inspected]) == {"windows": 9, "found_by": "2 confirmed failures"}


def test_refusing_audits() -> None:
    every = audits_until_ejection(1.0)
    assert every is not None
    assert every <= 32
    assert audits_until_ejection(0.0) is None
