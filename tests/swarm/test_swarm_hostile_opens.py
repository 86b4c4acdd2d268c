"""OPENs that cannot be served, or would make a server dial where it should not: refused with the reason."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from fakes import (
    IDS,
    FakeClient,
    ended,
    signed,
    toward,
)
from harness import Node, Swarm

from swarm.core.errors import PeerUnreachableError
from swarm.core.records import sign_record
from swarm.server.config import ServerConfig
from swarm.wire.messages import (
    Accept,
    Busy,
    Close,
    Refused,
)
from swarm.wire.session import Channel


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "other@main#0123456789abcdef"}, "holds"),
        ({"protocol": 2}, "protocol 1"),
        ({"start": 0, "end": 6}, "layers 0:5, not 0:6"),
        ({"downstream": toward(b"garbage")}, "nobody follows the last layer"),
        ({"start": 1}, "token ids enter"),
        ({"end": 4}, "behind the last layer"),
        ({"kv_tokens": 100_000}, "context is"),
        ({"numerics": "bfloat16"}, "computes in float32"),
        ({"end": 4, "downstream": toward(b"garbage"), "head": False}, "malformed record"),
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
    _, reply = await client.open(node, end=4, head=False, downstream=toward(forged))
    assert isinstance(reply, Refused)
    assert "signature" in reply.reason
    await asyncio.sleep(61.0)
    _, reply = await client.open(node, end=4, head=False, downstream=toward(record))
    assert isinstance(reply, Refused)
    assert "expires in" in reply.reason
    await swarm.check_free()


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
    control, reply = await client.open(node, downstream=toward(signed(swarm, node, addresses=theirs)))
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
    control, reply = await client.open(node, downstream=toward(signed(swarm, node)))
    assert isinstance(reply, Accept)
    await asyncio.sleep(9.0)
    assert knocks == [Channel.LINK.protocol] * 2
    await control.send(Close())
    await swarm.check_free()


@pytest.mark.parametrize("changes", [{"start": 4}, {"start": 1, "end": 3}, {"model": "other@main#0123456789abcdef"}])
async def test_a_next_server_that_cannot_follow(swarm: Swarm, client: FakeClient, changes: dict[str, Any]) -> None:
    [node] = await swarm.serve("0:3")
    _, reply = await client.open(node, downstream=toward(signed(swarm, node, **changes)))
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
