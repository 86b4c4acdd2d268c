"""RELINKs that cannot be, or come from somebody else: refused, or harmless to everybody but whoever sent them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from by_hand import HandChain
from fakes import IDS, OTHER_SECRET, SECRET, FakeClient, ended, heard, refused, signed, step, toward
from harness import Node, Swarm

from swarm.server.config import ServerConfig
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.frames import encode_head
from swarm.wire.messages import Accept, Close, Failed, LinkLost, Relink, Relinked, Replay, Result, Upstream
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel


async def failed(control: Any) -> str:
    """Why the server ended the session: its client's fault, in words."""
    last = await ended(control)
    assert isinstance(last, Failed), last
    assert last.fault == "client"
    return last.reason


@pytest.mark.parametrize(
    ("relink", "words"),
    [
        (Relink(1, 0), "RELINK to generation 1, session is in 1"),
        (Relink(0, 0), "RELINK to generation 0, session is in 1"),
        (Relink(2, 65), "keeps 65 rows, but 64 were reserved"),
        (Relink(2, 0, downstream=toward(b"record")), "no next server"),
        (Relink(2, 0, replay_hops=0), "no next server"),
        (Relink(2, 0, Upstream("somebody", OTHER_SECRET)), "the client itself feeds this server"),
    ],
)
async def test_a_relink_that_cannot_be_ends_the_session(
    swarm: Swarm, node: Node, client: FakeClient, relink: Relink, words: str
) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await control.send(Relink(1, 3))
    assert await heard(control) == Relinked(1, 3, 0)
    await control.send(relink)
    assert words in await failed(control)
    await swarm.check_free()
    await swarm.answers()


@pytest.mark.parametrize(("flaw", "words"), [("forged", "signature"), ("expired", "expires"), ("garbage", "malformed")])
async def test_a_relink_to_a_forged_next_server(swarm: Swarm, client: FakeClient, flaw: str, words: str) -> None:
    """The server would otherwise dial wherever a client likes in another peer's name."""
    mended = await HandChain(client, await swarm.serve("0:3", "3:5")).open()
    await mended.ask(IDS)
    first = mended.places[0]
    record = signed(swarm, first.node, addresses=("/ip4/192.0.2.1/tcp/1",), expires_s=swarm.clock.wall_s() + 5.0)
    if flaw == "forged":
        record = record.replace(b"192.0.2.1", b"192.0.2.9")
    elif flaw == "garbage":
        record = b"garbage"
    else:
        await asyncio.sleep(6.0)
    assert first.control is not None
    await first.control.send(Relink(1, 3, downstream=toward(record)))
    reason = await failed(first.control)
    assert words in reason
    assert "the new next server" in reason


