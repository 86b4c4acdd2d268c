"""The page's memory on disk: a day of figures and the latest events, whatever happens to the process or the file."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from sights import MODEL, NOW_S, built, server

from swarm.core.errors import ConfigError, DamagedFileError
from swarm.health.state import EventState, ModelState
from swarm.health.watching import archive as module
from swarm.health.watching.archive import GAP_ROWS, IN_MEMORY, KEPT_S, STEP_S, Archive, Past, covered_share

WHOLE = built([server(0, 0, 2), server(1, 2, 4), server(2, 4, 6)])
PART = built([server(0, 0, 2), server(1, 2, 4)], step_s=None)
DAY = int(KEPT_S / STEP_S)


def events(count: int) -> list[EventState]:
    return [EventState(number=0, at=NOW_S, kind="joined", model=MODEL, peer="p", text=str(n)) for n in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "history.sqlite"


@pytest.mark.parametrize("in_memory", [False, True])
def test_what_was_added_is_told_in_columns(path: Path, in_memory: bool) -> None:
    archive = Archive(IN_MEMORY if in_memory else path)
    archive.add([WHOLE], NOW_S)
    archive.add([PART, replace(WHOLE, model="other")], NOW_S + STEP_S)
    found = archive.history(MODEL, 1.0, NOW_S + STEP_S)
    assert (found.model, found.step_s) == (MODEL, STEP_S)
    assert found.at == [NOW_S, NOW_S + STEP_S]
    assert found.tokens_per_s == [10.0, None]
    assert found.covered_share == [1.0, pytest.approx(4 / 6)]
    assert found.servers == [3, 2]
    assert found.served_tokens_per_s == [0.0, 0.0]
    assert found.step_p50_s == found.step_p99_s == [None, None]
    assert archive.history("nothing", 24.0, NOW_S).at == []
    assert path.exists() is not in_memory
    archive.close()


def test_of_one_half_minute_the_last_row_counts() -> None:
    archive = Archive(IN_MEMORY)
    archive.add([WHOLE], NOW_S)
    archive.add([PART], NOW_S + STEP_S / 2)
    assert archive.history(MODEL, 1.0, NOW_S + STEP_S).at == [NOW_S + STEP_S / 2]


def test_a_gap_is_shown_as_one() -> None:
    archive = Archive(IN_MEMORY)
    for slot in (0, 1, 2 + GAP_ROWS, 3 + GAP_ROWS):
        archive.add([WHOLE], NOW_S + slot * STEP_S)
    found = archive.history(MODEL, 1.0, NOW_S + 600)
    assert found.at == [NOW_S + slot * STEP_S for slot in (0, 1, 2, 2 + GAP_ROWS, 3 + GAP_ROWS)]
    assert found.servers == [3, 3, None, 3, 3]
    assert found.covered_share[2] is None


def test_several_days_take_no_more_room_than_one(path: Path) -> None:
    """Written in parts of a day here, since a row costs a transaction."""
    archive, part = Archive(path), DAY // 8
    sizes = []
    for number in range(32):
        first = int(NOW_S // STEP_S) + number * part
        rows = [(MODEL, slot, slot * STEP_S) for slot in range(first, first + part)]
        with archive._file.writing() as database:
            database.executemany("INSERT OR REPLACE INTO figures (model, slot, at) VALUES (?, ?, ?)", rows)
        archive.add([WHOLE], (first + part) * STEP_S)
        with archive._file.reading() as database:
            assert database.execute("SELECT count(*) FROM figures").fetchone()[0] <= DAY + 2
            sizes.append(database.execute("PRAGMA page_count").fetchone()[0])
    assert 10 < sizes[31] <= 1.1 * sizes[15]
    assert len(archive.history(MODEL, 24.0, (first + part) * STEP_S).at) in (DAY, DAY + 1)
    archive.close()


def test_rows_of_a_clock_that_was_wrong_are_forgotten() -> None:
    archive = Archive(IN_MEMORY)
    archive.add([WHOLE], NOW_S + 1e6)
    archive.add([WHOLE], NOW_S)
    assert archive.history(MODEL, 24.0, NOW_S).at == [NOW_S]


def test_events_are_numbered_on_and_on_and_the_oldest_forgotten(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 5)
    archive = Archive(path)
    assert [event.number for event in archive.note(events(3))] == [1, 2, 3]
    assert archive.note([]) == []
    assert [event.number for event in archive.note(events(4))] == [4, 5, 6, 7]
    assert [event.number for event in archive.events()] == [3, 4, 5, 6, 7]
    assert [event.text for event in archive.events(2)] == ["2", "3"]
    archive.close()
    again = Archive(path)
    assert [event.number for event in again.note(events(1))] == [8]
    assert [event.number for event in again.note(events(2), above=20)] == [21, 22]
    assert [event.number for event in again.note(events(1), above=3)] == [23]
    again.close()


KILLED = """
import sys
from swarm.health.watching.archive import Archive, STEP_S
from sights import NOW_S
from test_archive import WHOLE, events
archive = Archive(sys.argv[1])
for number in range(10**6):
    archive.add([WHOLE], NOW_S + number * STEP_S)
    archive.note(events(1))
    print(number, flush=True)
