"""``swarm audit-rate``: the figures of the design, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
DESIGN = ("--saving", "0.6", "--loss", "300", "--detection", "0.95")


def test_the_example_of_the_issue(said: Run) -> None:
    code, out, err = said("audit-rate", *DESIGN, "--strikes", "2")
    assert (code, err) == (0, "")
    assert out.startswith("q = 0.4211%")  # 0.6 * 2 / (0.95 * 300)
    assert "500 windows" in out  # K / (q d) = L / g
    assert "ejected within 500 audits with probability 0.0012" in out  # C(500, 2) * 1e-8
    assert "the loss is real" in out


def test_the_object(said: Run) -> None:
    code, out, _ = said("audit-rate", *DESIGN, "--strikes", "3", "--false-rate", "0.01", "--audits", "200", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["q"] == pytest.approx(0.6 * 3 / (0.95 * 300))
    assert found["q_if_he_goes_on"] == pytest.approx(0.6 / (0.95 * 300 - 0.6 * 2))
    assert found["cheated_windows"] == pytest.approx(500)
    assert found["honest_ejection"] == pytest.approx(0.32, abs=0.005)
    assert found["deterred"] is True
    assert len(found["assumptions"]) >= 3


def test_where_nothing_deters(said: Run) -> None:
    code, out, _ = said("audit-rate", "--loss", "1", "--strikes", "3", "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["deterred"], found["cheated_windows"]) == (False, None)
    code, out, _ = said("audit-rate", "--loss", "0.1", "--strikes", "3")
    assert code == 1
    assert out.startswith("no audit rate deters")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--saving", "0"), ("--loss", "nan"), ("--loss", "inf"), ("--detection", "2"), ("--strikes", "0"),
     ("--audits", "0"), ("--false-rate", "-1"), ("--audits", "10000000")],
)  # fmt: skip
def test_what_cannot_be_is_named(said: Run, option: str, value: str) -> None:
    code, out, err = said("audit-rate", f"{option}={value}")
    assert (code, out) == (2, "")
    assert option.strip("-") in err
