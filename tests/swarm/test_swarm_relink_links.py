"""Links that break, freeze and are replaced while a session lives: who is told what, and who is no longer heard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from by_hand import HandChain, Place
from fakes import IDS, OTHER_SECRET, SECRET, FakeClient, heard, refused, step
from harness import SPANS, Node, Swarm, until

from swarm.transport.pulse import SILENCE_S
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.messages import Accept, Failed, LinkLost, Relink, Relinked, Result, Upstream
from swarm.wire.payload import pack_ids

PROMPT = list(range(40, 60))


class Brake:
    """Holds a server's compute thread inside a forward until released; it may then fail."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.fails = False

    def __call__(self) -> None:
        self.entered.set()
        assert self.released.wait(30.0)
        if self.fails:
            raise RuntimeError("out of memory, or so")


@pytest.fixture
def brake() -> Iterator[Brake]:
    built = Brake()
    yield built
    built.released.set()


async def everything(place: Place, within_s: float) -> list[Any]:
    """What a server says in so much time."""
    said: list[Any] = []

    async def listen() -> None:
        assert place.control is not None
        while True:
            said.append(await heard(place.control))

    listening = asyncio.create_task(listen())
    await asyncio.sleep(within_s)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    return said


async def goes_on(swarm: Swarm, mended: HandChain, before: Result, count: int = 4) -> None:
    """The chain stands, and what it holds is right."""
    held = list(mended.ids)
    results = [before, *await mended.go_on(before, count)]
    assert [result.tokens[0] for result in results] == swarm.reference.greedy(held, count + 1, eos_token_id=None)


async def test_a_lost_neighbour_is_told_once_and_the_session_lives_on(swarm: Swarm, client: FakeClient) -> None:
    """Both lanes break, and steps go nowhere: one word of it, and no KV is given up."""
    nodes = await swarm.serve(*SPANS)
    mended = await HandChain(client, nodes).open()
    first = await mended.prompt(PROMPT)
    await swarm.crash(nodes[1])
    for seq in range(3):
        await mended.send([7], keep=len(PROMPT) + seq)
    for index in (0, 2):
        said = await everything(mended.places[index], 30.0)
        assert [(type(message), message.peer, message.generation) for message in said] == [
            (LinkLost, nodes[1].peer, 0)
        ], said
    assert all(node.engine.free_tokens < node.kv_tokens for node in (nodes[0], nodes[2]))
    [newcomer] = await swarm.serve("1:3")
    await mended.heal({1: [newcomer]})
    await goes_on(swarm, mended, first)


async def test_a_loss_that_a_heal_left_is_told_again(swarm: Swarm, client: FakeClient) -> None:
    """The client drops what is said of an older generation, so it would never know."""
    nodes = await swarm.serve(*SPANS)
    mended = await HandChain(client, nodes).open()
    await mended.ask(IDS)
    swarm.network.cut(nodes[0].peer, nodes[1].peer)
    await swarm.quiet()
    for generation in (1, 2):
        for place, other in ((mended.places[0], nodes[1]), (mended.places[1], nodes[0])):
            await place.control.send(Relink(generation, 3))  # type: ignore[union-attr]
            said = await everything(place, 1.0)
            assert said[-2] == Relinked(generation, 3, 3)
            assert (said[-1].peer, said[-1].generation) == (other.peer, generation)


async def test_a_cut_between_two_living_servers_is_healed_at_either_end(swarm: Swarm, client: FakeClient) -> None:
    nodes = await swarm.serve(*SPANS)
    mended = await HandChain(client, nodes).open()
    before = await mended.prompt(PROMPT)
    for lost in (0, 2):
        swarm.network.cut(mended.places[1].node.peer, mended.places[lost].node.peer)
        [newcomer] = await swarm.serve(SPANS[lost])
        await mended.heal({lost: [newcomer]})
        [before] = await mended.go_on(before, 1)
    await goes_on(swarm, mended, before)


# -- who comes in -----------------------------------------------------------------------------------------------


