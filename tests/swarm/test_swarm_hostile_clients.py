"""Clients that break the protocol: the server stays up, keeps nothing of theirs, and nobody else notices."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from fakes import (
    HIDDEN,
    OTHER_SECRET,
    FakeClient,
    rows_of,
    step,
)
from harness import Node, Swarm, turns
from msgspec.structs import force_setattr

from swarm.core.errors import PeerLostError, PeerUnreachableError
from swarm.core.limits import MAX_FRAME_BYTES, MAX_PENDING_STEPS
from swarm.core.records import sign_announcement
from swarm.core.sampling import SamplingParams
from swarm.server.config import ServerConfig
from swarm.wire.frames import encode_head
from swarm.wire.messages import (
    PREFILL_LANE,
    Accept,
    Answer,
    Busy,
    Close,
    Failed,
    LinkLost,
    Noop,
    Refused,
    Result,
    Step,
)
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel

IDS = [10, 20, 30]
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


@pytest_asyncio.fixture
async def client(swarm: Swarm) -> AsyncIterator[FakeClient]:
    built = FakeClient(swarm)
    yield built
    await built.close()


@pytest_asyncio.fixture
async def node(swarm: Swarm) -> Node:
    """One server that holds the whole model."""
    [started] = await swarm.serve("0:5")
    return started


async def ended(control: Any) -> Any:
    """The server's last word on a control stream, after which it hangs up; None if it says nothing."""
    last = None
    while True:
        try:
            last = (await control.receive()).message
        except PeerLostError:
            return last


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
    record = sign_announcement(victim, announcement)
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
    return sign_announcement(stranger, swarm.announcement(node.transport, node.engine, **fields))


