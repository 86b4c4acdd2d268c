"""Who may not fetch, and who asks for too much: refused with the reason, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from fakes import FakeClient, refused
from fetches import AUDIT_SECRET, PROMPT, Want, closed, fetching, request
from harness import Swarm
from signed_chain import SignedChain

from swarm.core.errors import PeerLostError
from swarm.server.record import fetching as limits
from swarm.verification.challenges.commitment import commit
from swarm.wire.evidence import FetchedRows, FetchProof, FetchRows
from swarm.wire.frames import encode_head
from swarm.wire.messages import Busy, Noop, Refused
from swarm.wire.session import Channel


async def answer(client: FakeClient, node: Any, message: FetchRows) -> Any:
    stream = await fetching(client, node)
    await stream.send(message)
    return (await stream.receive()).message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"secret": bytes(32)}, "secret"),
        ({"session": bytes(16)}, "nothing is kept"),
        ({"stage": 7}, "nothing is kept"),
        ({"last": 151}, "rows up to 151 of a session that ended with 150"),
        ({"first": 10**6, "last": 10**6 + 1}, "ended with 150"),
    ],
)
async def test_what_is_not_there_is_refused(
    swarm: Swarm, client: FakeClient, changes: dict[str, Any], why: str
) -> None:
    signed = await closed(swarm, client, await swarm.serve("0:5"))
    wants: tuple[Want, ...] = ("leaves", "outputs")
    for want in wants:
        reply = await answer(
            client, signed.tail.node, msgspec.structs.replace(request(signed.tail, 0, 32, want), **changes)
        )
        assert isinstance(reply, Refused), reply
        assert why in reply.reason
    assert isinstance(await answer(client, signed.tail.node, request(signed.tail, 0, 32)), FetchedRows)


async def test_nobody_elses_session(swarm: Swarm, client: FakeClient) -> None:
    """Not even with the right secret: it is the authenticated peer that counts."""
    signed = await closed(swarm, client, await swarm.serve("0:5"))
    thief = FakeClient(swarm)
    reply = await answer(thief, signed.tail.node, request(signed.tail, 0, 32))
    assert isinstance(reply, Refused)
    assert "never yours" in reply.reason
    await thief.close()


async def test_nothing_of_a_session_that_goes_on(swarm: Swarm, client: FakeClient) -> None:
    """Its secret would tell the server which windows are looked at, before it has signed them."""
    signed = await SignedChain(client, await swarm.serve("0:5"), commitment=commit(AUDIT_SECRET)).open()
    await signed.prompt(PROMPT)
    await signed.settle()
    reply = await answer(client, signed.tail.node, request(signed.tail, 0, 32))
    assert isinstance(reply, Refused)
    assert "not over" in reply.reason


@pytest.mark.parametrize("junk", [b"\0" * 64, encode_head(Noop()), encode_head(FetchProof(bytes(32))), b"\xff" * 2000])
async def test_junk_ends_the_stream(swarm: Swarm, client: FakeClient, junk: bytes) -> None:
    signed = await closed(swarm, client, await swarm.serve("0:5"))
    stream = await client.raw(signed.tail.node, Channel.FETCH)
    await stream.write(junk)
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert isinstance(await answer(client, signed.tail.node, request(signed.tail, 0, 32)), FetchedRows)


async def test_a_stream_that_asks_for_nothing_is_closed(swarm: Swarm, client: FakeClient) -> None:
    """At once if there are many, after ten seconds otherwise; also between two requests."""
    signed = await closed(swarm, client, await swarm.serve("0:5"))
    node = signed.tail.node
    silent = await fetching(client, node)
    asked = await fetching(client, node)
    await asked.send(request(signed.tail, 0, 32))
    assert isinstance((await asked.receive()).message, FetchedRows)
    began_s = swarm.clock.monotonic_s()
    assert await refused(silent)
    assert await refused(asked)
    assert 9.0 < swarm.clock.monotonic_s() - began_s < 11.0


async def test_too_many_streams_are_told_so_or_cut(swarm: Swarm, client: FakeClient) -> None:
    """Half-open streams of one client leave room for the others'."""
    nodes = await swarm.serve("0:5")
    signed = await closed(swarm, client, nodes)
    other = FakeClient(swarm)
    theirs = await closed(swarm, other, nodes)
    streams = [await fetching(client, nodes[0]) for _ in range(3 * limits.MAX_STREAMS_PER_PEER)]
    await swarm.quiet()
    told = streams[limits.MAX_STREAMS_PER_PEER : 2 * limits.MAX_STREAMS_PER_PEER]
    for stream in told:
        await stream.send(request(signed.tail, 0, 32))
        reply = (await stream.receive()).message
        assert isinstance(reply, Busy)
        assert reply.retry_after_s > 0
    for stream in streams[2 * limits.MAX_STREAMS_PER_PEER :]:
        assert await refused(stream)
    assert isinstance(await answer(other, nodes[0], request(theirs.tail, 0, 32)), FetchedRows)
    for stream in streams[: limits.MAX_STREAMS_PER_PEER]:
        await stream.send(request(signed.tail, 0, 32))
        assert isinstance((await stream.receive()).message, FetchedRows)
    await other.close()


async def test_a_flood_of_requests_is_answered_at_a_bounded_rate(
    swarm: Swarm, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all of a client's streams together; another one has its own share."""
    [node] = await swarm.serve("0:5")
    signed = await closed(swarm, client, [node])
    other = FakeClient(swarm)
    theirs = await closed(swarm, other, [node])
    fetcher = node.server._serving.fetching
    fetcher._each, fetcher._all = limits.Throttle(20_000.0, 1.0), limits.Throttle(40_000.0, 1.0)
    payload_bytes = 0
    began_s = swarm.clock.monotonic_s()

    async def flood() -> None:
        nonlocal payload_bytes
        stream = await fetching(client, node)
        for _ in range(10):
            await stream.send(request(signed.tail, 0, 128, "outputs"))
        for _ in range(10):
            frame = await stream.receive()
            payload_bytes += len(frame.payload)

    floods = [asyncio.create_task(flood()) for _ in range(3)]
    await swarm.quiet()
    asked_s = swarm.clock.monotonic_s()
    assert isinstance(await answer(other, node, request(theirs.tail, 0, 32, "outputs")), FetchedRows)
    assert swarm.clock.monotonic_s() - asked_s < 2.5, "it does not wait for the flood to end"
    await asyncio.gather(*floods)
    took_s = swarm.clock.monotonic_s() - began_s
    assert payload_bytes == 30 * 128 * 32 * 4
    assert took_s >= payload_bytes / 20_000.0 - 1.0 - 0.01
    await other.close()


async def test_rows_that_are_dropped_while_they_are_fetched_still_come(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5")
    signed = await closed(swarm, client, [node])
    fetcher = node.server._serving.fetching
    fetcher._each = limits.Throttle(3_000.0, 1.0)
    stream = await fetching(client, node)
    await stream.send(request(signed.tail, 0, 150, "outputs"))
    await swarm.quiet()
    assert node.server._serving.reception.shelf.drop_one()
    rows = 0
    while rows < 150:
        message = (await stream.receive()).message
        assert isinstance(message, FetchedRows)
        rows += message.rows
    assert isinstance(await answer(client, node, request(signed.tail, 0, 32)), Refused)