async def test_a_hello_of_a_later_generation_waits_for_its_relink(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, old = await client.session(node)
    await client.ask(control, old, IDS)
    link = await client.link(node, generation=1, secret=OTHER_SECRET)
    await asyncio.sleep(node.server.config.hello_wait_s - 0.1)
    assert node.server.table.waiting_hellos == 1
    await control.send(Relink(1, 3, Upstream(client.peer, OTHER_SECRET)))
    assert await heard(control) == Relinked(1, 3, 0)
    assert (await client.ask(control, link, [40], generation=1, keep=3)).kv_length == 4
    assert await refused(old), "the link of the one before was closed"
    assert node.server.table.waiting_hellos == 0


async def test_a_hello_of_a_generation_that_never_comes_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    began_s = swarm.clock.monotonic_s()
    assert await refused(await client.link(node, lane=PREFILL_LANE, generation=1))
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(node.server.config.hello_wait_s)
    assert node.server.table.waiting_hellos == 0
    assert (await client.ask(control, link, IDS)).kv_length == 3


@pytest.mark.parametrize(
    "changes", [{"generation": 0, "secret": SECRET}, {"generation": 0}, {"generation": 1, "secret": SECRET}]
)
async def test_hellos_from_before_a_heal_are_refused(
    swarm: Swarm, node: Node, client: FakeClient, changes: dict[str, Any]
) -> None:
    """Neither the old secret nor the old generation opens the door."""
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    await control.send(Relink(1, 0, Upstream(client.peer, OTHER_SECRET)))
    assert await heard(control) == Relinked(1, 0, 0)
    assert await refused(await client.link(node, **({"secret": OTHER_SECRET} | changes)))
    link = await client.link(node, generation=1, secret=OTHER_SECRET)
    assert (await client.ask(control, link, IDS, generation=1)).kv_length == 3


async def test_a_link_that_a_heal_did_not_touch_may_come_after_it(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """It was arranged before the heal, elsewhere in the chain, and is as good as ever."""
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await control.send(Relink(1, 3))
    assert await heard(control) == Relinked(1, 3, 0)
    assert await refused(await client.link(node, lane=PREFILL_LANE, generation=1))
    late = await client.link(node, lane=PREFILL_LANE)
    assert (await client.ask(control, late, [40], generation=1, keep=3)).kv_length == 4


# -- who is heard no longer -------------------------------------------------------------------------------------


async def test_a_frozen_server_that_wakes_is_heard_no_longer(swarm: Swarm, client: FakeClient, brake: Brake) -> None:
    """It computed a step, and froze before it sent it; its place is taken; then it wakes and sends."""
    nodes = await swarm.serve(*SPANS, "1:3")
    mended = await HandChain(client, nodes[:3]).open()
    before = await mended.prompt(PROMPT)
    engine: Any = nodes[1].engine
    engine.before = brake
    await mended.send([before.tokens[0]], keep=len(PROMPT))
    await until(brake.entered.is_set)
    swarm.network.freeze(nodes[1].peer)
    brake.released.set()
    await until(lambda: nodes[1].rows[-1:] == [1])
    await swarm.quiet()
    await mended.heal({1: [nodes[3]]})
    rows = len(nodes[2].rows)
    swarm.network.thaw(nodes[1].peer)
    await asyncio.sleep(5.0)
    assert len(nodes[2].rows) == rows, "nothing of it was computed"
    await goes_on(swarm, mended, before)
    engine.before = None


async def test_a_frozen_next_server_does_not_hold_up_a_heal(swarm: Swarm, client: FakeClient) -> None:
    """A push to it is stuck in a full buffer when the RELINK comes."""
    swarm.small_buffers(200)
    nodes = await swarm.serve(*SPANS, "1:3")
    mended = await HandChain(client, nodes[:3]).open()
    before = await mended.prompt(PROMPT, chunk=1)
    swarm.network.freeze(nodes[1].peer)
    for seq in range(8):
        await mended.send([7], keep=len(PROMPT) + seq)
    await swarm.quiet()
    began_s = swarm.clock.monotonic_s()
    await mended.heal({1: [nodes[3]]})
    assert swarm.clock.monotonic_s() - began_s < 0.5
    await goes_on(swarm, mended, before)
    swarm.network.thaw(nodes[1].peer)
    await asyncio.sleep(1.0)
    await mended.ask([7])


async def test_a_newcomer_that_freezes_during_its_replay_is_replaced_in_turn(swarm: Swarm, client: FakeClient) -> None:
    nodes = await swarm.serve(*SPANS, "1:3", "1:3")
    mended = await HandChain(client, nodes[:3]).open()
    before = await mended.prompt(PROMPT)
    await swarm.crash(nodes[1])
    table = nodes[3].server.table
    healing = asyncio.create_task(mended.heal({1: [nodes[3]]}))
    await until(lambda: table.sessions and table.sessions[0].neighbours.attached)
    swarm.network.freeze(nodes[3].peer)
    await asyncio.sleep(1.0)
    assert not healing.done()
    healing.cancel()
    await asyncio.gather(healing, return_exceptions=True)
    await mended.heal({1: [nodes[4]]})
    await goes_on(swarm, mended, before)
    assert nodes[3].rows == []
    swarm.network.thaw(nodes[3].peer)


# -- beats ------------------------------------------------------------------------------------------------------


async def test_the_silence_of_a_replaced_neighbour_is_not_told(swarm: Swarm, client: FakeClient) -> None:
    nodes = await swarm.serve(*SPANS, "1:3")
    mended = await HandChain(client, nodes[:3]).open()
    before = await mended.prompt(PROMPT)
    await asyncio.sleep(1.0)
    swarm.network.freeze(nodes[1].peer)
    await asyncio.sleep(SILENCE_S / 2)
    await mended.heal({1: [nodes[3]]})
    assert await everything(mended.places[0], 2 * SILENCE_S) == []
    assert not nodes[0].server.pulse._pairs.get(nodes[1].peer) or not nodes[0].server.pulse._pairs[nodes[1].peer].holds
    swarm.network.freeze(nodes[3].peer)
    [lost] = await everything(mended.places[0], 2 * SILENCE_S)
    assert (lost.peer, lost.generation) == (nodes[3].peer, 1)
    assert "silent" in lost.reason
    for node in (nodes[1], nodes[3]):
        swarm.network.thaw(node.peer)
    await swarm.quiet()
    await goes_on(swarm, mended, before)


async def test_a_silence_that_goes_on_over_a_heal_is_told_again(swarm: Swarm, client: FakeClient) -> None:
    nodes = await swarm.serve(*SPANS)
    mended = await HandChain(client, nodes).open()
    await mended.prompt(PROMPT)
    await asyncio.sleep(1.0)
    swarm.network.freeze(nodes[1].peer)
    [lost] = await everything(mended.places[0], 2 * SILENCE_S)
    assert lost.generation == 0
    assert mended.places[0].control is not None
    await mended.places[0].control.send(Relink(1, 3))
    said = await everything(mended.places[0], 2 * SILENCE_S)
    assert [type(message) for message in said] == [Relinked, LinkLost]
    assert (said[1].peer, said[1].generation) == (nodes[1].peer, 1)
    swarm.network.thaw(nodes[1].peer)


# -- a forward that is under way --------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
async def test_a_forward_under_way_at_a_heal_is_void(
    swarm: Swarm, node: Node, client: FakeClient, brake: Brake, fails: bool
) -> None:
    """Neither what it computes nor its failure is heard of; its rows are cut off, and the answer does not wait."""
    control, link = await client.session(node)
    one = await client.ask(control, link, IDS)
    engine: Any = node.engine
    engine.before, brake.fails = brake, fails
    await link.send(step(1, 3, rows=4), pack_ids([7, 7, 7, 7]))
    await link.send(step(2, 7), pack_ids([7]))
    await until(brake.entered.is_set)
    await control.send(Relink(1, 3))
    assert await heard(control) == Relinked(1, 3, 0)
    [session] = node.server.table.sessions
    assert session.computing
    engine.before = None
    brake.released.set()
    two = await client.ask(control, link, list(one.tokens), generation=1, keep=3)
    assert two.kv_length == session.slot.length == 4
    assert [*one.tokens, *two.tokens] == swarm.reference.greedy(IDS, 2, eos_token_id=None)


async def test_rows_behind_a_void_forward_cannot_be_kept(
    swarm: Swarm, node: Node, client: FakeClient, brake: Brake
) -> None:
    """It may cut the cache back at any moment, so they are not promised; nor is what it appended."""
    control, link = await client.session(node)
    await client.ask(control, link, [*IDS, *IDS])
    engine: Any = node.engine
    engine.before = brake
    await link.send(step(0, 2, epoch=1, rows=8), pack_ids([7] * 8))
    await until(brake.entered.is_set)
    await control.send(Relink(1, 6))
    assert await heard(control) == Relinked(1, 2, 0)
    engine.before = None
    brake.released.set()
    [session] = node.server.table.sessions
    await until(lambda: not session.computing)
    assert session.slot.length == 6
    again = await client.ask(control, link, [30, *IDS], generation=1, keep=2)
    assert again.tokens == (swarm.reference.greedy([*IDS, *IDS], 1, eos_token_id=None)[0],)


# -- leaving ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["lost", "relinked", "replaying"])
async def test_a_server_may_leave_between_two_neighbours(swarm: Swarm, client: FakeClient, when: str) -> None:
    """Waiting for a RELINK, for a newcomer's link, or in the middle of a replay that nobody reads."""
    swarm.small_buffers(500)
    nodes = await swarm.serve(*SPANS, "1:3")
    mended = await HandChain(client, nodes[:3]).open()
    await mended.prompt(PROMPT)
    await swarm.crash(nodes[1])
    first = mended.places[0]
    assert first.control is not None
    if when != "lost":
        swarm.network.freeze(nodes[3].peer)
        [newcomer] = mended._arranged([nodes[3]], 1, 3)
        hops = 0 if when == "replaying" else None
        await first.control.send(Relink(1, len(PROMPT), downstream=newcomer.downstream(), replay_hops=hops))
    await swarm.quiet()
    await nodes[0].server.leave()
    last = (await everything(first, 1.0))[-1]
    assert isinstance(last, Failed)
    assert last.fault == "draining"
    assert nodes[0].idle
    swarm.network.thaw(nodes[3].peer)