async def test_a_next_server_that_must_not_be_dialled_is_one_more_that_is_lost(
    swarm: Swarm, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private address, told by a client to a server on the internet. The session itself is too good to drop."""
    [first] = await swarm.serve("0:3")
    announcer = first.server.parts.announcer
    announcer._base = msgspec.structs.replace(announcer._base, addresses=("/ip4/8.8.8.8/tcp/1",))
    abroad, at_home = (
        signed(swarm, first, addresses=(where,)) for where in ("/ip4/1.1.1.1/tcp/3", "/ip4/10.0.0.1/tcp/2")
    )
    control, reply = await client.open(first, head=False, downstream=toward(abroad))
    assert isinstance(reply, Accept)
    assert isinstance(await heard(control), LinkLost), "nobody is there"
    knocked: list[Any] = []

    async def dial(*where: Any, **options: Any) -> Any:
        knocked.append(where)
        raise AssertionError("nobody should have been dialled")

    monkeypatch.setattr(first.transport, "dial", dial)
    await control.send(Relink(1, 0, downstream=toward(at_home)))
    said = [await heard(control), await heard(control)]
    assert Relinked(1, 0, 0) in said
    [lost] = [message for message in said if isinstance(message, LinkLost)]
    assert lost.generation == 1
    assert "private" in lost.reason
    await swarm.quiet()
    assert not knocked
    await control.send(Close())


async def test_more_rows_than_are_held_cannot_be_kept(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """The client hears how many there are."""
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await control.send(Relink(1, 40))
    assert await heard(control) == Relinked(1, 3, 0)
    assert (await client.ask(control, link, [7], generation=1, keep=3)).kv_length == 4
    await link.send(step(1, 40, generation=1), pack_ids([7]))
    assert "keep 40 rows" in await failed(control)


async def test_a_session_is_not_relinked_for_ever(swarm: Swarm, client: FakeClient) -> None:
    """Each makes the server dial: they are few, and not fast."""
    config = ServerConfig(max_relinks=5, relink_gap_s=0.5)
    [node] = await swarm.serve("0:5", config=config)
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    began_s = swarm.clock.monotonic_s()
    for generation in range(1, 7):
        await control.send(Relink(generation, 3))
    replies = [await heard(control) for _ in range(5)]
    assert replies == [Relinked(generation, 3, 0) for generation in range(1, 6)]
    assert swarm.clock.monotonic_s() - began_s >= 4 * config.relink_gap_s
    assert "more than 5 heals" in await failed(control)


# -- somebody else ----------------------------------------------------------------------------------------------


async def test_nobody_relinks_somebody_elses_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """He knows the session id, and every secret; but his control stream is his own."""
    control, link = await client.session(node)
    one = await client.ask(control, link, IDS)
    thief = FakeClient(swarm)
    his, reply = await thief.open(node)
    assert isinstance(reply, Accept)
    await his.send(Relink(9, 0, Upstream(thief.peer, SECRET)))
    assert await heard(his) == Relinked(9, 0, 0)
    assert await refused(await thief.link(node, client=client.peer, generation=9))
    two = await client.ask(control, link, [one.tokens[0]], seq=1, keep=3)
    assert [*one.tokens, *two.tokens] == swarm.reference.greedy(IDS, 2, eos_token_id=None)
    await thief.close()


async def test_replayed_bytes_of_a_relink_touch_nobody(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Everything the client ever wrote, written again by whoever listened: it opens a session of his own."""
    written: dict[str, list[bytes]] = {}

    def listen(source: str, target: str, protocol: str, data: bytes) -> bytes:
        if source == client.peer:
            written.setdefault(protocol, []).append(data)
        return data

    stop = swarm.network.tap(listen)
    control, link = await client.session(node)
    one = await client.ask(control, link, IDS)
    await control.send(Relink(1, 3))
    assert isinstance(await heard(control), Relinked)
    stop()
    thief = FakeClient(swarm)
    for channel in (Channel.CONTROL, Channel.LINK):
        stream = await thief.raw(node, channel)
        await stream.write(b"".join(written[channel.protocol]))
    await swarm.quiet()
    assert {session.key.client for session in node.server.table.sessions} == {client.peer, thief.peer}
    two = await client.ask(control, link, [one.tokens[0]], generation=1, keep=3)
    assert [*one.tokens, *two.tokens] == swarm.reference.greedy(IDS, 2, eos_token_id=None)
    await thief.close()


@pytest.mark.parametrize("message", [Relink(1, 0), Replay(1, 0, 1)], ids=["RELINK", "REPLAY"])
async def test_each_on_the_other_kind_of_stream_is_a_violation(
    swarm: Swarm, node: Node, client: FakeClient, message: Relink | Replay
) -> None:
    control, link = await client.session(node)
    stream: Any = link._stream if isinstance(message, Relink) else control._stream
    await stream.write(encode_head(message))
    last = await ended(control)
    assert last is None or isinstance(last, Failed)
    await swarm.check_free()


# -- replays ----------------------------------------------------------------------------------------------------

BAD_REPLAYS = {
    "a generation nobody announced": (Replay(1, 0, 1, ids=True), pack_ids([5]), "replay of generation 1"),
    "rows over the reservation": (Replay(0, 64, 1, ids=True), pack_ids([5]), "64 were reserved"),
    "rows with a gap before them": (Replay(0, 4, 1, ids=True), pack_ids([5]), "keep 4 rows"),
    "on behind the tail": (Replay(0, 0, 1, ids=True, hops=1), pack_ids([5]), "behind the last stage"),
    "no ids": (Replay(0, 0, 1), b"", "token ids and no tensor"),
    "a token outside the vocabulary": (Replay(0, 0, 1, ids=True), pack_ids([260]), "vocabulary"),
    "a horizon over the context": (Replay(0, 0, 1, ids=True, horizon=641), pack_ids([5]), "horizon"),
}


@pytest.mark.parametrize("name", sorted(BAD_REPLAYS))
async def test_an_impossible_replay_ends_its_session(swarm: Swarm, node: Node, client: FakeClient, name: str) -> None:
    message, payload, words = BAD_REPLAYS[name]
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    link = await client.link(node, lane=PREFILL_LANE)
    await link.send(message, *([payload] if payload else []))
    assert words in await failed(control)
    await swarm.check_free()


async def test_a_step_before_the_rows_it_needs_is_a_violation(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """While a replay is under way nothing is guessed."""
    control, reply = await client.open(node, generation=4)
    assert isinstance(reply, Accept)
    link = await client.link(node, generation=4)
    await link.send(Replay(4, 0, 2, ids=True), pack_ids([1, 2]))
    await link.send(step(0, 3, generation=4), pack_ids([4]))
    assert "keep 3 rows of a session that holds 2" in await failed(control)


async def test_a_replay_of_a_lower_generation_is_dropped(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, reply = await client.open(node, generation=2)
    assert isinstance(reply, Accept)
    link = await client.link(node, generation=2)
    await link.send(Replay(1, 0, 2, ids=True), pack_ids([1, 2]))
    await link.send(Replay(2, 0, 3, ids=True), pack_ids(IDS))
    assert (await heard(control)).kv_length == 3
    await link.send(Replay(1, 0, 2, ids=True), pack_ids([1, 2]))
    await link.send(step(0, 3, generation=2), pack_ids([40]))
    result = await heard(control)
    assert isinstance(result, Result)
    assert result.tokens == (swarm.reference.greedy([*IDS, 40], 1, eos_token_id=None)[0],)
    assert node.rows == [3, 1]
