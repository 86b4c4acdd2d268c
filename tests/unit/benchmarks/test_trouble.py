"""Schedules of trouble: every layer keeps a holder, everybody is back at the end, and a seed says it all."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trouble import Event, schedule
from swarm.core.errors import ConfigError
from swarm.core.spans import Span

LAYERS = 12
THIRDS = [Span(0, 4), Span(4, 8), Span(8, 12)]


@st.composite
def replicated_spans(draw: st.DrawFn) -> list[Span]:
    """Two or three ways to cut the model, so that no layer has a single holder."""
    spans = []
    for _ in range(draw(st.integers(2, 3))):
        cuts = [0, *sorted(draw(st.sets(st.integers(1, LAYERS - 1), max_size=4))), LAYERS]
        spans += [Span(a, b) for a, b in pairwise(cuts)]
    return draw(st.permutations(spans))


def holders(spans: list[Span], serving: set[int]) -> list[int]:
    """How many of those that serve hold each layer."""
    return [sum(spans[number].start <= layer < spans[number].end for number in serving) for layer in range(LAYERS)]


@given(spans=replicated_spans(), seed=st.integers(0, 2**32), count=st.integers(0, 40))
def test_every_layer_keeps_somebody_who_is_ready_and_all_are_back_at_the_end(
    spans: list[Span], seed: int, count: int
) -> None:
    """A machine that was started again serves only once an event has waited for it: no restart takes too long."""
    ready, running, stopped = set(range(len(spans))), set(range(len(spans))), set()
    events = schedule(spans, LAYERS, seed, count)
    for event in events:
        ready |= {*event.after}
        assert set(event.after) <= running
        assert event.pause_s >= 0
        number = event.number
        match event.act:
            case "kill":
                assert number in running | stopped
                running.discard(number)
                stopped.discard(number)
            case "freeze":
                assert number in running
                running.discard(number)
                stopped.add(number)
            case "wake":
                assert number in stopped
                stopped.discard(number)
                running.add(number)
                ready.add(number)
            case "restart":
                assert number not in running | stopped
                running.add(number)
        ready -= {number} if event.act in ("kill", "freeze") else set()
        assert min(holders(spans, ready)) >= 1, f"{event} of {[str(each) for each in events]}"
    assert running == set(range(len(spans)))
    acts = Counter(event.act for event in events)
    assert acts["kill"] + acts["freeze"] + acts["restart"] >= count


@given(spans=replicated_spans(), seed=st.integers(0, 2**32))
def test_a_seed_is_a_schedule(spans: list[Span], seed: int) -> None:
    assert schedule(spans, LAYERS, seed, 20) == schedule(spans, LAYERS, seed, 20)
    assert schedule(spans, LAYERS, seed, 20) != schedule(spans, LAYERS, seed + 1, 20)


def test_a_schedule_has_trouble_of_every_kind_for_everybody() -> None:
    events = schedule(THIRDS * 2, LAYERS, 1, 100)
    assert {event.act for event in events} == {"kill", "freeze", "wake", "restart"}
    assert {event.number for event in events if event.act in ("kill", "freeze")} == set(range(6))
    assert any(event.daemon for event in events)
    assert any(event.pause_s == 0 for event in events)
    fates = [[event.act for event in events if event.number == number] for number in range(6)]
    assert any(("freeze", "kill") in pairwise(acts) for acts in fates), "some never wake"
    assert any(("freeze", "wake") in pairwise(acts) for acts in fates)


def test_a_swarm_without_replicas_is_not_for_this() -> None:
    with pytest.raises(ConfigError, match="holds a layer that no other does"):
        schedule(THIRDS, LAYERS, 1, 20)


def test_events_are_told_in_words() -> None:
    assert str(Event("kill", 2, 0.5, after=(0, 4))) == "+0.50 s, once #0, #4 READY: kill #2"
    assert str(Event("freeze", 1, 0.0, daemon=True)) == "+0.00 s: freeze #1 and its daemon"
