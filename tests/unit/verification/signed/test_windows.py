"""What a stage signs and when: only accepted rows, every window once it is full, again if it was taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from receipted_chain import EXPIRES_S, NOW_S, Chain, leaves_of, opening, sign

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.verification.signed.equivocation import conflict
from swarm.verification.signed.leaves import Leaf
from swarm.verification.signed.merkle import leaf_hash, merkle_root
from swarm.verification.signed.receipts import NO_HASH, Receipt, open_leaves, verify_receipt
from swarm.verification.signed.windows import COUNTERS_PER_STAGE, WindowBuilder, counter_base

STAGE = opening(0, 0, 3)


def root_of(leaves: list[Leaf]) -> bytes:
    return merkle_root([leaf_hash(leaf.canonical()) for leaf in leaves])


def filled(rows: int, version: int = 0) -> WindowBuilder:
    builder = WindowBuilder(STAGE, 100)
    builder.append(leaves_of(STAGE, range(rows), version))
    return builder


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 50)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("commit"), st.floats(0, 1)),
    ),
    max_size=25,
)


@given(steps, st.floats(0, 1))
def test_every_accepted_row_is_signed_once_and_no_other(script: list[tuple[str, float]], closing: float) -> None:
    builder, rows, committed = WindowBuilder(STAGE, 5), list[Leaf](), 0
    current: dict[int, Receipt] = {}
    signed: list[Receipt] = []

    def note(receipts: list[Receipt]) -> None:
        for receipt in receipts:
            assert receipt.last <= committed
            assert receipt.leaf_root == root_of(rows[receipt.first : receipt.last])
            assert receipt.previous == (signed[-1].digest() if signed else NO_HASH)
            assert receipt.counter == 5 + len(signed)
            for window in [old for old in current if old >= receipt.window]:
                del current[window]  # the reader's rule: a later receipt of a window voids it and those above
            current[receipt.window] = receipt
            signed.append(receipt)

    for version, (verb, amount) in enumerate(script):
        if verb == "append":
            fresh = leaves_of(STAGE, range(len(rows), len(rows) + int(amount)), version)
            rows += fresh
            builder.append(fresh)
        elif verb == "truncate":
            keep = int(amount * len(rows))
            del rows[keep:]
            builder.truncate(keep)
            committed = min(committed, keep)
            current = {window: receipt for window, receipt in current.items() if receipt.last <= keep}
        else:
            committed = max(committed, int(amount * len(rows)))
            note(builder.commit(committed, EXPIRES_S))
            assert sorted(current) == list(range(committed // 32))
    keep = committed = max(committed, int(closing * len(rows)))
    del rows[keep:]
    note(builder.close(keep, EXPIRES_S))
    assert sorted(current) == list(range(-(-keep // 32)))
    assert builder.length == builder.signed_rows == keep
    for window, receipt in current.items():
        found = builder.signed_window(window)
        assert found is not None
        assert found[0] is receipt
        assert open_leaves(receipt, found[1]) == rows[32 * window : 32 * window + 32]


@given(st.integers(0, 100), st.lists(st.integers(1, 40), max_size=6))
def test_chunks_do_not_matter(rows: int, cuts: list[int]) -> None:
    leaves = leaves_of(STAGE, range(rows))
    whole, parts = filled(rows), WindowBuilder(STAGE, 100)
    signed: list[Receipt] = []
    for cut in [*cuts, rows]:
        parts.append(leaves[parts.length : parts.length + cut])
        signed += parts.commit(parts.length, EXPIRES_S)
    assert whole.close(rows, EXPIRES_S) == signed + parts.close(rows, EXPIRES_S)


def test_attack_rejected_drafts_never_enter() -> None:
    """A full window of rows whose end is drafts: nothing is signed until it is known which of them are accepted."""
    builder = filled(30)
    assert builder.commit(30, EXPIRES_S) == []
    builder.append(leaves_of(STAGE, range(30, 38), version=666))
    builder.truncate(31)  # one draft was right
    assert builder.commit(31, EXPIRES_S) == []
    right = leaves_of(STAGE, range(30), 0) + leaves_of(STAGE, [30], 666) + leaves_of(STAGE, range(31, 33))
    builder.append(right[31:])
    (receipt,) = builder.commit(33, EXPIRES_S)
    assert receipt.leaf_root == root_of(right[:32])


def test_a_rollback_below_a_signed_window_voids_it_by_a_later_counter() -> None:
    builder = filled(70)
    old = builder.commit(70, EXPIRES_S)
    assert [receipt.window for receipt in old] == [0, 1]
    builder.truncate(40)
    assert builder.signed_window(1) is None
    assert builder.signed_window(0) is not None
    assert builder.signed_rows == 32
    builder.append(leaves_of(STAGE, range(40, 64), version=1))
    (again,) = builder.commit(64, EXPIRES_S)
    assert (again.window, again.counter, again.previous) == (1, old[1].counter + 1, old[1].digest())
    assert again.leaf_root != old[1].leaf_root
    assert not conflict(again, old[1])


def test_a_rollback_to_a_windows_end_leaves_it() -> None:
    builder = filled(64)
    builder.commit(64, EXPIRES_S)
    builder.truncate(32)
    assert builder.commit(32, EXPIRES_S) == []
    assert builder.signed_window(0) is not None


def test_a_newcomer_signs_the_open_window_in_full() -> None:
    """Rows [0, 70) are replayed; windows 0 and 1 were signed by the server that is gone."""
    builder = WindowBuilder(STAGE, 100)
    builder.resume(70)
    for start in range(0, 70, 25):
        builder.replayed(leaves_of(STAGE, range(start, min(start + 25, 70))))
    assert builder.commit(70, EXPIRES_S) == []
    builder.append(leaves_of(STAGE, range(70, 96)))
    (receipt,) = builder.commit(96, EXPIRES_S)
    assert (receipt.first, receipt.last, receipt.previous) == (64, 96, NO_HASH)
    assert receipt.leaf_root == root_of(leaves_of(STAGE, range(64, 96)))


def test_a_newcomer_signs_what_nobody_has_signed() -> None:
    builder = WindowBuilder(STAGE, 100)
    builder.resume(32)  # the server before died with window 1 full and unsigned
    builder.replayed(leaves_of(STAGE, range(70)))
    assert [receipt.window for receipt in builder.commit(70, EXPIRES_S)] == [1]


def test_a_replay_that_begins_again() -> None:
    """A second heal interrupts the first one's replay."""
    builder = WindowBuilder(STAGE, 100)
    builder.replayed(leaves_of(STAGE, range(40)))
    for start in (0, 32):
        builder.replayed(leaves_of(STAGE, range(start, start + 32), version=1))
    assert builder.length == 64
    receipt = builder.commit(64, EXPIRES_S)[0]
    assert receipt.leaf_root == root_of(leaves_of(STAGE, range(32), version=1))


