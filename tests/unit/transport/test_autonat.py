"""AutoNAT's asking side, against messages that protobuf itself makes and reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import base58
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ProtocolViolation
from swarm.core.keys import Identity
from swarm.runtime.clock import SystemClock
from swarm.transport.autonat import (
    AUTONAT_PROTOCOL,
    MAX_ANSWER_BYTES,
    Outcome,
    ask_dial_back,
    read_answer,
    write_request,
)
from swarm.transport.memory import MemoryNetwork
from swarm.transport.multiaddr import to_bytes, varint
from swarm.transport.protocol import Stream

HERE, THERE = (Identity(bytes([n] * 32)) for n in (1, 2))


def message_class() -> Any:
    """The protocol's message as its specification has it."""
    file = descriptor_pb2.FileDescriptorProto(name="autonat.proto", package="autonat", syntax="proto2")
    varied, text, raw, nested = 5, 9, 12, 11  # int32, string, bytes, message
    for name, fields in {
        "PeerInfo": [("id", 1, raw, "", 1), ("addrs", 2, raw, "", 3)],
        "Dial": [("peer", 1, nested, ".autonat.PeerInfo", 1)],
        "DialResponse": [("status", 1, varied, "", 1), ("statusText", 2, text, "", 1), ("addr", 3, raw, "", 1)],
        "Message": [
            ("type", 1, varied, "", 1),
            ("dial", 2, nested, ".autonat.Dial", 1),
            ("dialResponse", 3, nested, ".autonat.DialResponse", 1),
        ],
    }.items():
        kind = file.message_type.add(name=name)
        for field, number, sort, of, label in fields:
            kind.field.add(name=field, number=number, type=sort, type_name=of or None, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("autonat.Message"))


Message = message_class()


def answer(status: int, text: str = "", address: str = "") -> bytes:
    response = {"status": status, "statusText": text, **({"addr": to_bytes(address)} if address else {})}
    data: bytes = Message(type=1, dialResponse=response).SerializeToString()
    return data


def test_the_request_is_what_the_specification_says() -> None:
    addresses = ["/ip4/127.0.0.1/tcp/31337", "/ip4/127.0.0.1/tcp/4001"]
    data = write_request(HERE.peer_id, addresses)
    size = len(data) - len(varint(len(data) - 2))
    read = Message.FromString(data[-size:])
    assert varint(size) + data[-size:] == data
    assert read.type == 0
    assert base58.b58encode(read.dial.peer.id).decode() == HERE.peer_id
    assert list(read.dial.peer.addrs) == [to_bytes(address) for address in addresses]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(0, Outcome.REACHED), (100, Outcome.FAILED), (101, Outcome.REFUSED), (200, Outcome.REFUSED), (7, Outcome.REFUSED)],
)
def test_each_answer(status: int, outcome: Outcome) -> None:
    found = read_answer(answer(status, "because", "/ip4/203.0.113.7/tcp/31337"))
    assert found.outcome is outcome
    assert found.address == ("/ip4/203.0.113.7/tcp/31337" if outcome is Outcome.REACHED else "")
    assert found.why == ("" if outcome is Outcome.REACHED else "because")


def test_a_strangers_words_are_one_short_line() -> None:
    found = read_answer(answer(100, "\x1b[2J" + "x" * 4000 + "\n"))
    assert found.why.isprintable()
    assert len(found.why) <= 210


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_a_violation(data: bytes) -> None:
    try:
        assert read_answer(data).outcome in Outcome
    except ProtocolViolation:
        return


@pytest.fixture
async def network() -> AsyncIterator[MemoryNetwork]:
    built = MemoryNetwork(SystemClock())
    yield built
    await built.close()


async def asked(network: MemoryNetwork, reply: Callable[[bytes], bytes] | None) -> Any:
    """What comes of asking a peer that sends ``reply`` to a request (None: it does not offer this)."""
    there = network.transport(THERE)

    async def serve(stream: Stream) -> None:
        assert reply is not None
        size = (await stream.read_exactly(1))[0]
        await stream.write(reply(await stream.read_exactly(size)))

    if reply is not None:
        await there.listen(AUTONAT_PROTOCOL, serve)
    return await ask_dial_back(network.transport(HERE), HERE.peer_id, THERE.peer_id, (), [31337])


async def test_a_peer_is_asked_about_our_port(network: MemoryNetwork) -> None:
    def reply(request: bytes) -> bytes:
        [address] = Message.FromString(request).dial.peer.addrs
        assert address == to_bytes("/ip4/127.0.0.1/tcp/31337")
        data = answer(0, address="/ip4/203.0.113.7/tcp/31337")
        return varint(len(data)) + data

    assert (await asked(network, reply)).outcome is Outcome.REACHED


@pytest.mark.parametrize(
    "reply",
    [
        lambda request: b"",
        lambda request: b"\x02\x08",
        lambda request: varint(3) + b"\xff\xff\xff",
        lambda request: varint(MAX_ANSWER_BYTES + 1) + bytes(MAX_ANSWER_BYTES + 1),
        lambda request: b"\xff\xff\xff\xff",
        None,
    ],
    ids=["nothing", "half", "no protobuf", "too long", "a length without end", "not offered"],
)
async def test_a_peer_that_does_not_answer_so_is_one_that_does_not_offer_it(
    reply: Callable[[bytes], bytes] | None, network: MemoryNetwork
) -> None:
    found = await asked(network, reply)
    assert found.outcome is Outcome.UNOFFERED
    assert found.why
