"""Ask a peer whether strangers reach us: libp2p's AutoNAT (version 1), of which this is the asking side.

The peer dials the address that it sees us at, with the ports we name, from another peer id than the one we know it by,
and says whether that worked. It only ever dials the address of whoever asks, and refuses private ones. Source:
github.com/libp2p/specs, autonat/autonat-v1.md. A peer answers a few times a minute and is a stranger: its word is worth
a hint to the owner of this machine and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import base58

from swarm.core.errors import NetworkError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.text import clip
from swarm.transport.multiaddr import to_bytes, to_text, varint
from swarm.transport.protocol import Stream, Transport

AUTONAT_PROTOCOL = "/libp2p/autonat/1.0.0"
MAX_ANSWER_BYTES = 4096
MAX_REASON_CHARS = 200
DIAL_BACK_S = 20.0
"""The peer gives its dial 15 s."""
_OK, _DIAL_ERROR = 0, 100
_DIAL, _DIAL_RESPONSE = 0, 1


class Outcome(Enum):
    """What came of it."""

    REACHED = "reached"
    FAILED = "failed"
    REFUSED = "refused"
    """The peer would not try: our address is private as it sees it, or it has been asked too often."""
    UNOFFERED = "unoffered"
    """The peer does not do this, or cannot be asked."""


@dataclass(frozen=True, slots=True)
class DialedBack:
    """A peer's answer: ``address`` is where it reached us, ``why`` its words if it did not."""

    outcome: Outcome
    address: str = ""
    why: str = ""


async def ask_dial_back(
    transport: Transport, own: PeerId, peer: PeerId, addresses: Sequence[str], ports: Sequence[int]
) -> DialedBack:
    """Ask ``peer``, at ``addresses``, to dial this node at TCP ``ports`` of whatever address it sees us at.

    Never raises a network's or a peer's fault: that is an ``UNOFFERED``.
    """
    try:
        stream = await transport.dial(peer, AUTONAT_PROTOCOL, addresses=addresses)
    except NetworkError as error:
        return DialedBack(Outcome.UNOFFERED, why=error.message)
    try:
        async with asyncio.timeout(DIAL_BACK_S):
            await stream.write(write_request(own, [f"/ip4/127.0.0.1/tcp/{port}" for port in ports]))
            return read_answer(await _read_delimited(stream))
    except TimeoutError:
        return DialedBack(Outcome.UNOFFERED, why=f"no answer in {DIAL_BACK_S:.0f} s")
    except (NetworkError, ProtocolViolation) as error:
        return DialedBack(Outcome.UNOFFERED, why=error.message)
    finally:
        await stream.close()


def write_request(own: PeerId, addresses: Sequence[str]) -> bytes:
    """A DIAL message with its length before it; the addresses' hosts do not count, the peer puts in what it sees."""
    info = _field(1, base58.b58decode(own)) + b"".join(_field(2, to_bytes(address)) for address in addresses)
    message = varint(1 << 3) + varint(_DIAL) + _field(2, _field(1, info))
    return varint(len(message)) + message


def read_answer(message: bytes) -> DialedBack:
    """What a DIAL_RESPONSE says. ``ProtocolViolation`` if it is none."""
    answer = dict(_fields(message))
    response = answer.get(3)
    if answer.get(1) != _DIAL_RESPONSE or not isinstance(response, bytes):
        raise ProtocolViolation("no answer of AutoNAT's")
    said = dict(_fields(response))
    status, reason, address = said.get(1, _OK), said.get(2, b""), said.get(3, b"")
    why = clip(reason.decode("utf-8", errors="replace"), MAX_REASON_CHARS) if isinstance(reason, bytes) else ""
    if status == _OK:
        return DialedBack(Outcome.REACHED, (to_text(address) or "") if isinstance(address, bytes) else "")
    return DialedBack(Outcome.FAILED if status == _DIAL_ERROR else Outcome.REFUSED, why=why)


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and byte strings of a protobuf message; ``ProtocolViolation`` for anything else in it."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        value, at = _number(message, at)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2 and value <= len(message) - at:
            yield key >> 3, message[at : at + value]
            at += value
        else:
            raise ProtocolViolation("malformed protobuf")


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 63, 7):
        if at >= len(message):
            break
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ProtocolViolation("malformed protobuf")


async def _read_delimited(stream: Stream) -> bytes:
    size = 0
    for shift in (0, 7):
        byte = (await stream.read_exactly(1))[0]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or size > MAX_ANSWER_BYTES:
        raise ProtocolViolation("an answer without an end")
    return await stream.read_exactly(size)
