"""Standings: laws of every history, and the figures of the design."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, MisuseError
from swarm.core.ids import PeerId
from swarm.verification.standings.sequential import HONEST_CEILING
from swarm.verification.standings.strikes import (
    MAX_APART,
    MAX_OCCASIONS,
    MAX_REFERENCES,
    TRUSTED,
    Apart,
    Policy,
    Standing,
    accused,
    audit_asked,
    audit_rate,
    equivocated,
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
    st.builds(lambda name: lambda s: struck(s, POLICY, b"session %d" % name), st.integers(0, 2)),
    st.builds(lambda answered: lambda s: audit_asked(s, POLICY, answered=answered), st.booleans()),
    st.builds(lambda answered: lambda s: traffic_asked(s, answered=answered), st.booleans()),
    st.sampled_from([equivocated, window_void, lambda s: accused(s, POLICY)]),
)  # fmt: skip


@given(st.lists(steps, max_size=40))
def test_laws_of_every_history(history: list[Step]) -> None:
    """Strikes are never fewer, the ejected stay so for their first reason, and the rate is in [q, 1]."""
    standing = Standing()
    for step in history:
        before, standing = standing, step(standing)
        assert standing.strikes[: len(before.strikes)] == before.strikes
        assert standing.ejected == before.ejected or not before.ejected
        assert standing.audited >= before.audited
        assert POLICY.audit_rate <= audit_rate(standing, POLICY) <= 1
        assert len(standing.evidence) <= MAX_REFERENCES
        if len(standing.strikes) >= POLICY.strikes_to_eject:
            assert standing.ejected
        if len(standing.strikes) > len(before.strikes):
            assert audit_rate(standing, POLICY) == 1
        assert Standing.from_bytes(standing.to_bytes()) == standing


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
    assert audited(standing, 60, error=INT8, reference="another").ejected


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
    apart = Apart(tuple((PeerId(f"a{n}"), PeerId(f"b{n}")) for n in range(MAX_APART)))
    grown = apart.and_also(PeerId("new"), PeerId("pair"))
    assert len(grown.pairs) == MAX_APART
    assert not grown.allow(PeerId("new"), PeerId("pair"))
    assert grown.allow(PeerId("a0"), PeerId("b0"))  # the oldest


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")).filter(lambda pair: pair[0] != pair[1])))
def test_broken_links_keep_two_apart_in_either_order(broken: list[tuple[str, str]]) -> None:
    apart = Apart()
    for one, other in broken:
        apart = apart.and_also(PeerId(one), PeerId(other))
    for one in "abcd":
        for other in "abcd":
            met = (one, other) in broken or (other, one) in broken
            assert apart.allow(PeerId(one), PeerId(other)) is not met
    assert len(set(apart.pairs)) == len(apart.pairs)
    with pytest.raises(MisuseError):
        apart.and_also(PeerId("a"), PeerId("a"))


def test_damage_and_nonsense() -> None:
    with pytest.raises(MisuseError, match="damaged"):
        Standing.from_bytes(b"\x93\x01")
    with pytest.raises(MisuseError, match="damaged"):
        Standing.from_bytes(Standing().to_bytes().replace(b"audited", b"audit3d")[:-1])
    for wrong in ({"audit_rate": 1.5}, {"strikes_to_eject": 0}, {"false_alarm": 0.0}, {"halving_windows": 0}):
        with pytest.raises(ConfigError):
            Policy(**wrong)
