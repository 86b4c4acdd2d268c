"""The rate at which rows are given back: never more than so much, never less while somebody asks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.server.record.fetching import Throttle

RATE, BURST_S = 1000.0, 2.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5000)), min_size=1, max_size=30))
def test_over_any_stretch_no_more_than_the_burst_and_the_rate(asked: list[tuple[float, int]]) -> None:
    """Sends in order, each begun when its wait is over: those of any stretch fit into it."""
    throttle, now_s = Throttle(RATE, BURST_S), 0.0
    sent: list[tuple[float, int]] = []
    for pause_s, size in asked:
        now_s += pause_s
        now_s += throttle.wait_s("peer", size, now_s)
        sent.append((now_s, size))
    for index in range(len(sent)):
        begun_s, first = sent[index]
        total = 0
        for at_s, size in sent[index:]:
            total += size
            assert total <= max(RATE * BURST_S, first) + RATE * (at_s - begun_s) + 1e-6


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20))
def test_whoever_asks_without_pause_has_the_whole_rate(sizes: list[int]) -> None:
    throttle, now_s = Throttle(RATE, BURST_S), 0.0
    for size in sizes:
        now_s += throttle.wait_s("peer", size, now_s)
    assert now_s <= max(0.0, sum(sizes) / RATE - BURST_S) + 1e-6


def test_names_do_not_wait_for_each_other_and_are_forgotten() -> None:
    throttle = Throttle(RATE, BURST_S)
    assert throttle.wait_s("greedy", 10_000, 0.0) == 8.0
    assert throttle.wait_s("other", 1000, 0.0) == 0.0
    for name in range(100):
        throttle.wait_s(str(name), 1, 100.0 + name)
    assert len(throttle._free_s) < 10
