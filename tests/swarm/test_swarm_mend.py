"""Chains that break and are made whole: only what was lost is computed again, and every answer stays right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from harness import turns
from toys import Talk, Toy, ToySwarm

from swarm.client.chains.chain import Loss, Patch
from swarm.core.errors import ChainOpenError, MisuseError, PeerLostError
from swarm.wire.messages import Failed, Noop, Pace, Result

SPANS = ("0:2", "2:4", "4:6")


@pytest_asyncio.fixture
async def toys() -> AsyncIterator[ToySwarm]:
    swarm = ToySwarm()
    yield swarm
    await swarm.close()


async def lose(toys: ToySwarm, talk: Talk, toy: Toy, manner: str) -> None:
    """Take a server of the chain away, and wait until the client has noticed."""
    place = [stage.peer for stage in talk.chain.stages].index(toy.peer)
    match manner:
        case "killed":
            await toys.crash(toy)
        case "frozen":
            toys.network.freeze(toy.peer)
        case "hangs up":
            await toy.part.control.close()
        case "fails" | "drains" | "is idle":
            fault = {"fails": "server", "drains": "draining", "is idle": "idle"}[manner]
            await toy.part.control.send(Failed(fault, "so it is"))  # type: ignore[arg-type]
        case "slow":
            talk.chain.give_up(place, Loss("slow", PeerLostError("slow", peer=toy.peer)))
    await toys.broken(talk.chain)
    assert set(talk.chain.lost) == {place}
    assert not talk.chain.cuts


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
    await lose(toys, talk, first[place], manner)
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
    await lose(toys, talk, first[1], "killed")
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(9)


async def test_again_and_again(toys: ToySwarm) -> None:
    """Every place, one after the other, newcomers too; the same server may come back under a new number."""
    chain = await toys.several(*SPANS)
    spares = await toys.several(*SPANS)
    talk = await toys.talk(*chain)
    for turn in range(12):
        place = turn % 3
        await lose(toys, talk, chain[place], "hangs up")
        await talk.mend(Patch(place, place + 1, (spares[place].stage(),)))
        chain[place], spares[place] = spares[place], chain[place]
        await talk.say(turn)
    assert talk.chain.generation == 12
    assert len({opened.stage for toy in toys.toys for opened in toy.opens}) == 3 + 12


async def test_the_same_server_takes_its_place_again(toys: ToySwarm) -> None:
    chain = await toys.several(*SPANS)
    talk = await toys.talk(*chain)
    await lose(toys, talk, chain[1], "is idle")
    await talk.mend(Patch(1, 2, (chain[1].stage(),)))
    await talk.say(1)
    assert not talk.chain.suspects


# -- where there is no log --------------------------------------------------------------------------------------


async def test_without_a_log_everybody_up_to_the_newcomer_computes_again(toys: ToySwarm) -> None:
    first = await toys.several("0:1", "1:2", "2:4", "4:6")
    spare = await toys.toy("2:4")
    first[1].logs = False
    talk = await toys.talk(*first, ids=range(200))
    await lose(toys, talk, first[2], "killed")
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
    await lose(toys, talk, first[1], "killed")
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


# -- attempts that fail and others that follow ------------------------------------------------------------------


async def test_a_standby_that_dies_during_its_replay_ends_the_attempt_at_once(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    slow, spare = await toys.several("2:4", "2:4")
    slow.takes_s = 0.01
    talk = await toys.talk(*first, ids=range(500))
    await lose(toys, talk, first[1], "killed")
    attempt = asyncio.create_task(talk.mend(Patch(1, 2, (slow.stage(),))))
    await asyncio.sleep(3.0)
    assert 128 <= slow.rows < 500
    began_s = toys.clock.monotonic_s()
    await toys.crash(slow)
    with pytest.raises(ChainOpenError) as caught:
        await attempt
    assert toys.clock.monotonic_s() - began_s < 0.2
    assert set(caught.value.failures) == {slow.peer}
    assert set(talk.chain.lost) == {1}
    assert talk.chain.suspects == {first[1].peer}
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(9)
    assert [toy.rows for toy in (first[0], spare, first[2])] == [501] * 3
    assert talk.chain.generation == 2


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("manner", ["killed", "frozen"])
async def test_a_survivor_is_lost_during_the_replay(toys: ToySwarm, victim: int, manner: str) -> None:
    first = await toys.several(*SPANS)
    slow, spare, other = await toys.several("2:4", "2:4", SPANS[victim])
    slow.takes_s = 0.1
    talk = await toys.talk(*first, ids=range(500))
    await lose(toys, talk, first[1], "killed")
    attempt = asyncio.create_task(talk.mend(Patch(1, 2, (slow.stage(),))))
    await asyncio.sleep(3.0)
    if manner == "killed":
        await toys.crash(first[victim])
    else:
        toys.network.freeze(first[victim].peer)
    with pytest.raises(ChainOpenError) as caught:
        await asyncio.wait_for(attempt, 3.0)
    assert set(caught.value.failures) == {first[victim].peer}
    assert set(talk.chain.lost) == {1, victim}
    patches = {1: Patch(1, 2, (spare.stage(),)), victim: Patch(victim, victim + 1, (other.stage(),))}
    await talk.mend(*(patches[place] for place in sorted(patches)))
    await talk.say(9)
    assert talk.chain.suspects == {first[1].peer, first[victim].peer}


async def test_a_survivor_that_is_frozen_when_it_is_relinked(toys: ToySwarm) -> None:
    """No pulse has told yet: its answer does not come, and it is lost too."""
    first = await toys.several(*SPANS)
    spares = await toys.several(*SPANS)
    talk = await toys.talk(*first)
    toys.network.freeze(first[2].peer)
    await lose(toys, talk, first[1], "killed")
    began_s = toys.clock.monotonic_s()
    with pytest.raises(ChainOpenError):
        await talk.mend(Patch(1, 2, (spares[1].stage(),)))
    assert toys.clock.monotonic_s() - began_s < 3.0
    assert set(talk.chain.lost) == {1, 2}
    await talk.mend(Patch(1, 2, (spares[1].stage(),)), Patch(2, 3, (spares[2].stage(),)))
    await talk.say(9)


async def test_a_survivor_that_was_computing_again_when_the_attempt_failed(toys: ToySwarm) -> None:
    """It holds only some of its rows then: in the next attempt it is fed like a newcomer."""
    first = await toys.several("0:1", "1:2", "2:4", "4:6")
    slow, spare = await toys.several("2:4", "2:4")
    first[1].logs, slow.takes_s = False, 0.01
    talk = await toys.talk(*first, ids=range(500))
    await lose(toys, talk, first[2], "killed")
    first[1].logs = True
    attempt = asyncio.create_task(talk.mend(Patch(2, 3, (slow.stage(),))))
    await asyncio.sleep(3.0)
    await toys.crash(slow)
    with pytest.raises(ChainOpenError):
        await attempt
    await talk.mend(Patch(2, 3, (spare.stage(),)))
    await talk.say(9)
    assert first[3].rows == 501


async def test_a_slow_server_goes_on_if_its_replacement_fails(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    spare = await toys.toy("2:4")
    talk = await toys.talk(*first)
    await lose(toys, talk, first[1], "slow")
    await toys.crash(spare)
    with pytest.raises(ChainOpenError):
        await talk.mend(Patch(1, 2, (spare.stage(),)))
    assert set(talk.chain.lost) == {1}
    await talk.mend()
    assert not talk.chain.lost
    await talk.say(9)
    assert [toy.rows for toy in first] == [4, 4, 4]
    assert not talk.chain.suspects


async def test_a_slow_server_that_goes_away_is_gone(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    talk = await toys.talk(*first)
    await lose(toys, talk, first[1], "slow")
    await toys.crash(first[1])
    await asyncio.sleep(0.2)
    assert talk.chain.lost[1].kind == "gone"
    await talk.chain.close()
    talk.chain.give_up(0, Loss("late", PeerLostError("late", peer=first[0].peer)))
    with pytest.raises(MisuseError):
        talk.chain.give_up(3, Loss("late", PeerLostError("late")))


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_cut_short_at_any_moment(toys: ToySwarm, how: str) -> None:
    """Cancelled, another attempt follows; closed, nothing does. The fixture looks for what was left behind."""
    for count in range(0, 80, 3):
        swarm = ToySwarm()
        first = await swarm.several("0:1", "1:2", "2:4", "4:6")
        spares = await swarm.several("2:3", "3:4")
        first[1].logs = count % 2 == 0
        talk = await swarm.talk(*first, ids=range(200))
        await lose(swarm, talk, first[2], "killed")
        patch = Patch(2, 3, tuple(spare.stage() for spare in spares))
        attempt = asyncio.create_task(talk.mend(patch))
        await turns(count)
        whole = attempt.done()
        if how == "cancelled":
            attempt.cancel()
            await asyncio.wait({attempt})
            if not whole:
                assert attempt.cancelled()
                await talk.mend(patch)
            await talk.say(9)
        else:
            await talk.chain.close()
            [outcome] = await asyncio.gather(attempt, return_exceptions=True)
            assert outcome is None or isinstance(outcome, MisuseError if count == 0 else PeerLostError)
            assert talk.chain.broken
        await swarm.close()


async def test_only_a_broken_chain_is_mended_and_one_mend_at_a_time(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    spare = await toys.toy("2:4")
    talk = await toys.talk(*first)
    patch = Patch(1, 2, (spare.stage(),))
    with pytest.raises(MisuseError):
        await talk.mend(patch)
    await lose(toys, talk, first[1], "killed")
    with pytest.raises(MisuseError):
        await talk.mend()
    attempt = asyncio.create_task(talk.mend(patch))
    await turns(2)
    with pytest.raises(MisuseError):
        await talk.mend(patch)
    await attempt
    await talk.say(9)
    await talk.chain.close()
    with pytest.raises(MisuseError):
        await talk.mend(patch)


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
    await lose(toys, talk, first[0], "killed")
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
    await lose(toys, talk, first[0], "killed")
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
        await talk.chain._members[1]._control.send(Noop())
    await toys.broken(talk.chain)
    began_s = toys.clock.monotonic_s()
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(9)
    assert toys.clock.monotonic_s() - began_s < 0.2
    await talk.chain.close()
    assert 1.0 < toys.clock.monotonic_s() - began_s < 3.0
