"""Links between servers that broke: others are taken for a while, and they where nobody else is, ever more rarely."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from harness import SPANS, Node, Swarm
from test_swarm_receipts_client_lies import Liar, other

from swarm.client.model import AsyncSwarmModel
from swarm.client.results import Progress
from swarm.core.errors import NoRouteError, PeerLostError, PeerUnreachableError, SwarmError
from swarm.core.ids import PeerId
from swarm.engine.speed import SpanSpeed
from swarm.verification.standings.apart import BROKEN, UNREACHED, pair_of

FAST, SLOW = SpanSpeed(tau_s=0.001), SpanSpeed(tau_s=0.02)
PROMPT = "who stands beside whom"


async def answer(model: AsyncSwarmModel, new_tokens: int = 3) -> list[str]:
    """Ask; who served."""
    result = await model.generate(PROMPT, max_new_tokens=new_tokens, ignore_eos=True)
    return [stage.peer for stage in result.chain]


def peers(*nodes: Node) -> list[PeerId]:
    return [node.peer for node in nodes]


class Openings:
    """Counts the chains that are tried. A progress callback."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, progress: Progress) -> None:
        self.count += progress.phase == "opening"


# -- receipts that do not agree ---------------------------------------------------------------------------------


async def test_where_there_is_no_other_chain_a_broken_link_is_tried_again_after_a_minute(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS, speed=FAST)
    model = swarm.client()
    model.reputation.keep_apart(nodes[0].peer, nodes[1].peer)
    with pytest.raises(NoRouteError, match="common link broke; one is tried again in 60 s") as caught:
        await answer(model)
    assert "reputation" in caught.value.hint
    await asyncio.sleep(BROKEN.resort.first_s)
    assert await answer(model) == peers(*nodes)
    [slow] = await swarm.serve(SPANS[1], speed=SLOW)
    chain = await answer(model)
    assert chain[:2] == peers(nodes[0], slow), "there is another chain now"


async def test_a_server_whose_receipts_never_agree_is_tried_ever_more_rarely(swarm: Swarm) -> None:
    """Asked every minute for a while; the answers are right, and say that nobody answers for them."""
    nodes = await swarm.serve(*SPANS, speed=FAST)
    liar = Liar(nodes[1], other(in_root=bytes(32)))
    swarm.liars = True
    model = swarm.client()
    answered_s: list[float] = []
    for minute in range(9):
        try:
            result = await model.generate(PROMPT, max_new_tokens=12, ignore_eos=True)
        except NoRouteError:
            await asyncio.sleep(60.0)
            continue
        answered_s.append(60.0 * minute)
        await model.endings.wait(5.0)
        await swarm.quiet()
        liar.signed.clear()
        assert result.verification.rows == 0
        assert not model.reputation.apart().allow(nodes[0].peer, nodes[1].peer)
        await asyncio.sleep(60.0)
    assert [later - sooner for sooner, later in pairwise(answered_s)] == [60.0, 120.0, 240.0]
    [link] = model.reputation.broken_links()
    assert (link.pair, link.times) == (tuple(sorted(peers(nodes[0], nodes[1]))), len(answered_s))


async def test_a_session_is_healed_over_a_link_that_broke_where_nobody_else_is(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS, speed=FAST)
    twin, *_ = await swarm.serve(SPANS[1], speed=SLOW)
    model = swarm.client(heal_timeout_s=100.0)
    session = model.session(max_tokens=100)
    await session.generate(PROMPT, max_new_tokens=2, ignore_eos=True)
    model.reputation.keep_apart(nodes[0].peer, twin.peer)
    await swarm.crash(nodes[1])
    began_s = swarm.clock.monotonic_s()
    result = await session.generate(" go on", max_new_tokens=3, ignore_eos=True)
    assert [stage.peer for stage in result.chain] == peers(nodes[0], twin, nodes[2])
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(BROKEN.resort.first_s, abs=15.0)
    await session.close()


# -- servers that do not reach each other -----------------------------------------------------------------------


async def test_two_that_do_not_reach_each_other_serve_beside_others(swarm: Swarm) -> None:
    """The first is the only one for its layers: it is not to blame that the fastest next one is out of its reach."""
    nodes = await swarm.serve(*SPANS, speed=FAST)
    [slow] = await swarm.serve(SPANS[1], speed=SLOW)
    swarm.network.cut(nodes[0].peer, nodes[1].peer)
    model, tried = swarm.client(), Openings()
    assert await answer(model) == peers(nodes[0], slow, nodes[2])
    result = await model.generate(PROMPT, max_new_tokens=3, progress=tried)
    assert [stage.peer for stage in result.chain] == peers(nodes[0], slow, nodes[2])
    assert tried.count == 1, "the client knows, and tries no other"
    links = model.ground.view.links
    assert links.at(swarm.clock.monotonic_s()).pairs == {pair_of(nodes[0].peer, nodes[1].peer)}
    await asyncio.sleep(UNREACHED.apart.first_s)
    assert links.at(swarm.clock.monotonic_s()).pairs == frozenset(), "it may be tried again by itself"


async def test_a_link_that_cannot_be_had_is_not_tried_in_a_loop_and_back_soon_when_it_can(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS, speed=FAST)
    swarm.network.cut(nodes[0].peer, nodes[1].peer)
    model, tried = swarm.client(heal_timeout_s=1.0), Openings()
    began_s = swarm.clock.monotonic_s()
    while swarm.clock.monotonic_s() < began_s + 61.0:
        with pytest.raises(SwarmError) as caught:
            await model.generate(PROMPT, max_new_tokens=3, progress=tried)
        assert isinstance(caught.value, PeerLostError | PeerUnreachableError | NoRouteError)
        await asyncio.sleep(1.0)
    assert 4 <= tried.count <= 6, "after 2, 4, 8, 16, 32 s"
    swarm.network.mend(nodes[0].peer, nodes[1].peer)
    with pytest.raises(NoRouteError, match="one is tried again in") as told:
        await answer(model)
    await asyncio.sleep(float(told.value.message.split()[-2]) + 1.0)
    for _ in range(2):
        assert await answer(model) == peers(*nodes)
    assert model.ground.view.links.at(swarm.clock.monotonic_s()).pairs == frozenset(), "it holds"
