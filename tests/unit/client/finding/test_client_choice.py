"""Which chain a client takes, what it knows beyond the directory, and when it changes its mind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from swarm.client.finding.choice import ModelShape, View, priced
from swarm.client.finding.loads import TOLD_S, Loads, with_all_room, without_own
from swarm.core.announcement import State
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.scheduling.routing import RouteNeeds
from swarm.wire.messages import Accept

Make = Callable[..., Listing]
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
NEEDS = priced(RouteNeeds(kv_tokens=10, head="remote"))


def view(*listings: Listing, rtt_s: float = 0.01, **shape: Any) -> View:
    known = dict.fromkeys((listing.peer for listing in listings), rtt_s)
    return View(ModelShape(**({"layers": 4, "hidden_size": 1000} | shape)), listings, known)


def figures(listings: tuple[Listing, ...], peer: str) -> tuple[int, int, float]:
    """Sessions, free KV tokens and layer time that the view shows of a peer."""
    [metrics] = [item.metrics for item in listings if item.peer == peer]
    assert metrics is not None
    return metrics.sessions, metrics.kv_free_tokens, metrics.tau_s


# -- the best chain ---------------------------------------------------------------------------------------------


def test_the_faster_of_two(listing: Make) -> None:
    best = view(listing("a", 0, 4, tau_s=0.02), listing("b", 0, 4, tau_s=0.01)).best(NEEDS)
    assert best.peers == (B,)
    assert best.latency_s == pytest.approx(0.01 + 4 * 0.01 + 8 * 64 / 8e6)


def test_rows_cost_what_the_chains_own_dtype_sends(listing: Make) -> None:
    """At 8 Mbit/s a row of 1000 floats takes 4 ms, of 1000 halves 2 ms; each chain is priced at its own."""
    wide = (listing("a", 0, 2), listing("b", 2, 4))
    half = Numerics("bfloat16")
    narrow = (listing("c", 0, 2, numerics=half), listing("d", 2, 4, numerics=half))
    apart = view(*wide).best(NEEDS).latency_s - view(*narrow).best(NEEDS).latency_s
    assert apart == pytest.approx(0.002)
    assert view(*wide, *narrow).best(NEEDS).latency_s == view(*narrow).best(NEEDS).latency_s
    assert view(*wide, codec="int8").best(NEEDS).latency_s < view(*narrow).best(NEEDS).latency_s


def test_mixed_chains_are_priced_at_their_widest_rows(listing: Make) -> None:
    mixed = view(listing("a", 0, 2, numerics=Numerics("bfloat16")), listing("b", 2, 4))
    with pytest.raises(NoRouteError, match="no one numerics class"):
        mixed.best(NEEDS)
    needs = priced(RouteNeeds(head="remote", numerics="any"))
    best = mixed.best(needs)
    assert not best.exact
    assert best.latency_s == pytest.approx(mixed.price(best.stages, needs))


def test_ids_come_and_go_with_a_remote_head_rows_with_a_local_one(listing: Make) -> None:
    remote = view(listing("a", 0, 4)).best(NEEDS).latency_s
    local = view(listing("a", 0, 4)).best(priced(RouteNeeds(head="local"))).latency_s
    assert local - remote == pytest.approx(8 * (4000 - 64) / 8e6)


def test_the_reason_is_the_whole_swarms(listing: Make) -> None:
    """Not that of one dtype's servers."""
    some = view(listing("a", 0, 1), listing("b", 2, 4, numerics=Numerics("bfloat16")))
    with pytest.raises(NoRouteError, match="no server holds layer 1"):
        some.best(NEEDS)
    with pytest.raises(NoRouteError):
        view().best(NEEDS)


def test_a_server_that_has_not_been_heard_of_is_not_routed(listing: Make) -> None:
    assert view(listing("a", 0, 4, live=False), listing("b", 0, 4, tau_s=0.5)).best(NEEDS).peers == (B,)


# -- changing one's mind --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau_s", "changes"), [(0.009, False), (0.0110, False), (0.013, True), (1.0, True)])
def test_only_a_gain_over_the_threshold_is_worth_another_chain(listing: Make, tau_s: float, changes: bool) -> None:
    other = listing("b", 0, 4, tau_s=0.01)
    chosen = view(listing("a", 0, 4, tau_s=0.009), other).best(NEEDS)
    assert chosen.peers == (A,)
    better = view(listing("a", 0, 4, tau_s=tau_s), other).better(chosen, NEEDS, gain=0.2)
    assert (better is not None) is changes
    assert better is None or better.peers == (B,)


