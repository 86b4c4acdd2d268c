"""One reading of the directory for all who ask at one time, and round trips that are measured in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swarm.client.finding.choice import ModelShape
from swarm.client.finding.distances import FORGET_S, FRESH_S, MAX_MEASURED, Distances, ends
from swarm.client.finding.view import VIEW_S, SwarmView
from swarm.core.announcement import State
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.runtime.clock import VirtualClock
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.verification.standings.apart import BROKEN, NOBODY_APART
from swarm.verification.standings.strikes import TERMS, Policy, equivocated, struck
from swarm.wire.messages import Accept

Make = Callable[..., Listing]
MODEL = ModelId.parse("tiny@main#0123456789abcdef")
SHAPE = ModelShape(4, 8)
A = PeerId("a")


class Shelf:
    """A directory that takes a second to read and counts its readers."""

    def __init__(self, clock: VirtualClock, *listings: Listing) -> None:
        self.clock = clock
        self.listings = list(listings)
        self.reads = 0
        self.down = False

    async def servers(self, model: ModelId) -> list[Listing]:
        self.reads += 1
        found = list(self.listings)
        await self.clock.sleep(0.5)
        if self.down:
            raise NetworkError("the directory does not answer")
        return found


class Ruler:
    """Measures what it is told to, in no time, and notes whom."""

    def __init__(self, **rtt_s: float | None) -> None:
        self.rtt_s = rtt_s
        self.asked: list[str] = []

    async def __call__(self, peer: PeerId, addresses: Sequence[str]) -> float | None:
        self.asked.append(peer)
        return self.rtt_s.get(peer)


def viewer(clock: VirtualClock, shelf: Shelf, reputation: ReputationStore | None = None, **rtt_s: float) -> SwarmView:
    directory: Any = shelf
    distances = Distances(Ruler(**rtt_s), clock)
    return SwarmView(directory, clock, MODEL, SHAPE, distances, reputation or ReputationStore(IN_MEMORY, clock))


# -- reading ------------------------------------------------------------------------------------------------------


async def test_who_asks_at_one_time_shares_a_read_and_a_later_one_reads_again(listing: Make) -> None:
    clock = VirtualClock()
    shelf = Shelf(clock, listing("a", 0, 4), listing("b", 0, 4))
    view = viewer(clock, shelf, a=0.04)
    several = await clock.run(_several(view, 20))
    assert shelf.reads == 1
    assert all([found.peer for found in seen.listings] == ["a", "b"] for seen in several)
    assert all(seen.client_rtt_s == {"a": 0.04} for seen in several)
    await clock.run(_several(view, 1))
    assert shelf.reads == 1
    await clock.advance(VIEW_S)
    await clock.run(_several(view, 1))
    assert shelf.reads == 2
    await view.close()


async def _several(view: SwarmView, count: int) -> list[Any]:
    return await asyncio.gather(*(view.look() for _ in range(count)))


async def test_the_ejected_are_left_out_from_that_moment_on_and_pairs_kept_apart(listing: Make) -> None:
    clock = VirtualClock()
    reputation = ReputationStore(IN_MEMORY, clock)
    view = viewer(clock, Shelf(clock, listing("a", 0, 4), listing("b", 0, 4), listing("c", 0, 4)), reputation)
    (before,) = await clock.run(_several(view, 1))
    reputation.change(A, equivocated)
    reputation.keep_apart(PeerId("c"), PeerId("b"))
    now = view.now()
    assert [found.peer for found in before.listings] == ["a", "b", "c"]
    assert [found.peer for found in now.listings] == ["b", "c"]
    assert (before.ejected, now.ejected) == (0, 1)
    assert (before.apart, now.apart.pairs) == (NOBODY_APART, {("b", "c")})
    assert now.last_resort is None, "it broke just now"
    assert now.cluster(None).apart == {("b", "c")}
    await clock.advance(BROKEN.resort.first_s)
    later = view.now()
    assert later.cluster(None).apart == {("b", "c")}
    assert later.last_resort is not None
    assert later.last_resort.cluster(None).apart == frozenset()
    view.links.note(A, PeerId("b"), clock.monotonic_s())
    both = view.now()
    assert both.cluster(None).apart == {("a", "b"), ("b", "c")}
    assert both.last_resort is not None
    assert both.last_resort.cluster(None).apart == {("a", "b")}
    await view.close()


async def test_who_was_ejected_for_a_term_is_back_after_it(listing: Make) -> None:
    clock = VirtualClock()
    reputation = ReputationStore(IN_MEMORY, clock)
    view = viewer(clock, Shelf(clock, listing("a", 0, 4), listing("b", 0, 4)), reputation)
    await clock.run(_several(view, 1))
    for occasion in (b"one", b"two"):
        reputation.change(A, lambda was, occasion=occasion: struck(was, Policy(), occasion, proven=False))
    assert [found.peer for found in view.now().listings] == ["b"]
    await clock.advance(TERMS.first_s)
    assert [found.peer for found in view.now().listings] == ["a", "b"]
    await view.close()


async def test_a_fresh_look_begins_after_it_was_asked_for(listing: Make) -> None:
    """One that is under way already does not do."""
    clock = VirtualClock()
    shelf = Shelf(clock)
    view = viewer(clock, shelf)
    early = asyncio.create_task(view.look())
    await clock.advance(0.25)
    shelf.listings.append(listing("a", 0, 4))
    assert (await clock.run(view.look(fresh=True))).listings
    assert shelf.reads == 2
    await early
    await view.close()


async def test_a_failed_read_fails_all_who_wait_and_nobody_after(listing: Make) -> None:
    clock = VirtualClock()
    shelf = Shelf(clock, listing("a", 0, 4))
    shelf.down = True
    view = viewer(clock, shelf)
    waiting = [asyncio.create_task(view.look()) for _ in range(3)]
    await clock.advance(0.5)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NetworkError] * 3
    shelf.down = False
    assert (await clock.run(view.look())).listings
    await view.close()


async def test_who_gives_up_takes_nobody_elses_read_away(listing: Make) -> None:
    clock = VirtualClock()
    view = viewer(clock, Shelf(clock, listing("a", 0, 4)))
    first, second = (asyncio.create_task(view.look()) for _ in range(2))
    await clock.advance(0.1)
    first.cancel()
    await clock.advance(0.5)
    assert first.cancelled()
    assert second.result().listings
    await view.close()


async def test_closing_ends_the_read_with_an_error_not_a_cancellation(listing: Make) -> None:
    clock = VirtualClock()
    view = viewer(clock, Shelf(clock))
    waiting = asyncio.create_task(view.look())
    await clock.advance(0.1)
    await view.close()
    with pytest.raises(NetworkError, match="closed"):
        await waiting
    await view.close()


async def test_what_servers_told_is_in_the_view(listing: Make) -> None:
    clock = VirtualClock()
    view = viewer(clock, Shelf(clock, listing("a", 0, 4)))
    seen = await clock.run(view.look())
    view.loads.accept({A: Accept(3, 0, 50)}, seen.listings, clock.monotonic_s())
    [metrics] = [found.metrics for found in (await clock.run(view.look())).listings]
    assert metrics is not None
    assert (metrics.sessions, metrics.kv_free_tokens) == (3, 50)
    await view.close()


# -- measuring ----------------------------------------------------------------------------------------------------


async def test_measured_once_and_again_when_it_is_old(listing: Make) -> None:
    clock, ruler = VirtualClock(), Ruler(a=0.03)
    distances = Distances(ruler, clock)
    both = [listing("a", 0, 4), listing("b", 0, 4)]
    for _ in range(3):
        await distances.look(both, 4)
    assert distances.known() == {"a": 0.03}, "b did not answer"
    assert sorted(ruler.asked) == ["a", "b"]
    ruler.rtt_s["a"] = 0.01
    await clock.advance(FRESH_S + 1.0)
    await distances.look(both, 4)
    assert distances.known() == {"a": 0.03}, "nobody waits for a value that is merely old"
    await clock.settle()
    assert distances.known() == {"a": 0.01}
    await clock.advance(FORGET_S + 1.0)
    assert distances.known() == {}
    await distances.close()


async def test_without_a_choice_nobody_waits(listing: Make) -> None:
    clock = VirtualClock()
    distances = Distances(Ruler(a=0.03, b=0.02), clock)
    await distances.look([listing("a", 0, 2), listing("b", 2, 4)], 4)
    assert distances.known() == {}
    await clock.settle()
    assert distances.known() == {"a": 0.03, "b": 0.02}
    await distances.close()


async def test_closing_ends_what_is_measured(listing: Make) -> None:
    clock = VirtualClock()

    async def never(peer: PeerId, addresses: Sequence[str]) -> float | None:
        await asyncio.Event().wait()
        return None

    distances = Distances(never, clock)
    await distances.look([listing("a", 0, 4)], 4)
    await distances.close()
    await distances.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_only_live_servers_of_the_ends_are_measured(listing: Make) -> None:
    servers = [
        listing("a", 0, 2),
        listing("b", 1, 3),
        listing("c", 2, 4),
        listing("d", 0, 4),
        listing("e", 0, 4, live=False),
        listing("f", 0, 4, state=State.DRAINING),
        listing("g", 0, 4, layer_count=9),
    ]
    firsts, lasts = ends(servers, 4, salt=0)
    assert {found.peer for found in firsts} == {"a", "d"}
    assert {found.peer for found in lasts} == {"c", "d"}


def test_of_many_each_client_measures_some_and_always_the_same(listing: Make) -> None:
    servers = [listing(f"peer {n}", 0, 4) for n in range(100)]
    firsts, lasts = ends(servers, 4, salt=1)
    assert firsts == lasts
    assert len(firsts) == MAX_MEASURED
    assert ends(servers[::-1], 4, salt=1)[0] == firsts
    assert ends(servers, 4, salt=2)[0] != firsts
