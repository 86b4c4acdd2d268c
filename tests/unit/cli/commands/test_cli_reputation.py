"""``swarm reputation``: the table, the JSON, and a proof that can be shown to others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from proofs_at_hand import evidence_against

from swarm.cli.main import main
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime import reputation
from swarm.runtime.clock import SystemClock
from swarm.runtime.reputation import ReputationStore
from swarm.verification.standings.ledger import Account, Ledger
from swarm.verification.standings.strikes import TRUSTED, Policy, Standing, equivocated, struck, window_audited
from swarm.verification.verdicts.verdict import Outcome

CHEAT = Identity(b"c" * 32)
GOOD, NEW, SUSPECT = (PeerId(f"12D3KooW{name}") for name in ("Goodgood", "Newnew", "Suspect"))
MODEL = "demo@main#0123456789abcdef"


def audited(standing: Standing) -> Standing:
    return window_audited(standing, Policy(), Outcome.PASS, 0.018, reference=TRUSTED, ceiling=0.025)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reputation.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    def credit(ledger: Ledger) -> None:
        ledger._state.accounts[GOOD] = Account(earned=960)  # as ``settle`` leaves them
        ledger._state.accounts[CHEAT.peer_id] = Account(earned=320)

    with ReputationStore(path, SystemClock()) as store:
        store.change_ledger(credit)
        for _ in range(60):
            store.change(GOOD, audited, error=0.018)
        store.change(NEW, audited, error=0.02)
        store.change(SUSPECT, lambda was: struck(was, Policy(), b"one"))
        store.accuse(NEW, b"n" * 32, 4e9)
        store.change(CHEAT.peer_id, equivocated)
        store.keep_proof(CHEAT.peer_id, "equivocation", evidence_against(CHEAT, MODEL))
        store.keep_apart(GOOD, NEW)
    return path


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["reputation", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table_has_the_ejected_first_and_says_why(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = asked(capsys, "--store", str(filled)).splitlines()
    assert lines[0].split() == ["server", "windows", "e", "evidence", "strikes", "audits", "credit", "standing"]
    cheat, why, suspect, good, new, accused = lines[1:7]
    assert cheat.split()[0] == CHEAT.peer_id[-8:]
    assert "0 (320 withheld)" in cheat
    assert why.strip().startswith("EJECTED: it signed two different receipts with one counter")
    assert max(map(len, lines)) <= 100
    assert "last 8 characters" in lines[-1]
    assert suspect.split()[0] == SUSPECT
    assert suspect.endswith("struck")
    assert good.split()[:3] == [GOOD, "60", "0.0180"]
    assert good.endswith("good")
    assert "960" in good
    assert new.split()[0] == NEW
    assert accused.strip() == "accused by somebody, not yet checked"
    assert any(line.startswith(f"  {GOOD} and {NEW}, until 20") for line in lines)
    assert any(line.split()[1:3] == ["equivocation", CHEAT.peer_id[-8:]] for line in lines if "equivocation" in line)


def test_the_json_says_it_all(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, Any] = json.loads(asked(capsys, "--store", str(filled), "--json", "--events"))
    peers = {entry["peer"]: entry for entry in found["peers"]}
    assert set(peers) == {CHEAT.peer_id, GOOD, NEW, SUSPECT}
    good = peers[GOOD]
    assert (good["windows_audited"], good["e"], good["strikes"], good["ejected"]) == (60, 0.018, 0, "")
    assert (good["credit"], good["on_probation"], good["accused"]) == (960, False, False)
    assert 0.7 < good["audit_rate"] < 0.8
    assert good["evidence"] == [{"reference": "own weights", "windows": 60, "log10": good["evidence"][0]["log10"]}]
    assert good["evidence"][0]["log10"] < 0
    assert peers[CHEAT.peer_id]["ejected"].startswith("it signed two")
    assert (peers[CHEAT.peer_id]["credit"], peers[CHEAT.peer_id]["withheld"]) == (0, 320)
    assert peers[SUSPECT]["strikes"] == 1
    assert peers[NEW]["accused"]
    assert peers[NEW]["on_probation"]
    assert found["apart"] == [[GOOD, NEW]]
    [link] = found["broken_links"]
    assert (link["peers"], link["times"]) == ([GOOD, NEW], 1)
    assert link["apart_until_s"] - link["last_resort_from_s"] == 540.0
    assert [proof["peer"] for proof in found["proofs"]] == [CHEAT.peer_id]
    assert next(event["what"] for event in found["events"] if event["peer"] == SUSPECT) == "strike 1"


def test_one_server_by_the_end_of_its_id_with_its_events(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = asked(capsys, "--store", str(filled), "--peer", SUSPECT[-6:], "--events")
    assert GOOD not in out
    assert "strike 1" in out
    assert "two different receipts" not in out
    assert main(["reputation", "--store", str(filled), "--peer", "nobody"]) == 2
    assert "nothing is known" in capsys.readouterr().err


def test_a_kept_proof_is_written_to_be_shown(filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evidence = evidence_against(CHEAT, MODEL)
    digest, out = hashlib.sha256(evidence).hexdigest(), tmp_path / "cheat.proof"
    asked(capsys, "--store", str(filled), "--proof", digest[:8], "--out", str(out))
    assert out.read_bytes() == evidence
    for wrong in (["--proof", "zz", "--out", str(out)], ["--proof", digest]):
        assert main(["reputation", "--store", str(filled), *wrong]) == 2
    assert main(["reputation", "--store", str(filled), "--proof", digest, "--out", str(tmp_path)]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_without_a_store_it_says_so_and_makes_none(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reputation, "data_folder", lambda: path.parent)
    assert "Nothing is known of any server yet" in asked(capsys)
    assert json.loads(asked(capsys, "--json"))["peers"] == []
    assert not path.exists()
    assert main(["reputation", "--store", str(path)]) == 2
    assert "no store of reputations" in capsys.readouterr().err


def test_pairs_kept_apart_are_listed_though_nothing_else_is_known(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ReputationStore(path, SystemClock()) as store:
        store.keep_apart(GOOD, NEW)
    assert f"  {GOOD} and {NEW}, until 20" in asked(capsys, "--store", str(path))


def test_a_single_server_is_not_forgiven_by_naming_nobody(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ReputationStore(path, SystemClock()) as store:
        store.change(CHEAT.peer_id, equivocated)
        assert main(["reputation", "--store", str(path), "--forgive", "", "--proven"]) == 2
        assert store.ejected() == {CHEAT.peer_id}
    assert "at least the last 4 characters" in capsys.readouterr().err


def test_links_of_older_files_have_no_times(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ReputationStore(path, SystemClock()) as store, store._file.writing() as database:
        old = msgspec.msgpack.encode({"pairs": [[GOOD, NEW]]})
        database.execute("INSERT INTO singles VALUES ('apart', ?)", (old,))
    found = json.loads(asked(capsys, "--store", str(path), "--json"))
    unknown = {"since_s": None, "last_resort_from_s": None, "apart_until_s": None}
    assert found["broken_links"] == [{"peers": [GOOD, NEW], "times": 1, **unknown}]
    assert found["apart"] == []


def test_what_was_not_proven_says_so_and_is_forgiven_while_a_client_runs(
    filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_option = ("--store", str(filled))
    with ReputationStore(filled, SystemClock()) as running:
        for occasion in (b"one", b"two"):
            running.change(NEW, lambda was, occasion=occasion: struck(was, Policy(), occasion, proven=False))
        shown = asked(capsys, *store_option)
        lines = shown.splitlines()
        line = next(line for line in lines if "EJECTED until 20" in line)
        assert NEW in lines[lines.index(line) - 1]
        assert line.endswith("UTC, not proven: 2 confirmed failures")
        entry = json.loads(asked(capsys, *store_option, "--json", "--peer", NEW))["peers"][0]
        assert (entry["strikes_unproven"], entry["terms"]) == (2, 1)
        assert entry["ejected_until_s"] == pytest.approx(running.standing(NEW).until_s)
        assert running.ejected() == {NEW, CHEAT.peer_id}
        assert asked(capsys, *store_option, "--forgive", NEW[-5:]).startswith("Forgiven: nothing is held against")
        assert running.ejected() == {CHEAT.peer_id}
        assert NEW not in {peer for link in running.broken_links() for peer in link.pair}
        assert main(["reputation", *store_option, "--forgive", CHEAT.peer_id]) == 1
        assert "It stays ejected: it signed two" in capsys.readouterr().out
        assert running.ejected() == {CHEAT.peer_id}
        asked(capsys, *store_option, "--forgive", CHEAT.peer_id, "--proven")
        assert running.ejected() == frozenset()


def test_forgiving_names_one_server(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "at least the last 4 characters"
    with ReputationStore(filled, SystemClock()) as store:
        store.change(twin := PeerId("12D3KooWTwinSuspect"), audited)
        assert twin.endswith(SUSPECT[-7:])
    for wrong, why in (("nobody", "nothing is known"), ("Suspect", "2 servers have ids"), ("", short), ("ect", short)):
        assert main(["reputation", "--store", str(filled), "--forgive", wrong]) == 2
        assert why in capsys.readouterr().err
    assert main(["reputation", "--store", str(filled), "--proven"]) == 2
    assert "--proven goes with --forgive" in capsys.readouterr().err


def test_a_damaged_store_is_an_error_of_one_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_bytes(b"no database" * 100)
    assert main(["reputation", "--store", str(path)]) == 2
    assert "damaged" in capsys.readouterr().err
