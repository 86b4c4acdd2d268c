"""The store of reputations on its disk: shared by threads and processes, killed, damaged, full, or nowhere at all."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from reputation_at_hand import ALICE, BOB, asked
from reputation_at_hand import clock as clock
from reputation_at_hand import store as store

from swarm.core.errors import ConfigError
from swarm.core.ids import PeerId
from swarm.runtime import database_file, reputation
from swarm.runtime.clock import SystemClock, VirtualClock
from swarm.runtime.reputation import IN_MEMORY, ReputationStore, open_reputation
from swarm.verification.standings.strikes import (
    equivocated,
)


def test_threads_lose_nothing(store: ReputationStore) -> None:
    def work() -> None:
        for _ in range(20):
            store.change(ALICE, asked)
            store.ejected()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.standing(ALICE).traffic.asked == 60


WRITER = """
import sys
from swarm.core.ids import PeerId
from swarm.runtime.clock import SystemClock
from swarm.runtime.reputation import ReputationStore
from swarm.verification.standings.strikes import traffic_asked
store = ReputationStore(sys.argv[1], SystemClock())
print("open", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    store.change(PeerId("12D3KooWAlice"), lambda was: traffic_asked(was, answered=True))
    store.note(PeerId("12D3KooWAlice"), str(number))
    print(number, flush=True)
"""


def writer(path: Path, changes: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(path), str(changes)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_processes_that_make_the_file_and_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "reputation.sqlite"
    processes = [writer(path, 150) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    for process in processes:
        start(process)
    for process in processes:
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert told.split()[-1] == "149"
    with ReputationStore(path, SystemClock()) as store:
        assert store.standing(ALICE).traffic.asked == 300
        assert len(store.events()) == 300


def test_one_process_opens_the_file_twice_and_another_comes_and_goes(tmp_path: Path, clock: VirtualClock) -> None:
    """Whoever closes the file last tidies up: nobody may take himself for the last while this process has it open."""
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as first:
        first.change(ALICE, asked)
        ReputationStore(path, clock).close()
        other = writer(path, 1)
        start(other)
        other.communicate(timeout=60)
        first.change(ALICE, asked)
        assert path.with_name(path.name + "-wal").exists(), "the other process took the log away"
        with ReputationStore(path, clock) as second:
            assert second.standing(ALICE).traffic.asked == 3
            second.change(ALICE, asked)
        assert first.standing(ALICE).traffic.asked == 4


def test_kill_9_in_the_middle_of_writes_takes_nothing_back(tmp_path: Path) -> None:
    path = tmp_path / "reputation.sqlite"
    returned = 0
    for kill_after in (1, 37, 80):
        process = writer(path, 1_000_000)
        start(process)
        assert process.stdout is not None
        for _ in range(kill_after + 1):  # "open", then so many returned changes
            process.stdout.readline()
        process.kill()
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        returned += kill_after + len(rest)
        with ReputationStore(path, SystemClock()) as store:
            count = store.standing(ALICE).traffic.asked
            assert returned <= count <= returned + 1
            returned = count
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_damaged_file_is_named_with_the_next_step_and_left_as_it_is(
    tmp_path: Path, clock: VirtualClock, content: bytes
) -> None:
    path = tmp_path / "reputation.sqlite"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"reputation\.sqlite") as caught:
        ReputationStore(path, clock)
    assert "damaged" in caught.value.message
    assert "copy" in caught.value.hint
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_told_when_it_is_met(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as store:
        for number in range(300):
            store.change(PeerId(f"12D3KooW{number:04}"), asked)
    data = bytearray(path.read_bytes())
    data[8192:] = b"\xaa" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="damaged"), ReputationStore(path, clock) as store:
        store.known()


def test_a_damaged_entry_is_told(store: ReputationStore, tmp_path: Path) -> None:
    store.change(ALICE, equivocated)
    store.keep_apart(ALICE, BOB)
    path = tmp_path / "deep" / "reputation.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE peers SET standing = x'00'")
        database.execute("UPDATE singles SET value = x'c1'")
    database.close()
    with pytest.raises(ConfigError, match="damaged entry"):
        store.standing(ALICE)
    with pytest.raises(ConfigError, match="damaged entry"):
        store.apart()


def test_a_file_of_another_version_is_refused(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    ReputationStore(path, clock).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(ConfigError, match="version 7") as caught:
        ReputationStore(path, clock)
    assert caught.value.hint == "update the package"


def test_a_file_that_another_process_holds_is_told(
    store: ReputationStore, tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_file, "BUSY_S", 0.05)
    path = tmp_path / "deep" / "reputation.sqlite"
    other = ReputationStore(path, clock)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConfigError, match="in use"):
        other.change(ALICE, equivocated)
    assert other.ejected() == frozenset(), "readers need not wait"
    holder.execute("ROLLBACK")
    other.change(ALICE, equivocated)
    assert store.ejected() == {ALICE}
    holder.close()
    other.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, clock: VirtualClock) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "reputation.sqlite"):
        with pytest.raises(ConfigError, match="cannot use the store of reputations"):
            ReputationStore(path, clock)


def test_nobody_else_may_read_the_file(store: ReputationStore, tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    store.change(ALICE, asked)
    for name in os.listdir(folder):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_in_memory_nothing_is_written(tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ReputationStore(IN_MEMORY, clock) as store:
        store.change(ALICE, equivocated)
        assert store.ejected() == {ALICE}
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_its_default_place_is_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation, "data_folder", lambda: Path("/data/swarm"))
    assert ReputationStore.default_path() == Path("/data/swarm/reputation.sqlite")


def test_without_a_data_folder_what_is_learnt_lasts_as_long_as_the_process(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise ConfigError("this user has no home folder")

    (tmp_path / "file").write_text("")
    for folder in (homeless, lambda: tmp_path / "file" / "swarm"):
        monkeypatch.setattr(reputation, "data_folder", folder)
        caplog.clear()
        with open_reputation(None, clock) as store:
            store.change(ALICE, equivocated)
        assert "forgotten when this ends" in caplog.text
    monkeypatch.setattr(reputation, "data_folder", lambda: tmp_path / "swarm")
    with open_reputation(None, clock) as store:
        store.change(ALICE, equivocated)
    with open_reputation(tmp_path / "swarm" / "reputation.sqlite", clock) as store:
        assert store.ejected() == {ALICE}


def test_a_damaged_store_in_the_data_folder_is_not_passed_over(
    tmp_path: Path, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reputation, "data_folder", lambda: tmp_path)
    (tmp_path / "reputation.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(ConfigError, match="damaged"):
        open_reputation(None, clock)
