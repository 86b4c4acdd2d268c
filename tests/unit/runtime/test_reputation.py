"""The store of reputations: what it keeps, whom it names, for how long, and within which bounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from reputation_at_hand import ALICE, BOB, asked
from reputation_at_hand import clock as clock
from reputation_at_hand import store as store

from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.runtime import reputation, reputation_rows
from swarm.runtime.clock import VirtualClock
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
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
    window_audited,
)
from swarm.verification.verdicts.verdict import Outcome

CAROL = PeerId("12D3KooWCarol")
POLICY = Policy()


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


async def test_ejections_of_older_files_without_a_proof_are_for_a_term(tmp_path: Path, clock: VirtualClock) -> None:
    """Such files say neither which strikes were proven nor until when: their rows lack the later fields."""

    def write(store: ReputationStore, peer: PeerId, standing: Standing) -> None:
        fields = msgspec.msgpack.decode(standing.to_bytes())
        for later in ("unproven", "passing", "until_s", "terms"):
            del fields[later]
        with store._file.writing() as database:
            row = peer, msgspec.msgpack.encode(fields), True, True, None, 0.0
            database.execute("INSERT INTO peers VALUES (?, ?, ?, ?, ?, ?)", row)

    def compared(reference: str) -> Standing:
        return window_audited(Standing(), POLICY, Outcome.PASS, 0.02, reference=reference, ceiling=0.025)

    path = tmp_path / "reputation.sqlite"
    failed = struck(struck(compared("12D3KooWAuditor"), POLICY, b"one"), POLICY, b"two")
    own = struck(struck(compared(TRUSTED), POLICY, b"one"), POLICY, b"two")
    twice = equivocated(Standing())
    others = {BOB: failed, CAROL: own, PeerId("12D3KooWDave"): twice}
    with ReputationStore(path, clock) as store:
        store.keep_proof(BOB, "fraud", b"rows")
        for peer, standing in {ALICE: failed, **others}.items():
            write(store, peer, standing)
    with ReputationStore(path, clock) as store:
        found = store.standing(ALICE)
        assert (found.passing, found.terms, found.until_s) == (True, 1, clock.wall_s() + TERMS.first_s)
        assert {entry.occasion for entry in found.unproven} == {b"one", b"two"}
        assert store.ejected() == {ALICE, *others}
        assert [event.peer for event in store.events()] == [ALICE]
        await clock.advance(TERMS.first_s / 2)
    with ReputationStore(path, clock) as store:
        assert store.standing(ALICE) == found, "its term began once"
        await clock.advance(TERMS.first_s / 2)
        assert store.ejected() == set(others)
        assert {peer: store.standing(peer) for peer in others} == others
        await clock.advance(10 * TERMS.most_s)
        assert store.ejected() == set(others)


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


def test_what_the_word_of_others_said_stays_forgiven(tmp_path: Path, clock: VirtualClock) -> None:
    path = tmp_path / "reputation.sqlite"
    with ReputationStore(path, clock) as store:
        told, bobs = (store.keep_proof(peer, "fraud", peer.encode()) for peer in (ALICE, BOB))
        for peer, digest in ((ALICE, told), (BOB, bobs)):
            store.change(peer, lied(b"one"))
            store.judge(digest, proven=True, by_word=True)
        store.forgive(ALICE)
    with ReputationStore(path, clock) as store:
        assert store.verdict(told) is True, "nobody judges it anew"
        assert store.verdict(told, own_weights=True) is True
        assert not store.accuse(ALICE, told, clock.wall_s() + 100)
        store.judge(told, proven=True, by_word=True)
        assert store.verdict(told) is True, "a verdict that was on its way changes nothing"
        assert store.verdict(store.keep_proof(ALICE, "fraud", b"another")) is None
        assert store.verdict(bobs, own_weights=True) is None, "only what was forgiven is settled"


def test_the_word_of_others_is_no_verdict_for_own_weights(store: ReputationStore) -> None:
    digest = store.keep_proof(ALICE, "fraud", b"rows")
    store.change(ALICE, lied(b"one"))
    store.judge(digest, proven=True, by_word=True)
    assert (store.verdict(digest), store.verdict(digest, own_weights=True)) == (True, None)
    store.judge(digest, proven=True)
    store.judge(digest, proven=True, by_word=True)
    assert store.verdict(digest, own_weights=True) is True, "a word takes nothing back"
    store.judge(digest, proven=False)
    assert store.verdict(digest) is False


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
