"""Chains that break and are made whole: only what was lost is computed again, and every answer stays right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from toy_swarm import Talk, ToySwarm

from swarm.client.chains.chain import Patch
from swarm.core.errors import ChainOpenError, PeerLostError
from swarm.wire.messages import Noop, Pace, Result

SPANS = ("0:2", "2:4", "4:6")


@pytest_asyncio.fixture
async def toys() -> AsyncIterator[ToySwarm]:
    swarm = ToySwarm()
    yield swarm
    await swarm.close()


MANNERS = {
    "killed": "gone",
    "frozen": "silent",
    "hangs up": "gone",
    "fails": "failed",
    "drains": "draining",
    "is idle": "idle",
    "slow": "slow",
}


@pytest.mark.parametrize("manner", sorted(MANNERS))
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_server_is_replaced(toys: ToySwarm, place: int, manner: str) -> None:
    first = await toys.several(*SPANS)
    spare = await toys.toy(SPANS[place])
    talk = await toys.talk(*first)
    await talk.say(15)
    await toys.lose(talk, first[place], manner)
    assert talk.chain.lost[place].kind == MANNERS[manner]
    began_s = toys.clock.monotonic_s()
    await talk.mend(Patch(place, place + 1, (spare.stage(),)))
    assert toys.clock.monotonic_s() - began_s < 0.1
    assert not talk.chain.broken
    assert talk.chain.generation == 1
    assert [stage.peer for stage in talk.chain.stages][place] == spare.peer
    assert spare.peer in talk.chain.loads
    assert talk.progress[-1] == (4, 4)
    for token in (9, 26):
        await talk.say(token)
    assert [toy.rows for toy in first] == [4 if toy is first[place] else 6 for toy in first]
    assert spare.rows == 6
    assert talk.chain.suspects == (set() if manner in ("drains", "is idle", "slow") else {first[place].peer})
    toys.network.thaw(first[place].peer)  # what it says now is of an older generation
    await asyncio.sleep(3.0)
    await talk.say(5)
    assert not first[place].parts


async def test_a_kill_is_noticed_and_mended_within_a_fraction_of_a_second(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    spare = await toys.toy("2:4")
    talk = await toys.talk(*first, ids=range(128))
    began_s = toys.clock.monotonic_s()
    await toys.crash(first[1])
    with pytest.raises(PeerLostError, match=first[1].peer[-8:]):
        await talk.say(1)
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(1)
    assert toys.clock.monotonic_s() - began_s < 0.2


@pytest.mark.parametrize(
    ("patches", "recomputed"),
    [
        ([(0, 1, "0:1", "1:2")], [0, 0]),
        ([(1, 2, "2:3", "3:4")], [0, 0]),
        ([(0, 2, "0:4")], [0]),
        ([(1, 3, "2:6")], [0]),
        ([(0, 1, "0:2"), (2, 3, "4:6")], [0]),
        ([(0, 1, "0:2"), (1, 2, "2:4")], [0]),
        ([(0, 3, "0:1", "1:5", "5:6")], []),
        ([(0, 3, "0:6")], []),
    ],
)
async def test_several_at_once_and_other_spans(
    toys: ToySwarm, patches: list[tuple[int, int, str]], recomputed: list[int]
) -> None:
    first = await toys.several(*SPANS)
    talk = await toys.talk(*first, ids=range(300))
    dead = [place for begin, end, *_ in patches for place in range(begin, end)]
    for place in dead:
        await toys.crash(first[place])
    await toys.broken(talk.chain)
    assert set(talk.chain.lost) == set(dead)
    made = [Patch(a, b, tuple([(await toys.toy(span)).stage() for span in spans])) for a, b, *spans in patches]
    await talk.mend(*made)
    assert talk.progress[0][0] == 0
    assert talk.progress[-1] == (300, 300)
    await talk.say(9)
    assert {toy.rows for place, toy in enumerate(first) if place not in dead} <= {301}
    assert {toy.rows for toy in toys.toys[3:]} == {301}


@pytest.mark.parametrize("empty", [True, False])
async def test_a_chain_that_holds_nothing_yet(toys: ToySwarm, empty: bool) -> None:
    first = await toys.several(*SPANS)
    spare = await toys.toy("2:4")
    talk = Talk(await toys.chain(*first)) if empty else await toys.talk(*first, ids=[7])
    await toys.lose(talk, first[1], "killed")
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(9)


async def test_again_and_again(toys: ToySwarm) -> None:
    """Every place, one after the other, newcomers too; the same server may come back under a new number."""
    chain = await toys.several(*SPANS)
    spares = await toys.several(*SPANS)
    talk = await toys.talk(*chain)
    for turn in range(12):
        place = turn % 3
        await toys.lose(talk, chain[place], "hangs up")
        await talk.mend(Patch(place, place + 1, (spares[place].stage(),)))
        chain[place], spares[place] = spares[place], chain[place]
        await talk.say(turn)
    assert talk.chain.generation == 12
    assert len({opened.stage for toy in toys.toys for opened in toy.opens}) == 3 + 12


async def test_the_same_server_takes_its_place_again(toys: ToySwarm) -> None:
    chain = await toys.several(*SPANS)
    talk = await toys.talk(*chain)
    await toys.lose(talk, chain[1], "is idle")
    await talk.mend(Patch(1, 2, (chain[1].stage(),)))
    await talk.say(1)
    assert not talk.chain.suspects


# -- where there is no log --------------------------------------------------------------------------------------


async def test_without_a_log_everybody_up_to_the_newcomer_computes_again(toys: ToySwarm) -> None:
    first = await toys.several("0:1", "1:2", "2:4", "4:6")
    spare = await toys.toy("2:4")
    first[1].logs = False
    talk = await toys.talk(*first, ids=range(200))
    await toys.lose(talk, first[2], "killed")
    await talk.mend(Patch(2, 3, (spare.stage(),)))
    await talk.say(9)
    assert [toy.rows for toy in (first[0], first[1], spare, first[3])] == [401, 401, 201, 201]
    assert talk.chain.generation == 1


@pytest.mark.parametrize(
    ("dry", "generation", "rows"),
    [
        ({0}, 1, [401, 201, 201, 201, 201]),
        ({2}, 2, [401, 201, 401, 201, 201]),
        ({0, 2}, 1, [401, 201, 401, 201, 201]),
    ],
)
async def test_two_newcomers_and_servers_without_logs(
    toys: ToySwarm, dry: set[int], generation: int, rows: list[int]
) -> None:
    """A log that is replayed already must not mix with what the client feeds: then all begin anew."""
    first = await toys.several("0:1", "1:2", "2:3", "3:4", "4:6")
    spares = await toys.several("1:2", "3:4")
    for place in dry:
        first[place].logs = False
    talk = await toys.talk(*first, ids=range(200))
    for place in (1, 3):
        await toys.crash(first[place])
    await toys.broken(talk.chain)
    await talk.mend(Patch(1, 2, (spares[0].stage(),)), Patch(3, 4, (spares[1].stage(),)))
    await talk.say(9)
    now = [first[0], spares[0], first[2], spares[1], first[4]]
    assert talk.chain.generation == generation
    if generation == 1:
        assert [toy.rows for toy in now] == rows
    else:
        assert [len(toy.part.kv) for toy in now] == [201] * 5
        assert first[4].rows == 201


# -- cut links --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [0, 1, None])
async def test_a_link_cut_between_two_living_servers(toys: ToySwarm, replaced: int | None) -> None:
    """Either end may be replaced; or the two dial each other anew, and nothing is computed again."""
    first = await toys.several(*SPANS)
    spares = await toys.several(*SPANS)
    talk = await toys.talk(*first)
    toys.network.cut(first[0].peer, first[1].peer)
    await toys.broken(talk.chain)
    assert not talk.chain.lost
    assert talk.chain.cuts == {(0, 1)}
    assert talk.chain.suspects == {first[0].peer, first[1].peer}
    if replaced is None:
        await talk.mend()  # that they still cannot reach each other shows only then
        await toys.broken(talk.chain)
        assert talk.chain.cuts == {(0, 1)}
        assert not talk.chain.lost
        toys.network.mend(first[0].peer, first[1].peer)
        await talk.mend()
        assert not talk.chain.suspects
    else:
        await talk.mend(Patch(replaced, replaced + 1, (spares[replaced].stage(),)))
        assert talk.chain.suspects == {first[replaced].peer}
    assert not talk.chain.cuts
    await talk.say(9)
    if replaced is None:
        assert [toy.rows for toy in first] == [4, 4, 4]


async def test_a_newcomer_that_its_neighbour_cannot_reach(toys: ToySwarm) -> None:
    """The attempt ends, naming the newcomer; with the second one it is the neighbour who cannot reach anybody."""
    first = await toys.several(*SPANS)
    spares = await toys.several("2:4", "2:4", "0:2")
    talk = await toys.talk(*first)
    await toys.lose(talk, first[1], "killed")
    for spare in spares[:2]:
        toys.network.cut(first[0].peer, spare.peer)
    with pytest.raises(ChainOpenError) as caught:
        await talk.mend(Patch(1, 2, (spares[0].stage(),)))
    assert set(caught.value.failures) == {spares[0].peer}
    assert set(talk.chain.lost) == {1}
    with pytest.raises(ChainOpenError) as caught:
        await talk.mend(Patch(1, 2, (spares[1].stage(),)))
    assert first[0].peer in caught.value.failures
    assert set(talk.chain.lost) == {0, 1}
    await talk.mend(Patch(0, 1, (spares[2].stage(),)), Patch(1, 2, (spares[1].stage(),)))
    await talk.say(9)
    assert talk.chain.suspects == {first[0].peer, first[1].peer}


# -- on the way -------------------------------------------------------------------------------------------------


async def test_steps_in_flight_fail_and_a_sender_that_waits_is_let_go(toys: ToySwarm) -> None:
    """A frozen server takes no more: whoever pushes does not wait for ever, though no stream ends."""
    toys.network._buffer_bytes = 2000
    first = await toys.several("0:2", "2:6")
    spare = await toys.toy("0:2")
    talk = await toys.talk(*first)
    toys.network.freeze(first[0].peer)
    saying = [asyncio.create_task(talk.say(*range(400))) for _ in range(4)]
    outcomes = await asyncio.gather(*saying, return_exceptions=True)
    assert all(isinstance(outcome, PeerLostError) for outcome in outcomes), outcomes
    assert set(talk.chain.lost) == {0}
    await talk.mend(Patch(0, 1, (spare.stage(),)))
    await talk.say(9)


async def test_a_result_of_an_older_generation_is_no_answer(toys: ToySwarm) -> None:
    first = await toys.several("0:2", "2:6")
    spare = await toys.toy("0:2")
    talk = await toys.talk(*first)
    await toys.lose(talk, first[0], "killed")
    await talk.mend(Patch(0, 1, (spare.stage(),)))
    await first[1].part.control.send(Result(0, 0, 1, 4, (1,)))
    await talk.say(9)


async def test_paces_are_told_with_the_place(toys: ToySwarm) -> None:
    first = await toys.several("0:2", "2:6")
    spare = await toys.toy("0:2")
    talk = await toys.talk(*first)
    heard: list[tuple[int, Pace]] = []
    await first[1].part.control.send(Pace(0.5, 0.0))  # nobody listens yet
    await asyncio.sleep(0.1)
    talk.chain.on_pace = lambda place, pace: heard.append((place, pace))
    await first[0].part.control.send(Pace(None, 0.25))
    await toys.lose(talk, first[0], "killed")
    await talk.mend(Patch(0, 1, (spare.stage("0:1"), (await toys.toy("1:2")).stage())))
    await first[1].part.control.send(Pace(0.5, 0.0))
    await asyncio.sleep(0.1)
    assert heard == [(0, Pace(None, 0.25)), (2, Pace(0.5, 0.0))]


async def test_hanging_up_on_a_frozen_server_delays_nothing_but_the_end(toys: ToySwarm) -> None:
    toys.network._buffer_bytes = 100
    first = await toys.several(*SPANS)
    spare = await toys.toy("2:4")
    talk = await toys.talk(*first)
    toys.network.freeze(first[1].peer)
    for _ in range(12):
        await talk.chain._roster.members[1]._control.send(Noop())
    await toys.broken(talk.chain)
    began_s = toys.clock.monotonic_s()
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(9)
    assert toys.clock.monotonic_s() - began_s < 0.2
    await talk.chain.close()
    assert 1.0 < toys.clock.monotonic_s() - began_s < 3.0
