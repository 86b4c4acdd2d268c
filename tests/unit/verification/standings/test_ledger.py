"""The ledger pays verified rows times layers once, and nothing for what was taken back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receipted_chain import EXPIRES_S, NOW_S, SERVERS, Chain

from swarm.core.errors import ConfigError
from swarm.verification.signed.coverage import CoveredWindow, verify_coverage
from swarm.verification.signed.receipts import SignedReceipt
from swarm.verification.standings.ledger import Account, Ledger

FIRST, SECOND = SERVERS[0].peer_id, SERVERS[1].peer_id


def covered(chain: Chain, windows: list[list[SignedReceipt]]) -> list[CoveredWindow]:
    return [verify_coverage(window, chain.layers, chain.expected, now_s=NOW_S) for window in windows]


def record(ledger: Ledger, chain: Chain, windows: list[list[SignedReceipt]]) -> None:
    for window in covered(chain, windows):
        ledger.record(window)


def settle(ledger: Ledger, chain: Chain, **options: tuple[str, ...]) -> dict[str, int]:
    return ledger.settle(chain.openings[0], expires_s=EXPIRES_S, **options)


@settings(max_examples=30)
@given(st.integers(1, 200), st.integers(1, 8))
def test_rows_times_layers(rows: int, cut: int) -> None:
    chain, ledger = Chain(cut, 9), Ledger()
    chain.compute(rows)
    record(ledger, chain, chain.close(rows))
    assert ledger.account(FIRST) == Account()  # not before the session is over
    assert settle(ledger, chain) == {FIRST: rows * cut, SECOND: rows * (9 - cut)}
    assert ledger.account(FIRST) == Account(earned=rows * cut)


def test_attack_rejected_draft_work_earns_nothing() -> None:
    """Drafts were committed too early and signed, and then turned down: the window is signed again, or never."""
    chain, ledger = Chain(3, 9), Ledger()
    chain.compute(128)
    record(ledger, chain, chain.commit(128))
    for _ in range(2):
        chain.truncate(40)
        ledger.truncate(chain.openings[0], 40)
        chain.compute(60, version=1)
        record(ledger, chain, chain.commit(96))
    chain.truncate(40)
    ledger.truncate(chain.openings[0], 40)
    record(ledger, chain, chain.close(40))
    assert settle(ledger, chain) == {FIRST: 40 * 3, SECOND: 40 * 6}


def test_a_rollback_to_a_windows_end_leaves_nothing_to_sign_and_nothing_to_pay() -> None:
    chain, ledger = Chain(9), Ledger()
    chain.compute(64)
    record(ledger, chain, chain.commit(64))
    chain.truncate(32)
    ledger.truncate(chain.openings[0], 32)
    assert chain.close(32) == []
    assert settle(ledger, chain) == {FIRST: 32 * 9}


def test_a_window_that_is_signed_again_counts_once_and_voids_those_above() -> None:
    chain, ledger = Chain(9), Ledger()
    chain.compute(96)
    record(ledger, chain, chain.commit(96))
    chain.truncate(0)
    chain.compute(20, version=1)
    record(ledger, chain, chain.close(20))
    assert settle(ledger, chain) == {FIRST: 20 * 9}


def test_windows_may_come_in_any_order() -> None:
    chain, ledger = Chain(9), Ledger()
    chain.compute(96)
    record(ledger, chain, chain.commit(96)[::-1])
    assert settle(ledger, chain) == {FIRST: 96 * 9}


def test_a_strike_withholds_what_was_and_will_be_earned() -> None:
    ledger = Ledger()
    for session in (1, 2):
        chain = Chain(3, 9, session=session)
        record(ledger, chain, [chain.window()])
        settle(ledger, chain)
        ledger.strike(FIRST)
    assert ledger.account(FIRST) == Account(earned=0, withheld=2 * 32 * 3, struck=True)
    assert ledger.account(SECOND) == Account(earned=2 * 32 * 6)


def test_a_strike_in_the_middle_of_a_session_withholds_it() -> None:
    chain, ledger = Chain(3, 9), Ledger()
    record(ledger, chain, [chain.window()])
    ledger.strike(FIRST)
    assert settle(ledger, chain) == {SECOND: 32 * 6}
    assert ledger.account(FIRST).withheld == 32 * 3


def test_probation_earns_nothing() -> None:
    chain, ledger = Chain(3, 9), Ledger()
    record(ledger, chain, [chain.window()])
    assert settle(ledger, chain, on_probation=(FIRST,)) == {SECOND: 32 * 6}
    assert ledger.account(FIRST) == Account()


def test_attack_the_same_receipts_again() -> None:
    chain, ledger = Chain(9), Ledger()
    windows = covered(chain, [chain.window()])
    for window in windows * 3:
        ledger.record(window)
    assert settle(ledger, chain) == {FIRST: 32 * 9}
    with pytest.raises(ConfigError):
        ledger.record(windows[0])
    assert settle(ledger, chain) == {}
    ledger.forget_expired(EXPIRES_S - 1)
    with pytest.raises(ConfigError):
        ledger.record(windows[0])
    ledger.forget_expired(EXPIRES_S)  # now verify_coverage refuses them
    assert len(ledger.to_bytes()) < 200


def test_the_state_survives() -> None:
    ledger, chain = Ledger(), Chain(3, 9)
    record(ledger, chain, [chain.window()])
    ledger.strike(SECOND)
    again = Ledger.from_bytes(ledger.to_bytes())
    assert again.to_bytes() == ledger.to_bytes()
    assert settle(again, chain) == settle(ledger, chain) == {FIRST: 32 * 3}
    assert again.account(SECOND) == ledger.account(SECOND) == Account(0, 32 * 6, True)


def test_a_damaged_file_is_named() -> None:
    data = Ledger().to_bytes()
    for wrong in (b"", data[:-1], b"\xc0", data.replace(b"\x01", b"\x02", 1)):
        with pytest.raises(ConfigError):
            Ledger.from_bytes(wrong)


def test_an_account_that_is_read_is_a_copy() -> None:
    ledger = Ledger()
    ledger.account(FIRST).earned = 10**9
    assert ledger.account(FIRST) == Account()
