"""Clients that break the protocol: the server stays up, keeps nothing of theirs, and nobody else notices."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgspec
import pytest
from fakes import (
    IDS,
    OTHER_SECRET,
    FakeClient,
    ended,
    refused,
    step,
)
from harness import Node, Swarm

from swarm.core.errors import PeerLostError, PeerUnreachableError
from swarm.core.limits import MAX_FRAME_BYTES
from swarm.core.records import sign_record
from swarm.server.config import ServerConfig
from swarm.server.service import PACE_S
from swarm.transport.framing import FrameStream
from swarm.transport.pulse import ECHO_IDLE_S, PULSE_PROTOCOL
from swarm.wire.frames import encode_head
from swarm.wire.messages import (
    PREFILL_LANE,
    Accept,
    Busy,
    Close,
    Failed,
    Noop,
    Refused,
    Result,
)
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel

MALFORMED = {
    "zeros": bytes(64),
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "absurd body": struct.pack(">IH", 2**32 - 1, 100),
    "one over the limit": struct.pack(">IH", MAX_FRAME_BYTES + 1, 100),
    "absurd header": struct.pack(">IH", 70_000, 65_535),
    "header longer than body": struct.pack(">IH", 10, 100),
    "unknown tag": struct.pack(">IH", 2 + 2, 2) + msgspec.msgpack.encode([99]),
    "nested without end": struct.pack(">IH", 2 + 2000, 2000) + b"\x91" * 2000,
    "a map": struct.pack(">IH", 2 + 1, 1) + b"\x80",
}


# -- bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", list(Channel))
@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_instead_of_an_opening(
    swarm: Swarm, node: Node, client: FakeClient, channel: Channel, name: str
) -> None:
    stream = await client.raw(node, channel)
    await stream.write(MALFORMED[name])
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    await swarm.check_free()
    await swarm.answers()


@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_on_an_open_link_ends_that_session_alone(
    swarm: Swarm, node: Node, client: FakeClient, name: str
) -> None:
    other = swarm.client().session()
    await other.generate("bystander", max_new_tokens=2, ignore_eos=True)
    control, reply = await client.open(node)
    assert isinstance(reply, Accept)
    stream = await client.raw(node, Channel.LINK)
    greeting = client.greeting()
    await stream.write(encode_head(greeting))
    await stream.write(MALFORMED[name])
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "client"
    await swarm.quiet()
    assert len(node.server.table) == 1
    result = await other.generate(" goes on", max_new_tokens=2, ignore_eos=True)
    assert len(result.token_ids) == 2
    await other.close()


@pytest.mark.parametrize("name", sorted(MALFORMED))
async def test_garbage_on_an_open_control_stream_ends_that_session(
    swarm: Swarm, node: Node, client: FakeClient, name: str
) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    await stream.write(encode_head(client.opening(node)))
    await swarm.quiet()
    assert len(node.server.table) == 1
    await stream.write(MALFORMED[name])
    await swarm.check_free()
    await swarm.answers()


async def test_a_control_stream_that_says_nothing_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(node.server.config.open_timeout_s)


async def test_half_an_open_is_waited_for_and_no_longer(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    data = encode_head(client.opening(node))
    await stream.write(data[:-10])
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    await swarm.check_free()


async def test_a_second_open_on_one_stream(swarm: Swarm, node: Node, client: FakeClient) -> None:
    stream = await client.raw(node, Channel.CONTROL)
    await stream.write(encode_head(client.opening(node)) * 2)
    await swarm.check_free()
    await swarm.answers()


async def test_a_frame_larger_than_any_step_of_the_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """64 reserved tokens take a few KiB a step: the announced megabytes are refused before they come."""
    control, _ = await client.open(node)
    stream = await client.raw(node, Channel.LINK)
    await stream.write(encode_head(client.greeting()))
    await stream.write(encode_head(step(), 1024 * 1024))
    last = await ended(control)
    assert isinstance(last, Failed)
    assert "frame of" in last.reason


# -- opening --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "other@main#0123456789abcdef"}, "holds"),
        ({"protocol": 2}, "protocol 1"),
        ({"start": 0, "end": 6}, "layers 0:5, not 0:6"),
        ({"stage": 0, "stages": 2}, "at the last stage"),
        ({"stage": 1, "stages": 2}, "token ids enter"),
        ({"start": 1}, "token ids enter"),
        ({"end": 4}, "behind the last layer"),
        ({"kv_tokens": 100_000}, "context is"),
        ({"numerics": "bfloat16"}, "computes in float32"),
        ({"downstream": b"garbage", "stages": 2, "head": False}, "malformed record"),
        ({"downstream": b"", "stages": 2, "head": False}, "names the next server"),
    ],
)
async def test_an_open_that_can_never_be_served(
    swarm: Swarm, node: Node, client: FakeClient, changes: dict[str, Any], words: str
) -> None:
    control, reply = await client.open(node, **changes)
    assert isinstance(reply, Refused), reply
    assert words in reply.reason
    await swarm.check_free()
    assert await ended(control) is None, "and it hangs up"


async def test_more_kv_than_the_whole_budget_is_refused_not_busy(swarm: Swarm, client: FakeClient) -> None:
    [small] = await swarm.serve("0:5", kv_tokens=100)
    _, reply = await client.open(small, kv_tokens=101)
    assert isinstance(reply, Refused)
    assert "budget is 100" in reply.reason
    control, reply = await client.open(small, kv_tokens=100)
    assert isinstance(reply, Accept)
    assert reply.kv_free_tokens == 0
    _, reply = await client.open(small, kv_tokens=1, session=bytes(16))
    assert isinstance(reply, Busy)
    assert "0 of 100 free" in reply.reason
    await control.send(Close())
    await swarm.check_free()


async def test_a_forged_announcement_of_the_next_server_is_refused(
    swarm: Swarm, node: Node, client: FakeClient
) -> None:
    """The server would otherwise dial wherever a client likes in another peer's name."""
    victim = swarm.identity()
    now_s = swarm.clock.wall_s()
    announcement = swarm.announcement(
        node.transport,
        node.engine,
        peer=victim.peer_id,
        addresses=("/ip4/192.0.2.1/tcp/1",),
        expires_s=now_s + 60.0,
    )
    record = sign_record(victim, announcement)
    forged = record.replace(b"192.0.2.1", b"192.0.2.9")
    assert forged != record
    _, reply = await client.open(node, stages=2, head=False, downstream=forged)
    assert isinstance(reply, Refused)
    assert "signature" in reply.reason
    await asyncio.sleep(61.0)
    _, reply = await client.open(node, stages=2, head=False, downstream=record)
    assert isinstance(reply, Refused)
    assert "expires in" in reply.reason
    await swarm.check_free()