def test_a_survivor_that_computes_again_keeps_what_it_signed() -> None:
    """It is on the way of a replay: its new rows differ in a bit, and those signed before stand as they were."""
    builder = filled(70)
    old = builder.commit(70, EXPIRES_S)
    builder.truncate(66)
    builder.resume(64)
    for start in (0, 50):
        builder.replayed(leaves_of(STAGE, range(start, min(start + 50, 66)), version=1))
    found = builder.signed_window(1)
    assert found is not None
    assert open_leaves(old[1], found[1]) == leaves_of(STAGE, range(32, 64))
    builder.append(leaves_of(STAGE, range(66, 96), version=1))
    (receipt,) = builder.commit(96, EXPIRES_S)
    assert receipt.leaf_root == root_of(leaves_of(STAGE, range(64, 96), version=1))


@pytest.mark.parametrize("computes_again", [True, False])
def test_a_survivor_signs_again_what_the_others_sign_anew(computes_again: bool) -> None:
    """It had signed window 1, the server that is gone had not: all sign it in the state after the heal."""
    builder = filled(70)
    old = builder.commit(70, EXPIRES_S)
    builder.resume(32)
    if computes_again:
        builder.replayed(leaves_of(STAGE, range(70), version=1))
    (again,) = builder.commit(70, EXPIRES_S)
    assert (again.window, again.counter) == (1, old[1].counter + 1)
    assert (again.leaf_root == old[1].leaf_root) is not computes_again
    assert builder.signed_window(0) == (old[0], [leaf.canonical() for leaf in leaves_of(STAGE, range(32))])


def test_a_newcomer_that_is_rolled_back_signs_the_older_window_too() -> None:
    builder = WindowBuilder(STAGE, 100)
    builder.resume(64)
    builder.replayed(leaves_of(STAGE, range(70)))
    builder.truncate(40)
    builder.append(leaves_of(STAGE, range(40, 64), version=1))
    (receipt,) = builder.commit(64, EXPIRES_S)
    rows = leaves_of(STAGE, range(32, 40)) + leaves_of(STAGE, range(40, 64), version=1)
    assert (receipt.window, receipt.leaf_root) == (1, root_of(rows))


def test_closing_signs_the_shorter_last_window() -> None:
    builder = filled(40)
    first, last = builder.close(37, EXPIRES_S)
    assert [(first.first, first.last), (last.first, last.last)] == [(0, 32), (32, 37)]
    verify_receipt(sign(last), now_s=NOW_S)
    assert last.leaf_root == root_of(leaves_of(STAGE, range(32, 37)))


def test_closing_with_nothing_signs_nothing() -> None:
    assert WindowBuilder(STAGE, 100).close(0, EXPIRES_S) == []
    assert filled(5).close(0, EXPIRES_S) == []


def test_misuse_is_named() -> None:
    builder = filled(5)
    for gap in (4, 6):
        with pytest.raises(MisuseError):
            builder.append(leaves_of(STAGE, [gap]))
    for keep in (-1, 6):
        with pytest.raises(MisuseError):
            builder.truncate(keep)
    with pytest.raises(MisuseError):
        builder.replayed(leaves_of(STAGE, [6]))
    with pytest.raises(MisuseError):
        builder.append([Leaf(5, b"", b"", b"")])
    assert builder.length == 5


def test_attack_client_opens_twice_with_one_nonce() -> None:
    """Session, stage and nonce are all the client's: only the counters keep an honest server from equivocating."""
    base, signed = 0, list[Receipt]()
    for version, now_s in enumerate((NOW_S, NOW_S, NOW_S + 0.0005, NOW_S - 5)):
        base = counter_base(now_s, base)
        builder = WindowBuilder(STAGE, base)
        builder.append(leaves_of(STAGE, range(640), version))
        signed += builder.commit(640, EXPIRES_S)
    assert len(signed) == 80
    assert not any(conflict(one, other) for one in signed for other in signed)


def test_counters_go_on_after_a_restart() -> None:
    assert counter_base(NOW_S + 1, 0) >= counter_base(NOW_S, 0) + COUNTERS_PER_STAGE
    assert counter_base(2**33, 0) + COUNTERS_PER_STAGE < 2**63


def test_attack_client_rolls_back_until_no_counter_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.verification.signed.windows.COUNTERS_PER_STAGE", 3)
    chain = Chain(3)
    for _ in range(3):
        chain.window()
        chain.truncate(0)
    chain.compute(32)
    with pytest.raises(ProtocolViolation):
        chain.commit(32)
