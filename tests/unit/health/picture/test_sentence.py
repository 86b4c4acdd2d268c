"""The one sentence that a person reads first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.spans import Span
from swarm.health.picture.sentence import Outlook, sentence
from swarm.scheduling.bounds import Bounds


def per_s(least: float, most: float | None = None, **doubts: int) -> Bounds:
    return Bounds(1 / (most or least), 1 / least, **doubts)


USABLE = Outlook(30, [], per_s(12.3), 3, 9.4, "")


@pytest.mark.parametrize(
    ("outlook", "text"),
    [
        (USABLE, "Usable now: about 12 tokens/s for a new session; 3 of about 9 sessions before it gets slower."),
        (
            Outlook(30, [], per_s(0.456), 0, 1.2, ""),
            "Usable now: about 0.46 tokens/s for a new session; 0 of about 1 session before it gets slower.",
        ),
        (
            Outlook(30, [], per_s(2.0), 9, 9.4, ""),
            "Usable now: about 2 tokens/s for a new session; full: 9 sessions where 9 fit before all get slower.",
        ),
        (
            Outlook(30, [], per_s(4.04, 12.3, links=3, unmeasured=2), 1, None, ""),
            "Usable now: 4 to 12 tokens/s for a new session (2 of 3 links not measured yet); 1 session runs.",
        ),
        (
            Outlook(30, [], per_s(0.001, 2.0, links=4, unmeasured=1, uplinks=2), 1, None, ""),
            "Usable now: one token in over a minute and a half to 2 tokens/s for a new session (1 of 4 links and 2 "
            "uplinks not measured yet); 1 session runs.",
        ),
        (
            Outlook(30, [], per_s(1.9, 2.1, links=3, unmeasured=2), 1, None, ""),
            "Usable now: about 2 tokens/s for a new session; 1 session runs.",
        ),
        (Outlook(30, [], per_s(2.0), 1, None, ""), "Usable now: about 2 tokens/s for a new session; 1 session runs."),
        (Outlook(30, [], per_s(2.0), 2, None, ""), "Usable now: about 2 tokens/s for a new session; 2 sessions run."),
        (
            Outlook(30, [], per_s(0.0001), 0, None, ""),
            "Usable now: about one token in over a minute and a half for a new session; 0 sessions run.",
        ),
        (Outlook(30, [Span(10, 20)], None, 0, None, ""), "Not usable: nobody serves layers 10 to 19."),
        (Outlook(30, [Span(3, 4)], None, 0, None, ""), "Not usable: nobody serves layer 3."),
        (
            Outlook(30, [Span(0, 2), Span(5, 6)], per_s(4.0), 0, None, "x"),
            "Not usable: nobody serves layers 0 to 1 and 5.",
        ),
        (Outlook(30, [Span(0, 30)], None, 0, None, ""), "Not usable: nobody serves it at present."),
        (Outlook(0, [], None, 0, None, ""), "Not usable: nobody serves it at present."),
        (Outlook(30, [], None, 0, None, "no chain of one kind"), "Not usable: no chain of one kind."),
        (Outlook(30, [], None, 0, None, ""), "Not usable: no way through its servers was found."),
    ],
)
def test_it_says_what_is(outlook: Outlook, text: str) -> None:
    assert sentence(outlook) == text


@given(
    st.one_of(st.none(), st.tuples(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12))),
    st.integers(0, 2**31),
    st.one_of(st.none(), st.floats(1, 1e300)),
    st.text(max_size=300),
)
def test_it_is_one_short_line_whatever_the_figures(
    rates: tuple[float, float] | None, sessions: int, knee: float | None, reason: str
) -> None:
    step = None if rates is None else Bounds(1 / max(rates), 1 / min(rates), links=99, unmeasured=99, uplinks=99)
    text = sentence(Outlook(30, [], step, sessions, knee, reason))
    assert text.isprintable()
    assert len(text) < 320
    assert text.endswith(".")