def signed(swarm: Swarm, node: Node, **changes: Any) -> bytes:
    """A genuine announcement of a server that is nobody's in the swarm."""
    stranger = swarm.identity()
    fields = {"peer": stranger.peer_id, "start": 3, "end": 5, "expires_s": swarm.clock.wall_s() + 60.0} | changes
    return sign_record(stranger, swarm.announcement(node.transport, node.engine, **fields))


@pytest.mark.parametrize(
    ("ours", "theirs", "dialled"),
    [
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/10.0.0.1/tcp/22", "/ip4/127.0.0.1/tcp/80"), None),
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/10.0.0.1/tcp/22", "/ip4/1.1.1.1/tcp/3"), ("/ip4/1.1.1.1/tcp/3",)),
        (("/ip4/8.8.8.8/tcp/1",), ("/dns4/localhost/tcp/22",), None),
        (("/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.7/tcp/1"), ("/ip4/10.0.0.1/tcp/2",), ("/ip4/10.0.0.1/tcp/2",)),
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/192.168.1.1/tcp/1/p2p/x/p2p-circuit",), None),
        (("/ip4/8.8.8.8/tcp/1", "/ip4/127.0.0.1/tcp/1"), ("/ip4/127.0.0.1/tcp/22", "/ip4/192.168.1.1/tcp/1"), None),
    ],
)
async def test_private_addresses_are_dialled_from_private_networks_only(
    swarm: Swarm,
    client: FakeClient,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    dialled: tuple[str, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise any client makes a volunteer's machine knock at doors inside his home."""
    [node] = await swarm.serve("0:3")
    announcer = node.server.parts.announcer
    announcer._base = msgspec.structs.replace(announcer._base, addresses=ours)
    knocked: set[tuple[str, ...]] = set()

    async def dial(peer: str, protocol: str, *, addresses: Any = (), timeout_s: float = 10.0) -> Any:
        knocked.add(tuple(addresses))
        raise PeerUnreachableError("nobody there")

    monkeypatch.setattr(node.transport, "dial", dial)
    control, reply = await client.open(node, stages=2, downstream=signed(swarm, node, addresses=theirs))
    await swarm.quiet()
    if dialled is None:
        assert isinstance(reply, Refused)
        assert "private" in reply.reason
        assert not knocked
    else:
        assert isinstance(reply, Accept)
        assert knocked == {dialled}
        await control.send(Close())
    await swarm.check_free()


async def test_a_next_server_that_cannot_be_dialled_is_left_in_peace(
    swarm: Swarm, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OPEN that stays open must not make a volunteer's machine knock at a stranger's door again and again."""
    [node] = await swarm.serve("0:3")
    knocks: list[str] = []

    async def dial(peer: str, protocol: str, *, addresses: Any = (), timeout_s: float = 10.0) -> Any:
        knocks.append(protocol)
        raise PeerUnreachableError("nobody there")

    monkeypatch.setattr(node.transport, "dial", dial)
    control, reply = await client.open(node, stages=2, downstream=signed(swarm, node))
    assert isinstance(reply, Accept)
    await asyncio.sleep(9.0)
    assert knocks == [Channel.LINK.protocol] * 2
    await control.send(Close())
    await swarm.check_free()


async def test_no_ops_are_read_slowly_and_do_not_keep_a_session(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    began_s = swarm.clock.monotonic_s()
    for _ in range(200):
        await link.send(Noop())
        await control.send(Noop())
    assert (await client.ask(control, link, IDS)).kv_length == 3
    assert swarm.clock.monotonic_s() - began_s >= 200 * PACE_S
    began_s = swarm.clock.monotonic_s()
    noops = asyncio.create_task(every_second(link))
    last = await ended(control)
    noops.cancel()
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    assert swarm.clock.monotonic_s() - began_s < node.server.config.idle_timeout_s + 5.0


async def test_a_pulse_without_a_beat_is_given_up(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Streams cost a stranger nothing; thousands of silent ones would leave no room for anybody else's."""
    stream = await client.transport.dial(node.peer, PULSE_PROTOCOL)
    await stream.write(b"beat")
    assert await stream.read_exactly(4) == b"beat"
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(PeerLostError):
        await stream.read_exactly(4)
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(ECHO_IDLE_S, abs=1.0)


async def every_second(link: FrameStream) -> None:
    while True:
        await link.send(Noop())
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("changes", [{"start": 4}, {"start": 1, "end": 3}, {"model": "other@main#0123456789abcdef"}])
async def test_a_next_server_that_cannot_follow(swarm: Swarm, client: FakeClient, changes: dict[str, Any]) -> None:
    [node] = await swarm.serve("0:3")
    _, reply = await client.open(node, stages=2, downstream=signed(swarm, node, **changes))
    assert isinstance(reply, Refused)
    assert "does not hold layer 3" in reply.reason
    await swarm.check_free()


async def test_the_same_stage_of_one_session_twice(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    _, reply = await client.open(node)
    assert isinstance(reply, Refused)
    assert "open already" in reply.reason
    assert (await client.ask(control, link, IDS)).kv_length == 3, "the first one is untouched"


async def test_sessions_of_one_client_are_capped(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(max_sessions_per_client=2, max_sessions=3))
    opened = [await client.open(node, session=bytes([n] * 16)) for n in range(3)]
    assert [type(reply) for _, reply in opened] == [Accept, Accept, Busy]
    assert "one client may hold 2" in opened[2][1].reason
    other = FakeClient(swarm)
    _, reply = await other.open(node)
    assert isinstance(reply, Accept), "another client finds room"
    _, reply = await other.open(node, session=bytes(16))
    assert isinstance(reply, Busy)
    assert "all 3 sessions" in reply.reason
    await opened[0][0].send(Close())
    await swarm.quiet()
    _, reply = await client.open(node, session=bytes([7] * 16))
    assert isinstance(reply, Accept), "a closed session makes room"
    await other.close()


# -- hello ----------------------------------------------------------------------------------------------------


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
