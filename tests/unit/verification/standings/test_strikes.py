"""Standings: laws of every history, and the figures of the design."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, MisuseError
from swarm.verification.standings.sequential import HONEST_CEILING
from swarm.verification.standings.strikes import (
    MAX_OCCASIONS,
    MAX_REFERENCES,
    TERMS,
    TERMS_KEPT_S,
    TRUSTED,
    UNPROVEN_S,
    Policy,
    Standing,
    accused,
    audit_asked,
    audit_rate,
    dated,
    equivocated,
    forgiven,
    lapsed,
    on_probation,
    struck,
    traffic_asked,
    window_audited,
    window_void,
)
from swarm.verification.verdicts.verdict import Outcome

POLICY = Policy()
GOOD, INT8 = 0.012, 0.036

Step = Callable[[Standing], Standing]


def audited(standing: Standing, count: int, *, error: float = GOOD, reference: str = TRUSTED) -> Standing:
    for _ in range(count):
        standing = window_audited(standing, POLICY, Outcome.PASS, error, reference=reference, ceiling=HONEST_CEILING)
    return standing


references = st.sampled_from([TRUSTED, *(f"auditor {number}" for number in range(MAX_REFERENCES + 2))])
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda outcome, error, reference: lambda s: window_audited(
            s, POLICY, outcome, error, reference=reference, ceiling=HONEST_CEILING
        ),
        st.sampled_from(list(Outcome)), st.floats(0, 1), references,
    ),
    st.builds(lambda count: lambda s: audited(s, count, error=INT8), st.integers(0, 40)),
    st.builds(
        lambda name, proven: lambda s: struck(s, POLICY, b"session %d" % name, proven=proven),
        st.integers(0, 2), st.booleans(),
    ),
    st.builds(lambda answered: lambda s: audit_asked(s, POLICY, answered=answered), st.booleans()),
    st.builds(lambda answered: lambda s: traffic_asked(s, answered=answered), st.booleans()),
    st.sampled_from([equivocated, window_void, lambda s: accused(s, POLICY)]),
)  # fmt: skip


@given(st.lists(steps, max_size=40))
def test_laws_of_every_history(history: list[Step]) -> None:
    """Strikes are never fewer, the ejected stay so for their first proven reason, and the rate is in [q, 1]."""
    standing = Standing()
    for step in history:
        before, standing = standing, step(standing)
        assert standing.strikes[: len(before.strikes)] == before.strikes
        assert standing.ejected == before.ejected or not before.ejected or (before.passing and not standing.passing)
        assert standing.passing <= bool(standing.ejected)
        assert not (before.ejected and not before.passing and standing.passing)
        assert {entry.occasion for entry in standing.unproven} <= set(standing.strikes)
        assert standing.audited >= before.audited
        assert POLICY.audit_rate <= audit_rate(standing, POLICY) <= 1
        assert len(standing.evidence) <= MAX_REFERENCES
        if len(standing.strikes) >= POLICY.strikes_to_eject:
            assert standing.ejected
        if len(standing.strikes) > len(before.strikes):
            assert audit_rate(standing, POLICY) == 1
        assert Standing.from_bytes(standing.to_bytes()) == standing


@given(st.lists(st.tuples(steps, st.floats(0.0, 50 * 86_400.0)), max_size=30))
def test_laws_of_every_history_in_time(history: list[tuple[Step, float]]) -> None:
    """What was proven stays for ever, what was not is over in its time, and nobody is out for a term without end."""
    standing, now_s = Standing(), 1.8e9
    for step, passed_s in history:
        now_s += passed_s
        before = lapsed(standing, now_s)
        assert lapsed(before, now_s) == before
        standing = dated(before, step(before), now_s)
        proven = [name for name in before.strikes if name not in {entry.occasion for entry in before.unproven}]
        assert set(proven) <= set(standing.strikes)
        assert not standing.passing or now_s < standing.until_s <= now_s + TERMS.most_s
        assert all(entry.since_s for entry in standing.unproven)
        late = lapsed(standing, now_s + TERMS.most_s + UNPROVEN_S + TERMS_KEPT_S)
        assert (late.unproven, late.passing, late.terms) == ((), False, 0)
        assert bool(late.ejected) == (bool(standing.ejected) and not standing.passing)
        pardoned = forgiven(standing)
        assert (pardoned.unproven, pardoned.passing, pardoned.terms) == ((), False, 0)
        assert bool(pardoned.ejected) == bool(late.ejected)
        assert forgiven(standing, proven=True) == Standing()


def test_a_cheater_that_waits_out_every_term() -> None:
    """In a year it gets at 18 sessions of one client, where it was two: the price of not ejecting for good by error."""
    standing, now_s, sessions = Standing(), 0.0, 0
    while now_s < 365 * 86_400.0:
        sessions += 1
        before = lapsed(standing, now_s + 1.0)
        standing = dated(before, struck(before, POLICY, b"%d" % sessions, proven=False), now_s + 1.0)
        now_s = max(now_s, standing.until_s) + 1.0
    assert 15 <= sessions <= 20
    assert standing.terms == sessions - 1


def test_a_bit_that_flips_now_and_then_in_this_client_ejects_nobody_for_long() -> None:
    """One lie that was none in 40 days: none of them is there any more when the next comes."""
    standing = Standing()
    for number in range(20):
        now_s = 1.0 + number * 40 * 86_400.0
        before = lapsed(standing, now_s)
        standing = dated(before, struck(before, POLICY, b"%d" % number, proven=False), now_s)
        assert not standing.ejected
        assert len(standing.strikes) == 1


def test_a_strike_of_ones_own_becomes_proven_and_stays() -> None:
    standing = dated(Standing(), struck(Standing(), POLICY, b"one", proven=False), 1.0)
    standing = struck(standing, POLICY, b"one")
    assert (standing.strikes, standing.unproven) == ((b"one",), ())
    assert lapsed(standing, 10 * UNPROVEN_S).strikes == (b"one",)
    both = dated(standing, struck(standing, POLICY, b"two", proven=False), 5.0)
    assert both.passing, "one proven strike and one that was not eject for a term"
    assert lapsed(both, both.until_s).strikes == (b"one",)
    assert not struck(both, POLICY, b"two").passing


def test_a_date_in_the_future_is_of_a_clock_that_was_wrong() -> None:
    standing = struck(struck(Standing(), POLICY, b"one", proven=False), POLICY, b"two", proven=False)
    standing = dated(Standing(), standing, 4e9)
    assert standing.passing
    assert lapsed(standing, 1.8e9).ejected == ""
    assert lapsed(standing, 1.8e9).strikes == ()


def test_probation_then_the_rate_decays_to_q() -> None:
    rates, standing = [], Standing()
    for _ in range(400):
        rates.append(audit_rate(standing, POLICY))
        standing = audited(standing, 1)
    assert rates[:51] == [1.0] * 51
    assert all(after <= before for before, after in itertools.pairwise(rates))
    assert rates[75] == 0.5
    assert rates.index(0.03) == 50 + 127  # 25 · log2(1 / 0.03) = 126.5
    assert rates[-1] == 0.03


def test_probation_is_of_audited_windows() -> None:
    """A server that is busy whenever it is audited stays on probation, whatever it serves."""
    standing = audited(Standing(), 49)
    for _ in range(200):
        standing = traffic_asked(standing, answered=True)
        standing = window_audited(standing, POLICY, Outcome.UNCOUNTED, 0.01, reference=TRUSTED, ceiling=HONEST_CEILING)
    assert on_probation(standing, POLICY)
    assert not on_probation(audited(standing, 1), POLICY)


def test_after_a_strike_the_next_200_windows_are_audited() -> None:
    standing = struck(audited(Standing(), 300), POLICY, b"a")
    assert not standing.ejected
    standing = audited(standing, 199)
    assert audit_rate(standing, POLICY) == 1
    assert audit_rate(audited(standing, 1), POLICY) == POLICY.audit_rate


def test_the_second_strike_ejects_and_strikes_do_not_expire() -> None:
    standing = struck(Standing(), POLICY, b"first session")
    standing = audited(struck(standing, POLICY, b"first session"), 5000)
    assert standing.strikes == (b"first session",)
    assert not standing.ejected
    assert struck(standing, POLICY, b"second session").ejected == "2 confirmed failures"
    assert struck(Standing(), Policy(strikes_to_eject=1), b"any").ejected


def test_undeclared_int8_is_ejected_by_the_own_replica() -> None:
    standing = audited(audited(Standing(), 100), 60, error=INT8)
    assert standing.ejected.startswith("its errors are above")
    assert not standing.strikes


def test_one_lying_auditor_ejects_nobody() -> None:
    """Its own comparisons may always be a little bad, without ever being outvoted; it takes a second one."""
    standing = audited(audited(Standing(), 50), 1000, error=INT8, reference="liar")
    assert not standing.ejected
    standing = audited(standing, 200, error=GOOD, reference="good one")
    assert not standing.ejected
    standing = audited(standing, 60, error=INT8, reference="another")
    assert standing.ejected
    assert standing.passing, "two may lie together"
    assert not audited(standing, 60, error=INT8).passing, "by own weights it is for good"


def test_an_accusation_by_evidence_stays_until_a_second_comes() -> None:
    """Two auditors that looked at different times are two."""
    standing = audited(Standing(), 60, error=INT8, reference="first")
    standing = audited(standing, 500, error=GOOD, reference="first")
    assert audited(standing, 60, error=INT8, reference="second").ejected


def test_without_a_known_ceiling_windows_count_and_accuse_nobody() -> None:
    standing = Standing()
    for _ in range(200):
        standing = window_audited(standing, POLICY, Outcome.SOFT, 0.5, reference=TRUSTED, ceiling=None)
    assert (standing.audited, standing.ejected, standing.evidence) == (200, "", ())


def test_an_auditor_that_accuses_is_not_pushed_out_by_others() -> None:
    standing = audited(Standing(), 50, error=INT8, reference="first")
    for number in range(3 * MAX_REFERENCES):
        standing = audited(standing, 1, reference=f"new {number}")
    assert "first" in {entry.reference for entry in standing.evidence}
    assert audited(standing, 50, error=INT8, reference="second").ejected


def test_equivocation_ejects_on_sight() -> None:
    assert "two different receipts" in equivocated(Standing()).ejected


def test_an_accusation_is_no_strike() -> None:
    standing = accused(audited(Standing(), 300), POLICY)
    assert not standing.strikes
    assert audit_rate(standing, POLICY) == 1
    assert audit_rate(audited(standing, 200), POLICY) == POLICY.audit_rate
    assert window_void(standing).voided == 1


def test_busy_is_no_strike_but_busy_for_audits_is() -> None:
    busy = shy = Standing()
    for number in range(640):
        busy, shy = traffic_asked(busy, answered=number % 2 == 0), traffic_asked(shy, answered=True)
        if number % 20 == 0:
            busy = audit_asked(busy, POLICY, answered=number % 40 == 0)
            shy = audit_asked(shy, POLICY, answered=False)
    assert not busy.strikes
    assert shy.strikes == (b"unanswered audits 8", b"unanswered audits 16", b"unanswered audits 32")
    assert shy.ejected


def test_what_is_kept_is_bounded() -> None:
    standing = Standing()
    for number in range(2 * MAX_OCCASIONS):
        standing = struck(standing, POLICY, b"%d" % number)
    assert len(standing.strikes) == MAX_OCCASIONS


def test_damage_and_nonsense() -> None:
    with pytest.raises(MisuseError, match="damaged"):
        Standing.from_bytes(b"\x93\x01")
    with pytest.raises(MisuseError, match="damaged"):
        Standing.from_bytes(Standing().to_bytes().replace(b"audited", b"audit3d")[:-1])
    for wrong in ({"audit_rate": 1.5}, {"strikes_to_eject": 0}, {"false_alarm": 0.0}, {"halving_windows": 0}):
        with pytest.raises(ConfigError):
            Policy(**wrong)
