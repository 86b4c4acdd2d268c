"""Shares of one engine: laws of the queue, not examples of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.scheduling.fair_queue import (
    FORGET_S,
    RECENT_S,
    STRETCH,
    UNMEASURED_ROWS,
    WEIGHTS,
    Bounds,
    FairQueue,
    Waiting,
    forward_s,
    shared_rows,
)

ONE = Bounds(decode_rows=1, prefill_rows=1, shared_rows=1, shared_prefill_rows=1)
"""A forward of one step: the order alone."""
WIDE = Bounds(decode_rows=512, prefill_rows=512, shared_rows=8, shared_prefill_rows=128)
weights = st.sampled_from(list(WEIGHTS.values()))


def decode(client: str, weight: float = 8.0, cost: float = 1.0) -> Waiting:
    return Waiting(client, 1, cost, decode=True, weight=weight)


def prefill(client: str, rows: int = 128, weight: float = 8.0) -> Waiting:
    return Waiting(client, rows, rows / 10, decode=False, weight=weight)


def clients_of(queue: FairQueue, waiting: Sequence[Waiting], bounds: Bounds = WIDE, now_s: float = 0.0) -> list[object]:
    return [waiting[index].client for index in queue.pick(waiting, bounds, now_s)]


# -- shares -------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(weights, st.integers(1, 5), st.floats(0.5, 20.0)), min_size=2, max_size=5),
    st.integers(50, 150),
)
def test_who_always_has_work_gets_a_share_by_weight(clients: list[tuple[float, int, float]], rounds: int) -> None:
    """Two clients' cost over weight never differs by more than the largest step of each (the bound of the paper)."""
    queue = FairQueue()
    waiting = [
        decode(f"c{n}", weight, cost) for n, (weight, sessions, cost) in enumerate(clients) for _ in range(sessions)
    ]
    had: dict[object, float] = {step.client: 0.0 for step in waiting}
    for _ in range(rounds):
        [index] = queue.pick(waiting, ONE, 0.0)
        had[waiting[index].client] += waiting[index].cost / waiting[index].weight
    for a, (weight_a, _, cost_a) in enumerate(clients):
        for b, (weight_b, _, cost_b) in enumerate(clients):
            assert abs(had[f"c{a}"] - had[f"c{b}"]) <= cost_a / weight_a + cost_b / weight_b + 1e-6


@settings(max_examples=40)
@given(
    st.lists(st.tuples(weights, st.booleans(), st.integers(1, 16)), min_size=1, max_size=5),
    st.integers(0, 4),
    st.sampled_from([decode("mine", 1.0), prefill("mine", 32, 1.0), decode("c0", 1.0)]),
)
def test_whoever_waits_is_computed_in_the_end(others: list[tuple[float, bool, int]], before: int, own: Waiting) -> None:
    """One step of whatever weight and kind, among others that come back as soon as they are computed."""
    queue = FairQueue()
    crowd = [
        Waiting(f"c{n % 3}", rows, rows / (1 if kind else 10), decode=kind, weight=weight)
        for n, (weight, kind, rows) in enumerate(others)
    ]
    for _ in range(before):
        queue.pick(crowd, WIDE, 0.0)
    # Others are charged an eighth of the least cost a forward, and this step is never ahead by more than all costs.
    ahead = (before + 1) * sum(step.cost for step in [*crowd, own])
    waiting = [*crowd, own]
    for _ in range(int(80 * ahead) + 2):
        picked = queue.pick(waiting, WIDE, 0.0)
        if any(waiting[index] is own for index in picked):
            return
        stay = [step for index, step in enumerate(waiting) if index not in picked]
        waiting = stay + [waiting[index] for index in picked]
    pytest.fail("starved")


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), min_size=1, max_size=30))
def test_one_client_alone_is_served_in_order_of_arrival(steps: list[tuple[bool, int]]) -> None:
    """Decode first, then prefill, and what does not fit waits: as if there were no sharing."""
    waiting = [Waiting("c", 1 if kind else rows, float(rows), decode=kind) for kind, rows in steps]
    chosen = FairQueue().pick(waiting, WIDE, 0.0)
    decoding = [index for index, (kind, _) in enumerate(steps) if kind]
    assert chosen[: len(decoding)] == decoding
    rest: list[int] = []
    rows = len(decoding)
    for index, (kind, size) in enumerate(steps):
        if not kind and (not rest or rows + size <= WIDE.prefill_rows):
            rest.append(index)
            rows += size
    assert chosen[len(decoding) :] == rest


def test_fifty_sessions_against_one_and_fair_halves() -> None:
    """Each of two clients has one step in every forward, and the many sessions fill the rest up to the bound."""
    queue, waiting = FairQueue(), [*[decode("many")] * 50, decode("one")]
    for _ in range(20):
        picked = Counter(clients_of(queue, waiting))
        assert picked == {"many": 7, "one": 1}


