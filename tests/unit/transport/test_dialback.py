"""Asking a hidden node to dial back, over the in-memory network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from swarm.core.errors import ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.dialback import (
    DIAL_BACK_PROTOCOL,
    FORGET_S,
    MAX_ASKED_ADDRESSES,
    MAX_REQUEST_BYTES,
    DialBack,
    own_addresses,
)
from swarm.transport.memory import MemoryNetwork

ASKER, HIDDEN = Identity(bytes([1] * 32)), Identity(bytes([2] * 32))
PUBLIC, LAN, LOOP = "/ip4/8.8.4.4/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/127.0.0.1/tcp/1"
CIRCUIT = "/p2p/12D3KooWRelay/p2p-circuit"


class FakeNode:
    """A transport as the dial-back sees it; notes what it is told to dial."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.direct = False
        self.streams_open = False
        self.dialled: list[Sequence[str]] = []

    def busy_with(self, peer: PeerId) -> bool:
        return self.streams_open

    async def is_direct(self, peer: PeerId) -> bool:
        return self.direct

    async def reconnect(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        self.dialled.append(tuple(addresses))


class Pair:
    def __init__(self, hidden: FakeNode) -> None:
        self.network = MemoryNetwork(VirtualClock())
        self.hidden, self.asker = hidden, FakeNode(PUBLIC)
        self.asking = DialBack(self.asker)

    async def __aenter__(self) -> Pair:
        await self.network.transport(HIDDEN).listen(DIAL_BACK_PROTOCOL, DialBack(self.hidden).answer)
        self.transport = self.network.transport(ASKER)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.network.close()

    async def send(self, body: bytes) -> bytes:
        stream = await self.transport.dial(HIDDEN.peer_id, DIAL_BACK_PROTOCOL)
        await stream.write(len(body).to_bytes(2, "big"), body)
        answer = await stream.read_exactly(1)
        await stream.close()
        for _ in range(20):
            await asyncio.sleep(0)
        return answer


@pytest.mark.parametrize(
    ("mine", "relays", "told"),
    [
        ([LOOP, LAN, PUBLIC], [PUBLIC + CIRCUIT], (PUBLIC,)),
        ([LOOP, LAN], [PUBLIC + CIRCUIT], ()),
        ([LOOP, LAN], [LAN + CIRCUIT], (LAN,)),
        ([LOOP, LAN], [LOOP + CIRCUIT], (LOOP, LAN)),
        ([LAN + CIRCUIT, PUBLIC + CIRCUIT], [LAN + CIRCUIT], ()),
        ([], [LAN + CIRCUIT], ()),
    ],
)
def test_only_addresses_that_may_work_are_told(mine: list[str], relays: list[str], told: tuple[str, ...]) -> None:
    assert own_addresses(mine, relays) == told


def test_never_more_than_the_bound() -> None:
    many = [f"/ip4/8.8.4.4/tcp/{port}" for port in range(1, 50)]
    assert len(own_addresses(many, [PUBLIC + CIRCUIT])) == MAX_ASKED_ADDRESSES


async def test_the_hidden_node_dials_what_it_was_told() -> None:
    async with Pair(FakeNode(PUBLIC + CIRCUIT)) as pair:
        assert await pair.send(msgspec.msgpack.encode((PUBLIC,))) == b"\x01"
        assert pair.hidden.dialled == [(PUBLIC,)]


async def test_a_node_on_the_internet_dials_no_private_address() -> None:
    async with Pair(FakeNode(PUBLIC + CIRCUIT)) as pair:
        assert await pair.send(msgspec.msgpack.encode((LAN, LOOP))) == b"\x00"
        assert pair.hidden.dialled == []


async def test_sessions_over_the_relay_are_not_torn_down() -> None:
    hidden = FakeNode(PUBLIC + CIRCUIT)
    hidden.streams_open = True
    async with Pair(hidden) as pair:
        await pair.send(msgspec.msgpack.encode((PUBLIC,)))
        assert hidden.dialled == []


class Scripted:
    """A stream that has so many bytes to give, in order."""

    peer = ASKER.peer_id

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read_exactly(self, count: int) -> bytes:
        assert count <= len(self.data), "more may not be read"
        taken, self.data = self.data[:count], self.data[count:]
        return taken


async def test_a_way_that_became_direct_meanwhile_is_left_alone() -> None:
    hidden = FakeNode(PUBLIC + CIRCUIT)
    hidden.direct = True
    async with Pair(hidden) as pair:
        await pair.send(msgspec.msgpack.encode((PUBLIC,)))
        assert hidden.dialled == []


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode([PUBLIC] * 9)])
async def test_malformed_requests_are_the_peers_fault(body: bytes) -> None:
    node = FakeNode(PUBLIC + CIRCUIT)
    with pytest.raises(ProtocolViolation):
        await DialBack(node).answer(Scripted(len(body).to_bytes(2, "big") + body))  # type: ignore[arg-type]
    assert node.dialled == []


async def test_an_absurd_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolViolation):
        await DialBack(FakeNode(PUBLIC)).answer(Scripted((MAX_REQUEST_BYTES + 1).to_bytes(2, "big")))  # type: ignore[arg-type]


async def test_a_peer_that_cannot_is_not_asked_again_for_a_while() -> None:
    async with Pair(FakeNode(PUBLIC + CIRCUIT)) as pair:
        stream = await pair.transport.dial(HIDDEN.peer_id, DIAL_BACK_PROTOCOL)
        assert not await pair.asking.ask(stream, [LAN], 100.0)
        assert not pair.asking.worth_asking(HIDDEN.peer_id, 101.0)
        assert pair.asking.worth_asking(HIDDEN.peer_id, 100.0 + FORGET_S)


async def test_asking_ends_once_the_way_is_direct() -> None:
    async with Pair(FakeNode(PUBLIC + CIRCUIT)) as pair:
        pair.asker.direct = True
        stream = await pair.transport.dial(HIDDEN.peer_id, DIAL_BACK_PROTOCOL)
        assert await pair.asking.ask(stream, [PUBLIC], 0.0)
        assert pair.asking.worth_asking(HIDDEN.peer_id, 0.0)
