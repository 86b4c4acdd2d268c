"""Spans and the holes between them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.core.spans import Span, missing_layers

LAYERS = 24


@st.composite
def spans(draw: st.DrawFn, limit: int = 30) -> Span:
    start = draw(st.integers(0, limit - 1))
    return Span(start, draw(st.integers(start + 1, limit)))


@given(spans())
def test_text_form_round_trips(span: Span) -> None:
    assert Span.parse(str(span)) == span
    assert Span.parse(f" {span.start} : {span.end} ") == span


@given(spans(), spans())
def test_covers_means_every_layer(outer: Span, inner: Span) -> None:
    layers = set(range(outer.start, outer.end))
    assert outer.covers(inner) == (set(range(inner.start, inner.end)) <= layers)
    assert len(outer) == len(layers)


@pytest.mark.parametrize("text", ["", "5", "0-5", "a:b", ":5", "5:", "0:5:9", "-1:5", "1.0:5", "0:" + "9" * 5000])
def test_an_unreadable_span_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="0:10"):
        Span.parse(text)


@pytest.mark.parametrize("text", ["5:5", "6:5", "0:0"])
def test_an_empty_span_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="empty"):
        Span.parse(text)


def test_a_span_outside_the_model_is_refused_with_what_would_fit() -> None:
    assert Span(20, 30).within(30) == Span(20, 30)
    with pytest.raises(ConfigError, match=r"20:31 .* 30 layers .*within 0:30"):
        Span(20, 31).within(30)


@given(st.lists(spans(), max_size=6))
def test_holes_and_spans_together_tile_the_model(held: list[Span]) -> None:
    holes = missing_layers(held, LAYERS)
    missing = set(range(LAYERS)) - {layer for span in held for layer in range(span.start, span.end)}
    assert [layer for hole in holes for layer in range(hole.start, hole.end)] == sorted(missing)
    for left, right in pairwise(holes):
        assert left.end < right.start, "two holes that touch should be one"
