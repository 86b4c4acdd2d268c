"""Whose accusations are looked into, in which order, and what a false one costs."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarm.client.judging import docket as docket_module
from swarm.client.judging.docket import (
    CASE_S,
    CLEARED_S,
    MAX_CASES,
    MAX_CASES_OF_ONE,
    MAX_HOLDERS,
    MAX_TRIES,
    RETRY_S,
    Docket,
)
from swarm.core.accusation import Accusation, ProofRef
from swarm.core.ids import PeerId

ALICE, BOB, CAROL = (PeerId(name) for name in ("alice", "bob", "carol"))
SUSPECT, OTHER = PeerId("suspect"), PeerId("other")


def ref(number: int) -> ProofRef:
    return ProofRef(number.to_bytes(32, "big"), 100)


def says(holder: str, subject: str, *numbers: int, **changes: Any) -> Accusation:
    fields: dict[str, Any] = {"instance": 1, "sequence": 1, "expires_s": 0.0, "addresses": (f"at {holder}",)}
    refs = tuple(map(ref, numbers))
    return Accusation(model="m", peer=holder, subject=subject, proofs=refs, **(fields | changes))


def test_a_case_is_opened_once_and_every_holder_may_be_asked() -> None:
    docket = Docket()
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    assert docket.hear(says(BOB, SUSPECT, 1), 1.0) == []
    assert docket.take(1.0) is case
    assert case.holders == {ALICE: ("at alice",), BOB: ("at bob",)}
    assert docket.take(100.0) is None, "it is under way"
    assert docket.holder(case) == ALICE
    docket.failed(case, ALICE, 1.0)
    assert docket.take(1.0) is case
    assert docket.holder(case) == BOB, "another one is asked at once"
    docket.failed(case, BOB, 1.0)
    assert docket.take(1.0) is None
    assert docket.take(1.0 + RETRY_S) is case


def test_who_was_right_before_is_heard_first() -> None:
    docket = Docket()
    [first] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    docket.proven(first)
    [older] = docket.hear(says(BOB, OTHER, 2), 1.0)
    [large] = docket.hear(with_size(says(BOB, OTHER, 4), 10**6), 0.0)
    [newer] = docket.hear(says(ALICE, OTHER, 3), 2.0)
    assert [docket.take(3.0) for _ in range(4)] == [newer, older, large, None], "of strangers', the smallest first"


def test_a_false_accusation_costs_everybody_who_made_it_all_belief() -> None:
    docket = Docket()
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    docket.hear(says(BOB, SUSPECT, 1), 0.0)
    [also] = docket.hear(says(ALICE, OTHER, 2), 0.0)
    docket.false(case, 0.0)
    assert docket.believes(ALICE) < 0
    assert docket.believes(BOB) < 0
    assert docket.take(0.0) is None, "nobody is left who could give the other proof"
    docket.expire(0.0)
    assert len(docket) == 0
    assert also.holders == {}
    assert docket.hear(says(ALICE, CAROL, 3), 1.0) == []
    assert len(docket) == 0


def test_after_a_false_one_strangers_are_heard_but_nobody_is_avoided_for_their_word() -> None:
    docket = Docket()
    [right] = docket.hear(says(CAROL, OTHER, 9), 0.0)
    docket.proven(right)
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    docket.false(case, 0.0)
    assert docket.hear(says(BOB, SUSPECT, 2), 1.0) == []
    assert docket.take(1.0) is not None, "it is checked all the same"
    assert docket.hear(says(CAROL, SUSPECT, 3), 1.0), "but not for the word of one who was right before"
    assert docket.hear(says("dave", SUSPECT, 4), CLEARED_S), "nor for ever"


def test_who_never_delivers_is_not_listened_to_and_takes_no_true_proof_with_it() -> None:
    docket = Docket()
    [case] = docket.hear(says("crowd 0", SUSPECT, 1), 0.0)
    for number in range(1, 3 * MAX_HOLDERS):
        docket.hear(says(f"crowd {number}", SUSPECT, 1), 0.0)
    now_s, asked = 0.0, 0
    while ALICE not in case.holders:
        docket.hear(says(ALICE, SUSPECT, 1), now_s)
        if docket.take(now_s) is None:
            now_s += RETRY_S
            continue
        docket.failed(case, docket.holder(case), now_s)
        asked += 1
    assert asked <= MAX_TRIES * MAX_HOLDERS, "an honest holder comes in as soon as one of the crowd is out"
    assert docket.believes(PeerId("crowd 0")) < 0
    docket.distrust(ALICE)
    for number in range(3 * MAX_HOLDERS):
        docket.distrust(PeerId(f"crowd {number}"))
    docket.expire(now_s)
    assert len(docket) == 0


def test_busy_is_no_fault() -> None:
    docket = Docket()
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    for attempt in range(20):
        assert docket.take(float(attempt)) is case
        docket.later(case, float(attempt), 1.0)
    assert docket.believes(ALICE) == 0


def test_what_cannot_be_judged_here_is_set_aside_and_nobody_blamed() -> None:
    docket = Docket()
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    docket.set_aside(case, 0.0)
    assert len(docket) == 0
    assert docket.hear(says(ALICE, SUSPECT, 1), 1.0) == []
    assert len(docket) == 0
    assert docket.believes(ALICE) == 0
    assert docket.hear(says(ALICE, SUSPECT, 1), CLEARED_S)


def test_attack_one_digest_for_two_servers_or_two_sizes() -> None:
    docket = Docket()
    [case] = docket.hear(says(ALICE, SUSPECT, 1), 0.0)
    assert docket.hear(says(BOB, OTHER, 1), 0.0) == []
    large = with_size(says(CAROL, SUSPECT, 1), 7)
    assert docket.hear(large, 0.0) == []
    assert set(case.holders) == {ALICE}


def with_size(record: Accusation, size: int) -> Accusation:
    return replace(record, proofs=tuple(ProofRef(proof.digest, size) for proof in record.proofs))


def test_attack_a_crowd_that_accuses_one_server_or_everybody() -> None:
    docket = Docket()
    [right] = docket.hear(says(CAROL, OTHER, 10_000), 0.0)
    docket.proven(right)
    for number in range(100):
        docket.hear(says(f"crowd {number}", SUSPECT, number), 0.0)
    assert len(docket) == MAX_CASES_OF_ONE
    assert docket.hear(says(CAROL, SUSPECT, 20_000), 0.0), "whoever was right before is heard in any crowd"
    for number in range(1000):
        docket.hear(says("mallory", f"server {number}", 1000 + number), 0.0)
    assert len(docket) == MAX_CASES
    for number in range(20):
        docket.hear(says(f"more {number}", SUSPECT, 0), 0.0)
    assert all(len(case.holders) <= MAX_HOLDERS for case in docket._cases.values())
    docket.drop([SUSPECT])
    assert all(case.subject != SUSPECT for case in docket._cases.values())
    docket.expire(CASE_S)
    assert len(docket) == 0


@given(st.lists(st.tuples(st.sampled_from(["hear", "failed", "false", "aside", "proven", "wait"]), st.integers(0, 40))))
def test_whatever_happens_its_memory_is_bounded(story: list[tuple[str, int]]) -> None:
    docket, now_s, limit = Docket(), 0.0, docket_module.MAX_REMEMBERED
    docket_module.MAX_REMEMBERED = 5
    try:
        for number, (what, which) in enumerate(story):
            docket.hear(says(f"holder {which}", f"server {which % 7}", number), now_s)
            case = docket.take(now_s)
            if case is not None:
                act = {"wait": docket.later, "false": docket.false, "aside": docket.set_aside}.get(what)
                if act is not None:
                    act(case, now_s)
                elif what == "failed":
                    docket.failed(case, docket.holder(case), now_s)
                elif what == "proven":
                    docket.proven(case)
            now_s += which
            docket.expire(now_s)
            assert max(map(len, (docket._belief, docket._cleared_s, docket._aside_s))) <= 5
            assert len(docket) <= MAX_CASES
    finally:
        docket_module.MAX_REMEMBERED = limit
