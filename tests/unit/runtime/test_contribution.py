"""What was contributed: added up, kept over crashes, and read however the file looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.runtime.contribution import Contribution, ContributionFile, Contributions

SOME = Contribution(sessions=2, decode_rows=100, decode_row_layers=1000, online_s=3600.0, sent_bytes=10**12)


def test_what_is_written_is_read_again_and_added_up(tmp_path: Path) -> None:
    file = ContributionFile.of(tmp_path / "key")
    assert file.read() is None
    noted = Contributions(1.5, 2.5, {"a": SOME, "b": Contribution(heals=1)})
    assert file.write(noted)
    assert file.read() == noted
    assert noted.total == SOME + Contribution(heals=1)
    assert [path.name for path in tmp_path.iterdir()] == ["key.contributed.json"], "no draft stays behind"


@given(
    st.builds(
        Contribution, sessions=st.integers(0, 2**60), online_s=st.floats(0, 1e9), sent_bytes=st.integers(0, 2**60)
    )
)
def test_figures_survive_their_form(found: Contribution) -> None:
    again = Contribution.of(json.loads(json.dumps(found.as_dict())))
    assert again.online_s == pytest.approx(found.online_s, abs=0.05)
    assert (again.sessions, again.sent_bytes) == (found.sessions, found.sent_bytes)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"models": 3}', "[" * 100_000, '{"models": {"a": {"sessions": "many"}}}']
)
def test_a_damaged_file_hurts_nobody(tmp_path: Path, text: str) -> None:
    file = ContributionFile(tmp_path / "file")
    file.path.write_text(text)
    found = file.read()
    assert found is None or found.total == Contribution()
    aside = file.set_aside()
    assert (aside is None) is (found is not None)
    assert file.write(Contributions(0.0, 1.0, {"a": SOME}))


def test_a_full_disk_costs_the_note_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = ContributionFile(tmp_path / "missing" / "file")
    assert not file.write(Contributions(0.0, 1.0, {}))
    assert "could not note" in caplog.text


def test_absurd_figures_count_as_nothing() -> None:
    assert Contribution.of({"sessions": -1, "heals": True, "receipts": float("nan"), "answers": 3, "new": 1}) == (
        Contribution(answers=3)
    )
