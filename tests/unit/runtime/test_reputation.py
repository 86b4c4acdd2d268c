"""The store of reputations: what it keeps, whom it names, and that nothing is lost or taken back."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.core.errors import ConfigError, MisuseError
from swarm.core.ids import PeerId
from swarm.runtime import database_file, reputation, reputation_rows
from swarm.runtime.clock import SystemClock, VirtualClock
from swarm.runtime.reputation import IN_MEMORY, ReputationStore, open_reputation
from swarm.verification.standings.apart import BROKEN
from swarm.verification.standings.ledger import Account, Ledger
from swarm.verification.standings.strikes import (
    TERMS,
    TRUSTED,
    UNPROVEN_S,
    Policy,
    Standing,
    accused,
    audit_rate,
    equivocated,
    on_probation,
    struck,
    traffic_asked,
    window_audited,
)
from swarm.verification.verdicts.verdict import Outcome

ALICE, BOB, CAROL = PeerId("12D3KooWAlice"), PeerId("12D3KooWBob"), PeerId("12D3KooWCarol")
POLICY = Policy()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[ReputationStore]:
    with ReputationStore(tmp_path / "deep" / "reputation.sqlite", clock) as opened:
        yield opened


def asked(standing: Standing) -> Standing:
    return traffic_asked(standing, answered=True)


def test_a_stranger_has_the_standing_of_one_and_is_not_listed(store: ReputationStore) -> None:
    assert store.standing(ALICE) == Standing()
    assert store.known() == []
    assert store.events() == []
    assert store.proofs() == []
    assert store.ejected() == frozenset() == store.accused()
    assert store.apart().pairs == frozenset()
    assert store.broken_links() == ()


def test_a_transition_is_kept_over_restarts(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as store:
        after = store.change(ALICE, lambda was: struck(was, POLICY, b"one"))
        assert after.strikes == (b"one",)
        assert after.raised == POLICY.escalation_windows
    with ReputationStore(path, clock) as store:
        assert store.standing(ALICE) == after
        assert [event.what for event in store.events(ALICE)] == ["strike 1", "its next 200 windows are all audited"]
        assert store.change(ALICE, lambda was: struck(was, POLICY, b"two")).ejected
        assert store.ejected() == {ALICE}
    with ReputationStore(path, clock) as store:
        assert store.ejected() == {ALICE}
        assert store.events()[-1].what == "ejected: 2 confirmed failures"


def test_e_of_the_last_audited_window_is_kept_beside_the_standing(store: ReputationStore, clock: VirtualClock) -> None:
    def audited(was: Standing) -> Standing:
        return window_audited(was, POLICY, Outcome.PASS, 0.02, reference=TRUSTED, ceiling=0.025)

    store.change(ALICE, audited, error=0.02)
    store.change(ALICE, asked)
    store.change(BOB, asked)
    known = {one.peer: one for one in store.known()}
    assert list(known) == [ALICE, BOB]
    assert known[ALICE].error == 0.02
    assert known[ALICE].standing.audited == 1
    assert known[BOB].error is None
    assert known[ALICE].changed_s == clock.wall_s()


def test_a_transition_that_raises_changes_nothing_and_one_that_uses_the_store_is_refused(
    store: ReputationStore,
) -> None:
    def fails(was: Standing) -> Standing:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.change(ALICE, fails)
    with pytest.raises(MisuseError, match="uses the store itself"):
        store.change(ALICE, lambda was: store.change(BOB, asked))
    assert store.known() == []
    store.change(ALICE, asked)


def test_ejection_is_seen_by_whoever_has_the_file_open(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as one, ReputationStore(path, clock) as other:
        assert one.ejected() == other.ejected() == frozenset()
        one.change(ALICE, equivocated)
        assert one.ejected() == other.ejected() == {ALICE}
        other.keep_apart(BOB, CAROL)
        assert not one.apart().allow(CAROL, BOB)
        assert one.apart().allow(ALICE, BOB)


async def test_a_pair_is_kept_apart_once_for_a_while_and_longer_when_it_breaks_again(
    store: ReputationStore, clock: VirtualClock
) -> None:
    store.keep_apart(CAROL, BOB)
    store.keep_apart(BOB, CAROL)
    assert store.apart().pairs == store.apart().shut == {(BOB, CAROL)}
    assert len(store.events()) == 1
    await clock.advance(BROKEN.apart.first_s)
    assert store.apart().allow(BOB, CAROL)
    store.keep_apart(BOB, CAROL)
    await clock.advance(BROKEN.apart.first_s)
    assert not store.apart().allow(BOB, CAROL)
    assert [link.times for link in store.broken_links()] == [2]
    with ReputationStore(IN_MEMORY, clock) as other:
        other.take_links(store.broken_links())
        assert other.apart() == store.apart()
    assert store.events()[-1].what.endswith("their link broke again, 2 times by now")
    with pytest.raises(MisuseError):
        store.keep_apart(BOB, BOB)


def test_pairs_of_older_files_are_long_past(store: ReputationStore) -> None:
    with store._file.writing() as database:
        old = msgspec.msgpack.encode({"pairs": [[BOB, CAROL]]})
        database.execute("INSERT INTO singles VALUES ('apart', ?)", (old,))
    store._marks = None
    assert store.apart().allow(BOB, CAROL)
    assert [link.pair for link in store.broken_links()] == [(BOB, CAROL)]


def lied(occasion: bytes) -> Callable[[Standing], Standing]:
    return lambda was: struck(was, POLICY, occasion, proven=False)


async def test_what_was_not_proven_ejects_for_a_term_and_then_for_longer(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as store, ReputationStore(path, clock) as other:
        store.change_ledger(lambda ledger: ledger._state.accounts.update({ALICE: Account(earned=96)}))
        store.change(ALICE, lied(b"one"))
        assert store.change(ALICE, lied(b"two")).ejected == "2 confirmed failures"
        assert store.events()[-1].what == "ejected for 1 h: 2 confirmed failures"
        assert store.ledger().account(ALICE).withheld == 96
        await clock.advance(TERMS.first_s - 1.0)
        assert store.ejected() == other.ejected() == {ALICE}
        await clock.advance(1.0)
        assert store.ejected() == other.ejected() == frozenset()
        assert [(one.standing.strikes, one.standing.ejected) for one in other.known()] == [((), "")]
        after = other.change(ALICE, asked)
        assert (after.terms, on_probation(after, POLICY)) == (1, True)
        assert other.events()[-1].what == "let back in, on probation"
        assert store.ledger().account(ALICE).earned == 96
        assert store.change(ALICE, lied(b"three")).ejected == "it failed again after it was let back in"
        await clock.advance(TERMS.after(2) - 1.0)
        assert other.ejected() == {ALICE}
        store.change(ALICE, equivocated)
        await clock.advance(10 * TERMS.most_s)
        assert store.ejected() == other.ejected() == {ALICE}, "a proof makes it for good"


def test_the_user_forgives_what_was_not_proven_while_others_have_the_file_open(
    tmp_path: Path, clock: VirtualClock
) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as store, ReputationStore(path, clock) as other:
        for occasion in (b"one", b"two"):
            store.change(ALICE, lied(occasion))
        store.accuse(ALICE, b"a" * 32, 4e9)
        store.keep_apart(ALICE, BOB)
        store.keep_apart(CAROL, BOB)
        assert other.ejected() == {ALICE}
        left = other.forgive(ALICE)
        assert (left.strikes, left.ejected, left.terms, left.raised) == ((), "", 0, 0)
        assert store.ejected() == store.accused() == frozenset()
        assert store.apart().pairs == {(BOB, CAROL)}
        assert store.events(ALICE)[-1].what == "forgiven"
        store.change(ALICE, lambda was: struck(was, POLICY, b"three"))
        store.change(ALICE, equivocated)
        assert other.forgive(ALICE).ejected, "that was proven"
        assert store.ejected() == {ALICE}
        assert other.forgive(ALICE, proven=True) == Standing()
        assert store.ejected() == frozenset()
        assert not store.ledger().account(ALICE).struck


async def test_a_proof_that_holds_by_the_word_of_others_is_judged_anew_when_its_strike_is_over(
    store: ReputationStore, clock: VirtualClock
) -> None:
    digest = store.keep_proof(ALICE, "fraud", b"rows")
    store.change(ALICE, lied(b"one"))
    store.judge(digest, proven=True, by_word=True)
    assert store.verdict(digest) is True
    await clock.advance(UNPROVEN_S)
    assert store.verdict(digest) is None
    store.judge(digest, proven=True)
    assert store.verdict(digest) is True
    unknown = hashlib.sha256(b"no proof is kept").digest()
    store.judge(unknown, proven=True, by_word=True)
    assert store.verdict(unknown) is None


def test_a_strike_withholds_what_was_earned_in_the_same_transaction(store: ReputationStore) -> None:
    def earn(ledger: Ledger) -> int:
        ledger._state.accounts[ALICE] = Account(earned=96)  # as ``settle`` leaves it
        return ledger.account(ALICE).earned

    assert store.change_ledger(earn) == 96
    assert store.ledger().account(ALICE).earned == 96
    store.change(ALICE, lambda was: struck(was, POLICY, b"one"))
    account = store.ledger().account(ALICE)
    assert (account.earned, account.withheld, account.struck) == (0, 96, True)


def test_a_change_of_the_ledger_that_raises_changes_nothing(store: ReputationStore) -> None:
    def half(ledger: Ledger) -> None:
        ledger.strike(ALICE)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.change_ledger(half)
    assert not store.ledger().account(ALICE).struck


def test_an_accusation_counts_until_it_expires_or_is_judged(store: ReputationStore, clock: VirtualClock) -> None:
    first, second = b"1" * 32, b"2" * 32
    assert store.accuse(ALICE, first, clock.wall_s() + 100)
    assert not store.accuse(ALICE, first, clock.wall_s() + 100)
    assert store.accuse(BOB, second, clock.wall_s() + 100)
    assert store.accused() == {ALICE, BOB}
    store.judge(first, proven=False)
    assert store.accused() == {BOB}
    assert store.verdict(first) is False
    assert store.verdict(second) is None
    assert not store.accuse(ALICE, first, clock.wall_s() + 100), "a proof that was judged is not noted again"
    assert store.accused() == {BOB}
    store.change(BOB, equivocated)
    assert store.accused() == frozenset(), "the ejected are no suspects"
    store.accuse(CAROL, b"3" * 32, clock.wall_s() - 1)
    assert store.accused() == frozenset()


def test_an_accusation_raises_the_audit_rate_by_its_transition(store: ReputationStore) -> None:
    old = Standing(audited=10_000)
    assert audit_rate(store.change(ALICE, lambda was: old), POLICY) == POLICY.audit_rate
    assert audit_rate(store.change(ALICE, lambda was: accused(was, POLICY)), POLICY) == 1.0


async def test_what_strangers_can_cause_is_bounded(
    store: ReputationStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (reputation_rows, "MAX_PEERS"),
        (reputation_rows, "MAX_EVENTS"),
        (reputation, "MAX_JUDGED"),
        (reputation, "MAX_ACCUSATIONS"),
    ):
        monkeypatch.setattr(module, name, 10)
    store.change(ALICE, equivocated)
    for number in range(30):
        peer, digest = PeerId(f"12D3KooW{number}"), number.to_bytes(32, "big")
        await clock.advance(1.0)
        store.change(peer, asked)
        store.accuse(peer, digest, clock.wall_s() + 1000)
        store.judge(bytes([1]) + digest[1:], proven=False)
        store.note(peer, "something")
    assert len(store.known()) == 10 == len(store.events()) == len(store.accused())
    assert store.ejected() == {ALICE}, "whoever is ejected is never forgotten"
    assert PeerId("12D3KooW29") in {one.peer for one in store.known()}
    assert store.verdict(bytes([1]) + (29).to_bytes(32, "big")[1:]) is False


def test_proofs_are_found_by_their_digest_and_the_oldest_make_room(
    store: ReputationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reputation, "MAX_PROOFS", 3)
    monkeypatch.setattr(reputation, "MAX_PROOFS_BYTES", 100)
    digests = [store.keep_proof(ALICE, "fraud", bytes([number]) * 20) for number in range(5)]
    assert digests[0] == hashlib.sha256(bytes(20)).digest()
    assert [proof.digest for proof in store.proofs()] == digests[:1:-1]
    assert store.proof(digests[4]) == b"\4" * 20
    assert store.proof(digests[0]) is None
    assert store.keep_proof(ALICE, "fraud", b"\4" * 20) == digests[4]
    assert len(store.proofs()) == 3
    long = store.keep_proof(BOB, "equivocation", bytes(90))
    assert [(one.digest, one.subject, one.kind, one.size) for one in store.proofs()] == [
        (long, BOB, "equivocation", 90)
    ]
    with pytest.raises(MisuseError):
        store.keep_proof(BOB, "fraud", b"")


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