def test_batch_work_of_a_client_yields_to_its_interactive_work() -> None:
    queue, waiting = FairQueue(), [decode("c", 1.0), decode("c", 8.0)]
    picked = Counter(waiting[queue.pick(waiting, ONE, 0.0)[0]].weight for _ in range(900))
    assert picked[8.0] == pytest.approx(800, abs=2)


def test_batch_work_of_a_client_beside_its_interactive_work_weighs_no_more_than_that() -> None:
    """A client's weight is its most urgent step's; more sessions do not add to it."""
    queue, waiting = FairQueue(), [decode("a", 8.0), decode("a", 1.0), decode("b", 8.0)]
    picked = Counter(clients_of(queue, waiting, ONE)[0] for _ in range(1000))
    assert picked["a"] == pytest.approx(500, abs=2)


# -- coming and going ---------------------------------------------------------------------------------------------


def test_idleness_earns_no_credit() -> None:
    queue, both = FairQueue(), [decode("busy"), decode("back")]
    clients_of(queue, both, ONE)
    for _ in range(1000):
        queue.pick([decode("busy")], ONE, 1.0)
    picked = Counter(clients_of(queue, both, ONE, 2.0)[0] for _ in range(20))
    assert picked["back"] in (10, 11), "it begins level, with one step ahead at most"


def test_a_newcomer_is_not_behind_who_was_there_before() -> None:
    queue = FairQueue()
    for _ in range(1000):
        queue.pick([decode("old")], ONE, 0.0)
    assert clients_of(queue, [decode("old"), decode("new")], ONE) == ["new"]


def test_a_client_that_was_here_lately_keeps_forwards_small() -> None:
    queue, crowd = FairQueue(), [decode("many")] * 50
    queue.pick([decode("one")], WIDE, 0.0)
    assert len(queue.pick(crowd, WIDE, RECENT_S)) == WIDE.shared_rows
    assert len(queue.pick(crowd, WIDE, RECENT_S + 0.1)) == 50
    assert queue.clients == 1


def test_nothing_is_kept_of_clients_long_gone() -> None:
    queue = FairQueue()
    for n in range(1000):
        queue.pick([decode(f"c{n}")], ONE, n * FORGET_S / 100)
    kept: Sequence[Mapping[object, object]] = (queue._seen_s, queue._clients._ends, queue._priorities)
    assert all(len(each) <= 102 for each in kept)


# -- prefill beside decoding --------------------------------------------------------------------------------------


def test_a_prefill_joins_the_decoding_of_others_only_in_its_turn() -> None:
    """Chunks of 12.8 steps' cost: between two of them the other client has as much."""
    queue, waiting = FairQueue(), [decode("reads"), prefill("asks"), prefill("asks")]
    with_chunk = [len(queue.pick(waiting, WIDE, 0.0)) > 1 for _ in range(140)]
    assert sum(with_chunk) == pytest.approx(10, abs=1)
    assert max(len(queue.pick(waiting, WIDE, 0.0)) for _ in range(20)) == 2, "one chunk at a time"


def test_a_prefill_takes_the_engine_when_nobody_else_has_work() -> None:
    queue = FairQueue()
    queue.pick([decode("reads"), prefill("asks")], WIDE, 0.0)
    for _ in range(5):
        assert clients_of(queue, [prefill("asks"), prefill("asks")], WIDE, 0.1) == ["asks"]


# -- how large a shared forward is --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_s", "rows"),
    [
        ((), UNMEASURED_ROWS),
        ((0.0, 0.0, 0.0, 0.0), UNMEASURED_ROWS),
        ((1.0, 2.0, 4.0, 8.0), 1),  # nothing is gained
        ((1.0, 1.25, 1.5, 1.75), 12),  # twice a lone step's time
        ((1.0, 1.1, 1.2, 3.0), 4),  # eight would give less
        ((1.0, 1.25, 1.5, 2.5), 6),  # between two sizes
        ((1.0, 1.5, 1.9, 1.99), 8),
        ((1.0, 1.0, 1.0, 1.0), 512),  # free: as many as there are
    ],
)
def test_how_many_rows(step_s: tuple[float, ...], rows: int) -> None:
    assert shared_rows(step_s, 512) == rows


@given(st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4).map(sorted), st.integers(1, 600))
def test_a_shared_forward_is_short(step_s: list[float], most: int) -> None:
    rows = shared_rows(step_s, most)
    assert 1 <= rows <= most
    assert rows == 1 or forward_s(step_s, rows) <= STRETCH * step_s[0] * (1 + 1e-9)