def test_a_chain_that_is_as_it_was_is_kept_whatever_became_better(listing: Make) -> None:
    """It was taken for its time; another may have been passed over for its sessions."""
    chosen = view(listing("a", 0, 4)).best(NEEDS)
    assert view(listing("a", 0, 4), listing("b", 0, 4, tau_s=0.001)).better(chosen, NEEDS, gain=0.2) is None


def test_no_other_chain_no_change(listing: Make) -> None:
    chosen = view(listing("a", 0, 4)).best(NEEDS)
    alone = view(listing("a", 0, 4, tau_s=9.0), listing("b", 0, 4, state=State.DRAINING))
    assert alone.better(chosen, NEEDS, gain=0.2) is None
    full = view(listing("a", 0, 4, tau_s=9.0, kv_free_tokens=0), listing("b", 0, 4, kv_free_tokens=0))
    assert full.better(chosen, NEEDS, gain=0.2) is None


# -- what servers told ------------------------------------------------------------------------------------------


def accepted(listing: Make, load: Accept) -> tuple[Loads, Listing]:
    loads, seen = Loads(), listing("a", 0, 4, sessions=2, sequence=7)
    loads.accept({A: load}, [seen], now_s=100.0)
    return loads, seen


def test_a_servers_word_overrides_its_metrics(listing: Make) -> None:
    loads, seen = accepted(listing, Accept(5, 3, 40, tau_s=0.5, fixed_s=0.25))
    [now] = loads.over([seen], 101.0)
    assert now.metrics is not None
    assert (now.metrics.sessions, now.metrics.queued_steps, now.metrics.kv_free_tokens) == (5, 3, 40)
    assert (now.metrics.tau_s, now.metrics.fixed_s) == (0.5, 0.25)
    assert now.metrics.uplink_mbps == 8.0, "what it did not tell stays"


def test_a_server_that_tells_no_times_keeps_its_metrics_times(listing: Make) -> None:
    loads, seen = accepted(listing, Accept(5, 3, 40))
    assert figures(loads.over([seen], 101.0), "a") == (5, 40, 0.01)


@pytest.mark.parametrize(
    ("change", "after_s"), [({"sequence": 8}, 1.0), ({"sequence": 1, "instance": 2}, 1.0), ({}, TOLD_S + 0.1)]
)
def test_newer_metrics_end_it_and_so_does_time(listing: Make, change: dict[str, int], after_s: float) -> None:
    loads, _ = accepted(listing, Accept(5, 3, 40))
    seen = listing("a", 0, 4, **({"sessions": 2, "sequence": 7} | change))
    assert figures(loads.over([seen], 100.0 + after_s), "a") == (2, 100, 0.01)


def test_opens_under_way_count_until_they_are_answered(listing: Make) -> None:
    loads, both = Loads(), [listing("a", 0, 2), listing("b", 2, 4)]
    loads.begin([A, B, A], 30)
    loads.begin([A], 10)
    assert figures(loads.over(both, 0.0), "a") == (3, 30, 0.01)
    assert figures(loads.over(both, 0.0), "b") == (1, 70, 0.01)
    loads.end([A, B, A], 30)
    loads.end([A], 10)
    assert loads.over(both, 0.0) == tuple(both)
    assert not loads.opening
    assert not loads.reserving


def test_a_closed_session_is_taken_off_what_counted_it(listing: Make) -> None:
    loads, seen = accepted(listing, Accept(5, 3, 40))
    loads.close([A], 30, opened_s=100.5)
    assert figures(loads.over([seen], 101.0), "a") == (5, 40, 0.01), "told before that session was opened"
    loads.close([A], 30, opened_s=99.0)
    assert figures(loads.over([seen], 101.0), "a") == (4, 70, 0.01)
    loads.close([C], 30, opened_s=99.0)


def test_a_view_without_ones_own_session(listing: Make) -> None:
    both = (listing("a", 0, 2, sessions=3, kv_free_tokens=20), listing("b", 2, 4))
    before = without_own(both, [A, A], 30)
    assert figures(before, "a") == (1, 80, 0.01)
    assert before[1] is both[1]
    assert figures(without_own(both, [B], 30), "b")[0] == 0, "never below none"


def test_a_view_of_empty_servers(listing: Make) -> None:
    both = (listing("a", 0, 2, kv_free_tokens=20), listing("b", 2, 4, live=False))
    assert figures(with_all_room(both), "a")[1] == 100
    assert with_all_room(both)[1] is both[1]
