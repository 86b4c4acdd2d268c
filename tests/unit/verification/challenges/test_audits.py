"""The lottery of audits: fair, drawn beforehand, and closed to the server."""

from __future__ import annotations

import math
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from receipted_chain import Chain

from swarm.core.errors import BadProofError, BadSignatureError, ConfigError
from swarm.verification.challenges.audits import AuditPlan, check_selection, is_selected, plan_audit
from swarm.verification.challenges.commitment import commit
from swarm.verification.signed.receipts import Receipt
from swarm.verification.signed.windows import WindowBuilder

RECEIPT = Chain(3).window()[0].receipt
SIGMAS = 4.5
"""A fair lottery falls outside by chance once in 150,000 times; the draws here are the same on every run."""


def secret(number: int) -> bytes:
    return sha256(f"secret {number}".encode()).digest()


def windows_of(count: int) -> list[Receipt]:
    return [replace(RECEIPT, first=32 * window, last=32 * window + 32, counter=window) for window in range(count)]


def assert_share(drawn: int, of: int, rate: float) -> None:
    assert abs(drawn - rate * of) <= SIGMAS * math.sqrt(of * rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.03, 0.25, 0.5])
def test_the_share_is_the_rate_over_windows(rate: float) -> None:
    receipts = windows_of(4000)
    assert_share(sum(is_selected(secret(0), receipt, rate) for receipt in receipts), len(receipts), rate)


@pytest.mark.parametrize("rate", [0.03, 0.25, 0.5])
def test_the_share_is_the_rate_over_secrets(rate: float) -> None:
    assert_share(sum(is_selected(secret(draw), RECEIPT, rate) for draw in range(4000)), 4000, rate)


@given(st.binary(min_size=32, max_size=32), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_rate_draws_all_that_a_lower_does(drawn_by: bytes, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert is_selected(drawn_by, RECEIPT, high) or not is_selected(drawn_by, RECEIPT, low)
    assert is_selected(drawn_by, RECEIPT, 1)
    assert not is_selected(drawn_by, RECEIPT, 0)


def test_frozen_vector() -> None:
    """Another value here means that two versions disagree about what is to be audited."""
    drawn = [draw for draw in range(100) if is_selected(secret(draw), RECEIPT, 0.05)]
    assert drawn == [3, 8, 9, 15, 69, 78, 83, 86]


def test_attack_server_grinds_receipts_with_a_secret_of_its_own() -> None:
    """It may vary what it signs at will, say the expiry, and keep what it hopes is not drawn: it is drawn as often."""
    rate, guess = 0.25, secret(10**6)
    hopeful = [
        next(
            receipt
            for receipt in (replace(RECEIPT, counter=window, expires_s=10**9 + tries) for tries in range(1000))
            if not is_selected(guess, receipt, rate)
        )
        for window in range(1500)
    ]
    assert_share(sum(is_selected(secret(0), receipt, rate) for receipt in hopeful), len(hopeful), rate)


def test_attack_server_grinds_with_the_commitment() -> None:
    """H(r) is all it has seen; windows that H(r) itself would not draw are drawn as often as others."""
    rate, real = 0.25, secret(1)
    hopeful = [receipt for receipt in windows_of(3000) if not is_selected(commit(real), receipt, rate)]
    assert len(hopeful) > 2000
    assert_share(sum(is_selected(real, receipt, rate) for receipt in hopeful), len(hopeful), rate)


def test_attack_server_learns_from_earlier_windows() -> None:
    """That window w was drawn says nothing about the next one."""
    rate, receipts = 0.5, windows_of(4001)
    drawn = [is_selected(secret(2), receipt, rate) for receipt in receipts]
    after = [now for before, now in pairwise(drawn) if before]
    assert_share(sum(after), len(after), rate)


def test_attack_client_changes_its_secret_afterwards() -> None:
    """It would like to audit, or to spare, a certain window."""
    wanted = next(draw for draw in range(100) if is_selected(secret(draw), RECEIPT, 0.1))
    check_selection(commit(secret(wanted)), secret(wanted), RECEIPT, 0.1)
    with pytest.raises(BadSignatureError):
        check_selection(commit(secret(wanted + 1)), secret(wanted), RECEIPT, 0.1)


def test_attack_client_asks_for_a_window_that_was_not_drawn() -> None:
    spared = next(draw for draw in range(100) if not is_selected(secret(draw), RECEIPT, 0.5))
    with pytest.raises(BadProofError):
        check_selection(commit(secret(spared)), secret(spared), RECEIPT, 0.5)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ConfigError):
        is_selected(secret(0), RECEIPT, rate)


def test_a_secret_of_another_length() -> None:
    with pytest.raises(ConfigError):
        is_selected(bytes(31), RECEIPT, 0.5)


@given(st.integers(0, 1000), st.floats(0, 0.3), st.integers(1, 40))
def test_a_plan_replays_up_to_the_highest_drawn_window_and_judges_all_on_the_way(
    draw: int, rate: float, count: int
) -> None:
    receipts = windows_of(count)
    receipts[-1] = replace(receipts[-1], last=receipts[-1].first + 5)
    drawn = [receipt.window for receipt in receipts if is_selected(secret(draw), receipt, rate)]
    plan = plan_audit(secret(draw), receipts, rate)
    if not drawn:
        assert plan is None
        return
    highest = receipts[drawn[-1]]
    assert plan == AuditPlan(tuple(drawn), tuple(range(drawn[-1] + 1)), highest.last)


def test_a_newcomers_audit_judges_only_what_it_signed() -> None:
    chain = Chain(3)
    chain.compute(96)
    newcomer = chain.builders[0]
    newcomer.resume(64)
    receipts = [signed.receipt for (signed,) in chain.commit(96)]
    assert plan_audit(secret(0), receipts, 1) == AuditPlan((2,), (2,), 96)
    other = WindowBuilder(Chain(4).openings[0], 3)
    with pytest.raises(ConfigError):
        plan_audit(secret(0), [*receipts, replace(receipts[0], opening=other.opening)], 1)
    assert plan_audit(secret(0), [], 1) is None
