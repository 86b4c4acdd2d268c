"""Lives of cheaters, played through: the formulas where they apply, and what they do not cover."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from swarm.core.errors import ConfigError
from swarm.verification.standings.economics import cheated_windows, escalated_windows
from swarm.verification.standings.lasting import Cheater, Lasted, play
from swarm.verification.standings.sequential import HONEST_CEILING
from swarm.verification.standings.strikes import Policy, Standing

HONEST = (0.012, 0.015, 0.018)
SKIPS = Cheater(cheated_errors=(0.4,) * 19 + (0.08,), honest_errors=HONEST)  # found with 0.95
KNOWN = Standing(audited=1000)
"""Beyond probation: audited at q."""


def lives(
    cheater: Cheater, policy: Policy, count: int, *, most: int = 20_000, standing: Standing = KNOWN,
    ceiling: float | None = HONEST_CEILING,
) -> list[Lasted]:  # fmt: skip
    rng = np.random.default_rng(1)
    return [play(cheater, policy, rng, most_windows=most, standing=standing, ceiling=ceiling) for _ in range(count)]


def measured(found: list[Lasted], expected: float) -> None:
    """The mean number of cheated windows is the expected one, within four of its standard errors."""
    cheated = np.array([life.cheated for life in found])
    assert abs(cheated.mean() - expected) < 4 * cheated.std() / math.sqrt(len(cheated))


def test_the_formula_is_the_life_of_a_cheater_who_pauses() -> None:
    """One session for each window, no raised rate to sit out, and no sequential test: K / (q·d)."""
    policy = Policy(strikes_to_eject=3, escalation_windows=0)
    found = lives(replace(SKIPS, session_windows=1), policy, 500, ceiling=None)
    measured(found, cheated_windows(3, 0.03, 0.95))


def test_who_goes_on_is_out_soon_after_the_first_strike() -> None:
    measured(lives(replace(SKIPS, session_windows=1), Policy(), 1000), escalated_windows(2, 0.03, 0.95))


def test_a_newcomer_is_out_in_its_second_session() -> None:
    """On probation every window is audited; a session gives one strike."""
    found = lives(SKIPS, Policy(), 200, standing=Standing())
    assert {life.reason for life in found} == {"2 confirmed failures"}
    assert np.mean([life.windows for life in found]) == pytest.approx(8 + 1 / 0.95, rel=0.02)


def test_honest_windows_first_change_nothing_but_the_rate() -> None:
    """Good for the 50 windows of probation, then cheating: out within some twenty more."""
    found = lives(replace(SKIPS, honest_first=50), Policy(), 200, standing=Standing())
    assert all(life.windows - 50 == life.cheated for life in found)
    assert np.mean([life.cheated for life in found]) < 12


def test_cheating_on_few_windows_takes_longer_and_cheats_on_as_many() -> None:
    rare = lives(replace(SKIPS, share=0.05), Policy(), 100)
    assert all(life.reason for life in rare)
    assert np.mean([life.windows for life in rare]) > 600
    assert np.mean([life.cheated for life in rare]) < 2 / (0.03 * 0.95)


def test_int8_is_found_by_the_sequential_test_alone() -> None:
    int8 = Cheater(cheated_errors=(0.028, 0.03, 0.035, 0.04), honest_errors=HONEST)
    assert {life.reason[:10] for life in lives(int8, Policy(), 50)} == {"its errors"}
    assert not any(life.reason for life in lives(int8, Policy(), 5, most=2000, ceiling=None))


def test_honest_servers_stay() -> None:
    honest = replace(SKIPS, share=0.0)
    assert lives(honest, Policy(), 20, most=2000) == [Lasted(2000, 0, "")] * 20


def test_what_cannot_be() -> None:
    for changes in ({"share": 1.5}, {"cheated_errors": ()}, {"session_windows": 0}):
        with pytest.raises(ConfigError):
            replace(SKIPS, **changes)