@pytest.mark.parametrize(
    ("ours", "theirs", "dialled"),
    [
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/10.0.0.1/tcp/22", "/ip4/127.0.0.1/tcp/80"), None),
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/10.0.0.1/tcp/22", "/ip4/1.1.1.1/tcp/3"), ("/ip4/1.1.1.1/tcp/3",)),
        (("/ip4/8.8.8.8/tcp/1",), ("/dns4/localhost/tcp/22",), None),
        (("/ip4/8.8.8.8/tcp/1", "/ip4/10.0.0.7/tcp/1"), ("/ip4/10.0.0.1/tcp/2",), ("/ip4/10.0.0.1/tcp/2",)),
        (("/ip4/8.8.8.8/tcp/1",), ("/ip4/192.168.1.1/tcp/1/p2p/x/p2p-circuit",), None),
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


async def refused(link: Any) -> bool:
    try:
        await link.receive()
    except PeerLostError:
        return True
    return False


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


# -- steps ----------------------------------------------------------------------------------------------------


def absurd_temperature() -> Answer:
    """One that our own code would refuse to build."""
    answer = Answer(1, SamplingParams(temperature=1.0))
    force_setattr(answer.params, "temperature", float("nan"))
    return answer


BAD_STEPS: dict[str, tuple[Step, bytes, str]] = {
    "keep beyond what is held": (step(keep=1), pack_ids([5]), "keep 1 rows"),
    "rows over the reservation": (step(rows=65), pack_ids([5] * 65), "64 were reserved"),
    "keep over the reservation": (step(keep=64), pack_ids([5]), "64 were reserved"),
    "more wanted than there is": (step(want=2), pack_ids([5]), "wants 2 of 1"),
    "a generation nobody announced": (step(generation=1), pack_ids([5]), "generation 1"),
    "too far ahead": (step(seq=MAX_PENDING_STEPS), pack_ids([5]), "too far ahead"),
    "ids cut short": (step(rows=2), pack_ids([5]), "cannot hold 2 token ids"),
    "ids and a tensor": (step(), pack_ids([5]) + rows_of(1.0), "no tensor"),
    "a tensor and no ids": (step(ids=False), rows_of(1.0), "token ids and no tensor"),
    "nothing at all": (step(ids=False), b"", "token ids and no tensor"),
    "a token outside the vocabulary": (step(), pack_ids([260]), "vocabulary"),
    "a token outside any vocabulary": (step(), pack_ids([2**32 - 1]), "vocabulary"),
    "a horizon over the context": (step(horizon=641), pack_ids([5]), "horizon"),
    "a temperature that is none": (
        step(answer=absurd_temperature()),
        pack_ids([5]),
        "temperature",
    ),
    "a bias outside the vocabulary": (
        step(answer=Answer(1, SamplingParams(logit_bias=((2000, 1.0),)))),
        pack_ids([5]),
        "2000",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD_STEPS))
async def test_an_impossible_step_ends_its_session(swarm: Swarm, node: Node, client: FakeClient, name: str) -> None:
    message, payload, words = BAD_STEPS[name]
    control, link = await client.session(node)
    await link.send(message, *([payload] if payload else []))
    last = await ended(control)
    assert isinstance(last, Failed), last
    assert words in last.reason
    await swarm.check_free()
    await swarm.answers()


@pytest.mark.parametrize("name", ["wrong size", "no rows", "NaN", "infinite"])
async def test_hidden_rows_that_cannot_be(swarm: Swarm, client: FakeClient, name: str) -> None:
    [node] = await swarm.serve("1:5")
    payload = {
        "wrong size": rows_of(1.0)[:-4],
        "no rows": b"",
        "NaN": rows_of(float("nan")),
        "infinite": rows_of(float("inf")),
    }[name]
    control, link = await client.session(node)
    await link.send(step(), pack_ids([5]), payload)
    last = await ended(control)
    assert isinstance(last, Failed), last
    await swarm.check_free()
    await swarm.serve("0:1")
    await swarm.answers()


async def test_nan_rows_do_not_touch_the_session_beside(swarm: Swarm, client: FakeClient) -> None:
    """Both share packed forwards."""
    [node, _] = await swarm.serve("1:5", "0:1")
    stream = await swarm.client().stream("bystander", max_new_tokens=12, ignore_eos=True)
    controls = []
    for n in range(4):
        control, reply = await client.open(node, session=bytes([n] * 16))
        assert isinstance(reply, Accept)
        link = await client.link(node, session=bytes([n] * 16))
        await link.send(step(rows=4, want=4), pack_ids([5] * 4), rows_of(float("nan"), 4))
        controls.append(control)
        await stream.next_piece()
    async for _ in stream:
        pass
    wanted = swarm.reference.greedy("bystander", 12, eos_token_id=None)
    assert list(stream.result.token_ids) == wanted
    for control in controls:
        assert isinstance(await ended(control), Failed)


async def test_the_largest_int8_rows_there_are(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("1:3")
    control, link = await client.session(node, codec="int8")
    scales = b"\x00\x00\x00\x7e"  # 4e37: times 127 it is finite still
    await link.send(step(), pack_ids([5]), scales + bytes([127] * HIDDEN))
    last = (await asyncio.wait_for(control.receive(), 5.0)).message
    assert isinstance(last, Failed | Result), "an answer or a reason, never silence"


async def test_a_bad_step_beside_good_ones_fails_alone(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """A packed forward that is refused for one session runs again without it."""
    good = [await client.open(node, session=bytes([n] * 16)) for n in range(3)]
    links = [await client.link(node, session=bytes([n] * 16)) for n in range(3)]
    for n, link in enumerate(links):
        await link.send(step(rows=3), pack_ids(IDS if n != 1 else [10, 20, 260]))
    first, second, third = [(await control.receive()).message for control, _ in good]
    assert isinstance(second, Failed)
    assert first.tokens == third.tokens == (swarm.reference.greedy(IDS, 1, eos_token_id=None)[0],)


async def test_a_repeated_step_is_answered_once(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    for _ in range(3):
        await link.send(step(rows=3), pack_ids(IDS))
    assert (await control.receive()).message.seq == 0
    assert (await client.ask(control, link, [7], seq=1, keep=3)).seq == 1
    assert node.rows == [3, 1]


async def test_a_lower_epoch_is_dropped_before_compute(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS, epoch=3)
    await link.send(step(epoch=2, seq=1, keep=0, rows=2), pack_ids([1, 2]))
    reply = await client.ask(control, link, [7], epoch=3, seq=1, keep=3)
    assert reply.kv_length == 4
    assert node.rows == [3, 1]


async def test_steps_out_of_order_run_in_order(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    other = await client.link(node, lane=PREFILL_LANE)
    await other.send(step(seq=1, keep=3), pack_ids([40]))
    await swarm.quiet()
    assert node.rows == []
    await link.send(step(seq=0, rows=3), pack_ids(IDS))
    first, second = (await control.receive()).message, (await control.receive()).message
    assert (first.seq, second.seq) == (0, 1)
    assert second.tokens == (swarm.reference.greedy([*IDS, 40], 1, eos_token_id=None)[0],)


async def test_a_flood_of_steps_waits_on_the_link_not_in_memory(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Nobody reads the results: the server stops computing, then stops reading."""
    control, link = await client.session(node)

    async def flood() -> None:
        for seq in range(5000):
            await link.send(step(seq=seq, keep=0, rows=60), pack_ids([7] * 60))

    flooding = asyncio.create_task(flood())
    other = await swarm.client().generate("not kept waiting", max_new_tokens=3, ignore_eos=True)
    assert len(other.token_ids) == 3
    [session] = node.server.table.sessions
    for _ in range(200):
        await asyncio.sleep(0)
        assert len(session.inbox) <= MAX_PENDING_STEPS
    flooding.cancel()
    await control.send(Close())
    await swarm.check_free()


async def test_a_client_that_reads_nothing_cannot_hold_up_the_others(swarm: Swarm, client: FakeClient) -> None:
    """Its control stream is full, and then it breaks the protocol: the reason cannot be delivered."""
    swarm.small_buffers(200)
    [node] = await swarm.serve("0:5")
    control, link = await client.session(node)
    for seq in range(12):
        await link.send(step(seq=seq, keep=seq), pack_ids([7]))
    await swarm.quiet()
    await link.send(step(seq=3, epoch=1, keep=60), pack_ids([7]))
    await link.send(step(seq=0, epoch=1, keep=60), pack_ids([7]))
    began_s = swarm.clock.monotonic_s()
    await swarm.answers()
    assert swarm.clock.monotonic_s() - began_s < 1.0
    await asyncio.sleep(3.0)
    await swarm.check_free()
    del control


async def test_the_noops_of_an_idle_client_do_not_hold_its_kv(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    idle_s = node.server.config.idle_timeout_s
    for _ in range(40):
        await asyncio.sleep(idle_s / 38)
        if control.phase.value != "active" or node.idle:
            break
        await control.send(Noop())
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    await swarm.check_free()


async def test_an_accepted_session_without_a_step_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, _ = await client.session(node)
    began_s = swarm.clock.monotonic_s()
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    limit_s = node.server.config.open_timeout_s
    assert limit_s <= swarm.clock.monotonic_s() - began_s <= limit_s + 2.0
    await swarm.check_free()


async def test_a_client_that_hangs_up_mid_step(swarm: Swarm, node: Node, client: FakeClient) -> None:
    for count in range(12):
        control, link = await client.session(node)
        await link.send(step(rows=3), pack_ids(IDS))
        await turns(count)
        await control.close()
        await swarm.check_free()
    await swarm.answers()


async def test_a_link_that_breaks_is_told_to_the_client(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await link.close()
    message = (await control.receive()).message
    assert isinstance(message, LinkLost)
    assert message.peer == client.peer
    await control.send(Close())
    await swarm.check_free()


async def test_an_unreachable_next_server_is_told_to_the_client(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:3")
    gone = swarm.identity()
    announcement = swarm.announcement(
        node.transport,
        node.engine,
        peer=gone.peer_id,
        start=3,
        end=5,
        addresses=("/memory/nowhere",),
        expires_s=swarm.clock.wall_s() + 60.0,
    )
    record = sign_announcement(gone, announcement)
    control, reply = await client.open(node, stages=2, downstream=record)
    assert isinstance(reply, Accept)
    message = (await control.receive()).message
    assert isinstance(message, LinkLost)
    assert message.peer == gone.peer_id
    await control.send(Close())
    await swarm.check_free()
