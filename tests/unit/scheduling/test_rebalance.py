"""When servers move: for a hole and for a real gain, one at a time, and never for noise."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.intents import Choice
from swarm.scheduling.intents_future import PlacingOptions, priority
from swarm.scheduling.intents_windows import quality, rates_of
from swarm.scheduling.rebalance import choose_move, is_wanted, layer_loads, unbalance

NOW_S = 1_800_000_000.0
OPTIONS = PlacingOptions()
LOOK_S = 60.0
DAY_LOOKS = int(24 * 3600 / LOOK_S)


def serving(name: str, span: str, *, power: float = 100.0, capacity: int = 0, **changes: object) -> Node:
    held = Span.parse(span)
    node = Node(id=name, span=held, capacity_layers=capacity or len(held), power=power, kv_free_tokens=4096)
    return replace(node, **changes)  # type: ignore[arg-type]


def move(layers: int, nodes: list[Node], me: str, *, waited: int = 0) -> Choice | None:
    return choose_move(Cluster(layers=layers, nodes=tuple(nodes)), me, OPTIONS, now_s=NOW_S, waited_looks=waited)


def movers(layers: int, nodes: list[Node], *, waited: int = OPTIONS.patience) -> dict[str, Span]:
    """Everybody who would move by this view, and where to."""
    chosen = {node.id: move(layers, nodes, node.id, waited=waited) for node in nodes}
    return {name: choice.span for name, choice in chosen.items() if choice is not None}


PIPELINES = ["0:10", "10:20", "20:30"]


def two_pipelines() -> list[Node]:
    return [serving(f"{name}{n}", span) for name in "ab" for n, span in enumerate(PIPELINES)]


def test_load_is_half_kv_room_and_half_compute() -> None:
    nodes = [
        serving("a", "0:2", power=60, kv_free_tokens=100),
        serving("b", "1:3", power=20, kv_free_tokens=300),
    ]
    compute, room = np.array([30.0, 40.0, 10.0]), np.array([100.0, 400.0, 300.0])
    expected = 0.5 * compute / compute.mean() + 0.5 * room / room.mean()
    assert layer_loads(nodes, 3, alpha=0.5) == pytest.approx(expected)
    assert layer_loads(nodes, 3, alpha=1.0) == pytest.approx(room / room.mean())
    assert unbalance(expected) == pytest.approx(expected.std())  # its mean is one
    assert unbalance(np.ones(3)) == 0


@settings(max_examples=20, deadline=None)
@given(st.permutations(two_pipelines()), st.integers(0, 5))
def test_a_departure_frees_its_load_at_once(nodes: list[Node], gone: int) -> None:
    left = [*nodes[:gone], *nodes[gone + 1 :]]
    span = nodes[gone].span
    assert span is not None
    loads = layer_loads(left, 30, alpha=0.5)
    assert loads[span.start] == pytest.approx(loads.min())
    assert loads.sum() == pytest.approx(30)
    for ending in (State.DRAINING, State.OFFLINE):  # announced or not, it counts no more
        leaving = [*left, replace(nodes[gone], state=ending)]
        assert movers(30, leaving) == movers(30, left)


def test_nobody_moves_where_all_is_even() -> None:
    assert movers(30, two_pipelines()) == {}


def test_the_only_copy_stays_and_a_spare_fills_the_hole() -> None:
    nodes = [serving("a", "0:10", live=False), serving("b", "10:20"), serving("c", "20:30"), serving("d", "20:30")]
    assert movers(30, nodes) == {"c": Span(0, 10), "d": Span(0, 10)}
    choice = move(30, nodes, "c")
    assert choice is not None
    assert choice.why == "nobody held layers 0 to 9"
    assert (choice.tokens_per_s_before, choice.tokens_per_s_after) == (0, pytest.approx(10))


def test_survivors_of_two_broken_pipelines_are_one() -> None:
    """a lost its first stage and b its last: what is left still covers the model, and nobody has to move."""
    _, a1, a2, b0, b1, b2 = two_pipelines()
    assert movers(30, [a1, a2, b0, b1]) == {}
    # Both lost their first: one of the doubled survivors takes it, without waiting for a newcomer.
    left = [a1, a2, b1, b2]
    assert set(movers(30, left).values()) == {Span(0, 10)}
    after = walk(30, left)
    assert after == 1


def test_nobody_gives_up_layers_for_a_guest_and_the_reason_counts_the_mover() -> None:
    """A small guest beside a full server: holding only the rest would be faster, until the guest leaves."""
    full = [serving("a", "0:10", power=200), serving("b", "10:20", power=200), serving("c", "20:30")]
    assert movers(30, [*full, serving("guest", "20:23")]) == {}
    spread = [serving("a", "0:10"), serving("b", "0:10"), serving("c", "10:20", power=20), serving("d", "20:30")]
    choice = move(30, spread, "b", waited=OPTIONS.patience)
    assert choice is not None
    assert choice.span == Span(10, 20)
    assert choice.why == "layers 10 to 19 were the slowest at 2 tokens/s"


def test_nobody_moves_while_another_does() -> None:
    hole = [serving("b", "10:20"), serving("c", "10:20"), serving("d", "10:20")]
    moving = replace(hole[0], state=State.DRAINING, intent=Span(20, 30), intent_s=NOW_S)
    assert movers(30, hole)
    assert movers(30, [moving, *hole[1:]]) == {}
    abandoned = replace(moving, intent_s=NOW_S - OPTIONS.move_life_s - 1)
    assert movers(30, [abandoned, *hole[1:]])


def test_a_hole_is_not_left_for_ever_to_those_who_say_that_they_move() -> None:
    """Anybody may say so, every day anew; once it has gone on for too long a hole is filled all the same."""
    hole = [serving("b", "10:20"), serving("c", "10:20")]
    stranger = serving("x", "10:20", live=False)
    moving = replace(stranger, state=State.DRAINING, intent=Span(10, 20), intent_s=NOW_S)
    claims = replace(stranger, live=True, intent=Span(10, 20), intent_s=NOW_S)
    for nodes in ([*hole, moving], [*hole, claims]):
        cluster = Cluster(layers=20, nodes=tuple(nodes))
        assert choose_move(cluster, "b", OPTIONS, now_s=NOW_S, waited_looks=OPTIONS.patience) is None
        late = choose_move(cluster, "b", OPTIONS, now_s=NOW_S, waited_looks=OPTIONS.patience, held_up=True)
        assert late is not None
        assert late.span == Span(0, 10)
    into = replace(moving, intent=Span(0, 10))
    filled = Cluster(layers=20, nodes=(*hole, into))
    assert choose_move(filled, "b", OPTIONS, now_s=NOW_S, waited_looks=OPTIONS.patience, held_up=True) is None


def test_of_two_who_would_move_the_smaller_hash_does() -> None:
    both = [
        serving(name, "10:20", intent=Span(0, 10), intent_s=NOW_S - 1) for name in ("b", "c")
    ]  # fmt: skip
    first, second = sorted(both, key=priority)
    assert set(movers(20, both)) == {first.id}
    gone = replace(first, live=False)
    third = serving("e", "10:20")
    assert move(20, [gone, second, third], second.id) is not None, "a claim of the dead is none"
    assert move(20, [gone, second, third], third.id) is None


def test_a_newcomer_with_the_smaller_hash_goes_first() -> None:
    spares = [serving("b", "10:20"), serving("c", "10:20")]
    joining = replace(serving("n", "0:10"), state=State.JOINING, intent=Span(0, 10), intent_s=NOW_S)
    assert movers(20, [joining, *spares]) == {}
    claiming = replace(spares[0], intent=Span(0, 10), intent_s=NOW_S)
    assert bool(movers(20, [joining, claiming, spares[1]])) == (priority(claiming) < priority(joining))


def test_the_best_mover_goes_first_unless_it_does_not_come_forward() -> None:
    nodes = [serving("a", "0:10"), serving("small", "0:3"), serving("large", "0:10"), serving("b", "10:20")]
    nodes[3] = replace(nodes[3], live=False)
    assert set(movers(20, nodes, waited=0)) <= {"a", "large"}
    assert "small" in movers(20, nodes)
    cluster = Cluster(layers=20, nodes=tuple(nodes))
    assert is_wanted(cluster, "small", OPTIONS, now_s=NOW_S)
    assert not is_wanted(Cluster(layers=20, nodes=tuple(nodes[:3])), "nobody", OPTIONS, now_s=NOW_S)


def test_four_on_one_block_spread_out() -> None:
    nodes = [serving(f"a{n}", "0:10") for n in range(4)] + [serving("b", "10:20"), serving("c", "20:30")]
    assert walk(30, nodes) == 2
    assert quality(rates_of(nodes, 30)).tokens_per_s == pytest.approx(20)


def walk(layers: int, nodes: list[Node]) -> int:
    """Let whoever would move move, one after the other, in place, until nobody would; how often somebody did."""
    moved = 0
    while wanted := movers(layers, nodes):
        name = min(wanted)
        index = next(n for n, node in enumerate(nodes) if node.id == name)
        assert nodes[index].span != wanted[name]
        assert len(wanted[name]) <= nodes[index].capacity_layers
        before = quality(rates_of(nodes, layers))
        nodes[index] = replace(nodes[index], span=wanted[name])
        after = quality(rates_of(nodes, layers))
        assert after.better_than(before, OPTIONS.move_threshold)
        assert after.covered >= before.covered
        moved += 1
        assert moved < 50
    return moved


servers = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 12), st.sampled_from([30.0, 100.0, 110.0, 900.0])),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(servers)
def test_every_walk_ends_and_never_makes_a_hole(drawn: list[tuple[int, int, float]]) -> None:
    nodes = [
        serving(f"s{n}", f"{a}:{min(a + size, 12)}", power=power, capacity=size)
        for n, (a, size, power) in enumerate(drawn)
    ]
    assert walk(12, nodes) <= 3 * len(nodes)


def noisy(nodes: list[Node], seed: random.Random) -> list[Node]:
    """The same servers as live metrics show them: times, KV and sessions jump about."""
    return [
        replace(
            node,
            tau_s=node.tau_s * seed.lognormvariate(0, 0.5),
            kv_free_tokens=int(4096 * seed.random()),
            sessions=seed.randrange(8),
        )
        for node in nodes
    ]


def test_a_day_of_noise_moves_nobody() -> None:
    source = random.Random(1)
    uneven = [*two_pipelines(), serving("x", "0:10"), serving("y", "5:20", power=130)]
    walk(30, uneven)  # at rest
    looked = 0
    for _ in range(DAY_LOOKS):
        view = noisy(uneven, source)
        looked += unbalance(layer_loads(view, 30, alpha=OPTIONS.alpha)) > OPTIONS.unbalance
        assert move(30, view, source.choice(uneven).id, waited=OPTIONS.patience) is None
    assert looked > DAY_LOOKS / 10, "the noise is strong enough to make servers think about it"


def test_a_day_of_comings_and_goings_moves_few() -> None:
    """Forty servers come or go in a day of noise; a move in four such events is enough."""
    source = random.Random(3)
    nodes = [*two_pipelines(), serving("x", "0:10"), serving("y", "10:20")]
    events = set(source.sample(range(DAY_LOOKS), 40))
    gone: list[Node] = []
    moves = 0
    for look in range(DAY_LOOKS):
        if look in events and gone and source.random() < 0.5:
            nodes.append(gone.pop())  # with the span it held
        elif look in events and len(nodes) > 5:
            gone.append(nodes.pop(source.randrange(len(nodes))))
        me = source.choice(nodes)
        choice = move(30, noisy(nodes, source), me.id, waited=OPTIONS.patience)
        if choice is not None:
            nodes[nodes.index(me)] = replace(me, span=choice.span)
            moves += 1
    assert moves <= 12
    assert (rates_of(nodes, 30) > 0).all()
