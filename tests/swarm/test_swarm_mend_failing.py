"""Mends that fail, are cut short or come at a wrong time: what is left goes on, and another may follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from harness import turns
from toy_swarm import ToySwarm

from swarm.client.chains.chain import Loss, Patch
from swarm.core.errors import ChainOpenError, MisuseError, PeerLostError

SPANS = ("0:2", "2:4", "4:6")


@pytest_asyncio.fixture
async def toys() -> AsyncIterator[ToySwarm]:
    swarm = ToySwarm()
    yield swarm
    await swarm.close()


# -- attempts that fail and others that follow ------------------------------------------------------------------


async def test_a_standby_that_dies_during_its_replay_ends_the_attempt_at_once(toys: ToySwarm) -> None:
    first = await toys.several(*SPANS)
    slow, spare = await toys.several("2:4", "2:4")
    slow.takes_s = 0.01
    talk = await toys.talk(*first, ids=range(500))
    await toys.lose(talk, first[1], "killed")
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
    await toys.lose(talk, first[1], "killed")
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
    await toys.lose(talk, first[1], "killed")
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
    await toys.lose(talk, first[2], "killed")
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
    await toys.lose(talk, first[1], "slow")
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
    await toys.lose(talk, first[1], "slow")
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
        await swarm.lose(talk, first[2], "killed")
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
    await toys.lose(talk, first[1], "killed")
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