"""


def test_whoever_is_killed_keeps_what_it_wrote(path: Path) -> None:
    here = Path(__file__)
    folders = [here.parent, here.parents[1], here.parents[4]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.kill()
        process.wait()
    archive = Archive(path)
    assert archive.notice == ""
    assert len(archive.events()) >= 21
    assert len(archive.history(MODEL, 24.0, NOW_S + 20 * STEP_S).at) >= 21
    archive.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_moved_aside_and_told(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    archive = Archive(path)
    assert "damaged" in archive.notice
    assert "begins anew" in archive.notice
    assert path.with_name("history.sqlite.damaged").read_bytes() == content
    archive.add([WHOLE], NOW_S)
    assert archive.history(MODEL, 1.0, NOW_S).at == [NOW_S]
    archive.close()


def test_damage_that_is_met_later_begins_a_new_file(path: Path) -> None:
    archive = Archive(path)
    for number in range(300):
        archive.add([WHOLE], NOW_S + number * STEP_S)
    archive.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xaa" * (len(data) - 4096)
    path.write_bytes(data)
    try:
        archive = Archive(path)
        with pytest.raises(DamagedFileError) as caught:
            archive.history(MODEL, 24.0, NOW_S + 300 * STEP_S)
        archive.renew(caught.value)
    except DamagedFileError:
        pytest.fail("it is moved aside when it is opened")
    assert "damaged" in archive.notice
    archive.add([WHOLE], NOW_S)
    assert archive.history(MODEL, 1.0, NOW_S).at == [NOW_S]
    archive.close()


def test_another_version_and_a_place_that_cannot_be_written_are_errors(path: Path) -> None:
    Archive(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(ConfigError, match="history of the health page of version 7"):
        Archive(path)
    (path.parent / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use the history of the health page"):
        Archive(path.parent / "file" / "history.sqlite")


@pytest.mark.parametrize(("model", "share"), [(WHOLE, 1.0), (PART, 4 / 6), (built([], 0, step_s=None), None)])
def test_how_much_is_covered(model: ModelState, share: float | None) -> None:
    assert covered_share(model) == (None if share is None else pytest.approx(share))


def test_when_models_were_first_heard_of_and_whether_they_ever_were_whole(path: Path) -> None:
    archive = Archive(path)
    assert archive.models() == {}
    archive.add([PART], NOW_S)
    archive.add([WHOLE], NOW_S + STEP_S)
    archive.add([PART, replace(PART, model="other"), replace(PART, model="none", layers=0)], NOW_S + 2 * STEP_S)
    assert archive.models() == {
        MODEL: Past(NOW_S, whole=True),
        "other": Past(NOW_S + 2 * STEP_S),
        "none": Past(NOW_S + 2 * STEP_S),
    }
    archive.close()
