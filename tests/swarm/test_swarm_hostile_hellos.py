"""Links that no client arranged, come too early or twice: turned away, and the right one still comes in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes import (
    IDS,
    OTHER_SECRET,
    FakeClient,
    refused,
    step,
)
from harness import Node, Swarm

from swarm.server.config import ServerConfig
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.messages import Accept, Close, Result
from swarm.wire.payload import pack_ids


async def test_a_hello_with_a_wrong_secret(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    assert await refused(await client.link(node, secret=OTHER_SECRET))
    link = await client.link(node)
    assert (await client.ask(control, link, IDS)).kv_length == 3, "the right one still comes in"


async def test_a_hello_by_another_peer_than_the_open_named(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Even if it knows the secret."""
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    thief = FakeClient(swarm)
    assert await refused(await thief.link(node, client=client.peer))
    link = await client.link(node)
    assert (await client.ask(control, link, IDS)).kv_length == 3
    await thief.close()


async def test_a_copied_session_id_is_another_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    one = await client.ask(control, link, IDS)
    copycat = FakeClient(swarm)
    his_control, his_link = await copycat.session(node)
    assert len(node.server.table) == 2
    await copycat.ask(his_control, his_link, [99, 98, 97, 96])
    await his_control.send(Close())
    await swarm.quiet()
    assert len(node.server.table) == 1
    two = await client.ask(control, link, [one.tokens[0]], seq=1, keep=3)
    assert two.kv_length == 4
    assert [*one.tokens, *two.tokens] == swarm.reference.greedy(IDS, 2, eos_token_id=None)
    await copycat.close()


async def test_a_hello_before_its_open_is_waited_for(swarm: Swarm, node: Node, client: FakeClient) -> None:
    link = await client.link(node)
    await asyncio.sleep(node.server.config.hello_wait_s - 0.1)
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    assert (await client.ask(control, link, IDS)).kv_length == 3


async def test_two_early_hellos_wait_each_for_its_own_time(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """The first one's giving up must not take the second one's place away."""
    first = await client.link(node)
    await asyncio.sleep(node.server.config.hello_wait_s - 1.0)
    second = await client.link(node, lane=PREFILL_LANE)
    assert await refused(first)
    control, _ = await client.open(node)
    await second.send(step(rows=3), pack_ids(IDS))
    assert isinstance((await control.receive()).message, Result)


async def test_a_hello_that_never_gets_an_open_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    link = await client.link(node)
    began_s = swarm.clock.monotonic_s()
    assert await refused(link)
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(node.server.config.hello_wait_s)
    assert node.server.table.waiting_hellos == 0
    control, link = await client.session(node)
    assert (await client.ask(control, link, IDS)).kv_length == 3


async def test_early_hellos_are_few_and_one_peer_cannot_take_every_place(swarm: Swarm, client: FakeClient) -> None:
    config = ServerConfig(max_waiting_hellos=3, max_waiting_hellos_per_peer=2)
    [node] = await swarm.serve("0:5", config=config)
    links = [await client.link(node, session=bytes([n] * 16)) for n in range(2)]
    await swarm.quiet()
    assert node.server.table.waiting_hellos == 2
    assert await refused(await client.link(node, session=bytes([2] * 16)))
    assert node.server.table.waiting_hellos == 2
    await swarm.answers()
    assert all([await refused(link) for link in links])
    assert node.server.table.waiting_hellos == 0


async def test_many_peers_that_fill_the_early_hellos_keep_out_nobody(swarm: Swarm, client: FakeClient) -> None:
    config = ServerConfig(max_waiting_hellos=4, max_waiting_hellos_per_peer=2)
    [node] = await swarm.serve("0:5", config=config)
    strangers = [FakeClient(swarm) for _ in range(2)]
    links = [await s.link(node, session=bytes([n] * 16)) for s in strangers for n in range(2)]
    await swarm.quiet()
    assert node.server.table.waiting_hellos == 4
    link = await client.link(node)
    await swarm.quiet()
    assert node.server.table.waiting_hellos == 4
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    assert (await client.ask(control, link, IDS)).kv_length == 3
    assert all([await refused(link) for link in links])
    for stranger in strangers:
        await stranger.close()


async def test_a_second_hello_for_one_lane(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    assert await refused(await client.link(node))
    assert (await client.ask(control, link, IDS)).kv_length == 3


@pytest.mark.parametrize("changes", [{"session": bytes(16)}, {"stage": 1}, {"client": "nobody"}])
async def test_a_link_for_a_session_that_does_not_exist(
    swarm: Swarm, node: Node, client: FakeClient, changes: dict[str, Any]
) -> None:
    control, link = await client.session(node)
    stray = await client.link(node, lane=PREFILL_LANE, **changes)
    await stray.send(step(rows=3), pack_ids(IDS))
    assert await refused(stray)
    assert (await client.ask(control, link, IDS)).kv_length == 3


async def test_a_link_outlives_its_session_by_nothing(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await control.send(Close())
    assert await refused(link), "the server hung up on the link, though its peer did not"
