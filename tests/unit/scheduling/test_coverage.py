"""Which layers how many servers hold."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from swarm.core.spans import Span, missing_layers
from swarm.scheduling.coverage import holders, runs

SPANS = st.builds(lambda start, length: Span(start, start + length), st.integers(0, 12), st.integers(1, 12))


@given(st.lists(SPANS), st.integers(1, 16))
def test_every_layer_is_counted_once_for_each_holder(spans: list[Span], layers: int) -> None:
    counts = holders(spans, layers)
    assert counts == [sum(span.start <= layer < span.end for span in spans) for layer in range(layers)]
    assert [span for span, count in runs(counts) if count == 0] == missing_layers(spans, layers)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_runs_tile_the_model_and_are_maximal(counts: list[int]) -> None:
    found = runs(counts)
    assert [count for span, count in found for _ in range(len(span))] == counts
    assert [count for _, count in found] == [count for count, _ in groupby(counts)]
    assert found[0][0].start == 0
