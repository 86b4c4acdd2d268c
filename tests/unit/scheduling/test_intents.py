"""What a newcomer should hold: against every window there is, beside claims, ghosts and liars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import State
from swarm.core.errors import ConfigError
from swarm.core.limits import MAX_LAYERS
from swarm.core.record_base import MAX_RATE, MIN_RATE
from swarm.core.spans import Span
from swarm.scheduling import intents_windows
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.allocation.throughput import swarm_tokens_per_s, with_spans
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.intents import Choice, choose_span
from swarm.scheduling.intents_future import PlacingOptions, priority
from swarm.scheduling.intents_windows import best_window, quality

NOW_S = 1_800_000_000.0
OPTIONS = PlacingOptions()


def serving(name: str, span: str, *, power: float = 100.0, **changes: object) -> Node:
    held = Span.parse(span)
    node = Node(id=name, span=held, capacity_layers=len(held), power=power, state=State.ONLINE)
    return replace(node, **changes)  # type: ignore[arg-type]


def newcomer(name: str, capacity: int, *, claim: str = "", power: float = 100.0, said_s: float = NOW_S) -> Node:
    intent = Span.parse(claim) if claim else None
    return Node(
        id=name, span=intent or Span(0, 1), capacity_layers=capacity, power=power, state=State.JOINING,
        intent=intent, intent_s=said_s if intent else 0.0,
    )  # fmt: skip


def choose(layers: int, *nodes: Node, me: str = "me", remembered: str = "") -> Choice:
    before = Span.parse(remembered) if remembered else None
    return choose_span(Cluster(layers=layers, nodes=nodes), me, OPTIONS, now_s=NOW_S, remembered=before)


rates_lists = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.3]), min_size=1, max_size=9)


@given(rates_lists, st.integers(1, 12), st.sampled_from([0.3, 1.0, 7.0]), st.sampled_from([1, 20, 65536]))
def test_no_window_is_better_than_the_best(rates: list[float], capacity: int, power: float, block: int) -> None:
    layers = len(rates)

    def with_one_at(span: Span) -> intents_windows.Quality:
        added = np.array(rates)
        added[span.start : span.end] += power / len(span)
        return quality(added)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intents_windows, "_BLOCK", block)
        chosen = best_window(np.array(rates), capacity, power)
    assert len(chosen) <= capacity
    got = with_one_at(chosen)
    for start in range(layers):
        for end in range(start + 1, min(layers, start + capacity) + 1):
            other = with_one_at(Span(start, end))
            assert (other.covered, other.tokens_per_s * (1 - 1e-8)) <= (got.covered, got.tokens_per_s)
            if (other.covered, other.tokens_per_s) == (got.covered, got.tokens_per_s):
                assert other.thinness_s >= got.thinness_s * (1 - 1e-8)


def test_the_first_server_takes_what_it_can_from_the_first_layer_on() -> None:
    whole = choose(30, newcomer("me", 40))
    assert (whole.span, whole.why) == (Span(0, 30), "nobody held any layer")
    assert whole.tokens_per_s_before == 0
    assert whole.tokens_per_s_after == pytest.approx(100 / 30)
    assert choose(30, newcomer("me", 12)).span == Span(0, 12)


def test_a_hole_comes_first() -> None:
    choice = choose(30, serving("a", "0:10"), serving("b", "20:30"), newcomer("me", 10))
    assert (choice.span, choice.why) == (Span(10, 20), "nobody held layers 10 to 19")
    assert (choice.tokens_per_s_before, choice.tokens_per_s_after) == (0, pytest.approx(10))


def test_then_the_slowest_layers() -> None:
    choice = choose(
        30, serving("a", "0:10"), serving("b", "10:20", power=40), serving("c", "20:30"), newcomer("me", 10)
    )
    assert (choice.span, choice.why) == (Span(10, 20), "layers 10 to 19 were the slowest at 4 tokens/s")
    assert (choice.tokens_per_s_before, choice.tokens_per_s_after) == (4, pytest.approx(10))


def test_where_all_are_equal_it_says_so() -> None:
    choice = choose(20, serving("a", "0:10"), serving("b", "10:20"), newcomer("me", 10))
    assert (choice.span, choice.why) == (Span(0, 10), "every layer had the same 10 tokens/s")
    assert choose(20, serving("a", "0:20"), newcomer("me", 20)).why == "it has room for them all"


@pytest.mark.parametrize(
    "gone", [{"state": State.DRAINING}, {"state": State.OFFLINE}, {"live": False}, {"state": State.JOINING}]
)
def test_who_goes_is_silent_or_only_claims_holds_nothing(gone: dict[str, object]) -> None:
    claim = {"intent": Span(20, 30), "intent_s": NOW_S} if gone.get("state") is State.JOINING else {}
    leaving = serving("b", "10:20", **gone, **claim)
    assert choose(20, serving("a", "0:10"), leaving, newcomer("me", 10)).span == Span(10, 20)


def test_who_loads_and_who_moves_counts_as_there() -> None:
    loading = serving("a", "0:10", state=State.JOINING, started_s=NOW_S - OPTIONS.move_life_s)
    moving = serving("b", "0:10", state=State.DRAINING, intent=Span(10, 20), intent_s=NOW_S)
    assert choose(30, loading, moving, newcomer("me", 10)).span == Span(20, 30)
    for_ever = serving("a", "0:10", state=State.JOINING, started_s=NOW_S - OPTIONS.move_life_s - 1)
    assert choose(30, for_ever, moving, newcomer("me", 10)).span == Span(0, 10)


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_claims_on_one_hole_the_smaller_hash_keeps_it(order: int) -> None:
    held = [serving("a", "0:10")]
    claims = [newcomer("me", 10, claim="10:20"), newcomer("you", 10, claim="10:20")]
    first, second = sorted(claims, key=priority)
    view = [*held, *claims][::order]
    assert choose(30, *view, me=first.id).span == Span(10, 20)
    assert choose(30, *view, me=second.id).span == Span(20, 30)


def test_a_claim_that_nobody_means_any_more_is_no_obstacle() -> None:
    for index in range(8):  # some of these have the smaller hash, some not
        abandoned = newcomer(f"old {index}", 10, claim="10:20", said_s=NOW_S - 2 * OPTIONS.claim_life_s)
        me = newcomer("me", 10, claim="10:20")
        assert choose(20, serving("a", "0:10"), abandoned, me).span == Span(10, 20)


def test_it_takes_again_what_it_held_if_that_is_as_good() -> None:
    kept = choose(30, newcomer("me", 10), remembered="20:30")
    assert (kept.span, kept.why) == (Span(20, 30), "it held them before")
    there = [serving("a", "0:10"), serving("b", "10:20"), serving("c", "20:30")]
    assert choose(30, *there, newcomer("me", 10), remembered="10:20").span == Span(10, 20)


@pytest.mark.parametrize("remembered", ["0:10", "0:12", "25:35"])
def test_it_does_not_if_others_need_it_more_or_it_does_not_fit(remembered: str) -> None:
    choice = choose(30, serving("a", "0:10"), serving("b", "10:20"), newcomer("me", 10), remembered=remembered)
    assert choice.span == Span(20, 30)


def test_a_liars_power_makes_no_hole_and_no_plenty() -> None:
    liar = serving("liar", "0:5", power=1e300)
    honest = [serving("a", "0:10"), serving("b", "10:20"), serving("c", "20:30", power=10)]
    assert choose(30, liar, *honest, newcomer("me", 10)).span == Span(20, 30)


@pytest.mark.parametrize("power", [MIN_RATE, MAX_RATE])
@pytest.mark.parametrize("helped", [True, False])
def test_the_most_absurd_power_that_is_read_stops_nobody(power: float, helped: bool) -> None:
    honest = [serving("a", "5:30")] if helped else []
    assert choose(30, serving("liar", "0:30", power=power), *honest, newcomer("me", 10)).span.start == 0
    everywhere = serving("liar", f"0:{MAX_LAYERS}", power=power)
    assert len(choose(MAX_LAYERS, everywhere, newcomer("me", 10)).span) == 10


def test_no_room_at_all_is_said() -> None:
    with pytest.raises(ConfigError, match="no layer fits"):
        choose(30, newcomer("me", 0))


claimants = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 11), st.sampled_from([30.0, 100.0, 110.0, 900.0])),
    min_size=1, max_size=6,
)  # fmt: skip
holders = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12)), max_size=4)


@settings(max_examples=20, deadline=None)
@given(claimants, holders, st.randoms(use_true_random=False))
def test_all_who_see_one_view_agree_and_stay_agreed(
    drawn: list[tuple[int, int, float]], held: list[tuple[int, int]], shuffler: object
) -> None:
    layers = 12
    fixed = [serving(f"s{n}", f"{a}:{min(a + size, layers)}") for n, (a, size) in enumerate(held)]
    joining = [
        newcomer(f"n{n}", capacity, claim=f"{a}:{min(a + capacity, layers)}", power=power)
        for n, (capacity, a, power) in enumerate(drawn)
    ]

    def round_of(nodes: list[Node]) -> list[Node]:
        view = [*fixed, *nodes]
        shuffler.shuffle(view)  # type: ignore[attr-defined]
        spans = [choose(layers, *view, me=node.id).span for node in nodes]
        return [replace(node, intent=span, span=span) for node, span in zip(nodes, spans, strict=True)]

    once = round_of(joining)
    assert all(node.intent and len(node.intent) <= node.capacity_layers for node in once)
    assert round_of(once) == once

    # What they agreed on is a good plan: as good as phase 1 with the newcomers alone, within the threshold.
    alone = Cluster(layers=layers, nodes=tuple(joining))
    agreed = swarm_tokens_per_s([*fixed, *(replace(node, state=State.ONLINE) for node in once)], layers)
    planned = swarm_tokens_per_s([*fixed, *with_spans(alone, allocate(alone))], layers)
    assert agreed >= planned * (1 - OPTIONS.threshold) - 1e-9
