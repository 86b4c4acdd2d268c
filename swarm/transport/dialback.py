"""A direct connection to a node that only a relay reaches: it is asked, through the relay, to dial back.

A relayed connection is for introductions only: the relay in hivemind's daemon was seen to cut it after two minutes
(between separate networks always, on loopback sometimes), whatever its flags said. A hidden node can still dial out, so
whoever is itself reachable gets a direct connection by asking for one; libp2p then prefers it for every later stream.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from swarm.core.errors import NetworkError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_ADDRESS_CHARS, PROTOCOL_MAJOR
from swarm.transport.addresses import is_loopback, is_public, is_relayed
from swarm.transport.protocol import Stream

DIAL_BACK_PROTOCOL = f"swarm.dialback.{PROTOCOL_MAJOR}"
MAX_ASKED_ADDRESSES = 8
MAX_REQUEST_BYTES = 4096
MAX_AT_ONCE = 8
"""Dials a node makes for others at one time: it can be used neither to scan nor to flood."""
ANSWER_TIMEOUT_S = 5.0
DIRECT_TIMEOUT_S = 6.0
POLL_S = 0.05
FORGET_S = 600.0
"""How long a peer that could not dial back is not asked again."""
_REMEMBERED_PEERS = 1024

_LENGTH = struct.Struct(">H")
_Addresses = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_CHARS)], ...], msgspec.Meta(max_length=MAX_ASKED_ADDRESSES)
]
_decoder = msgspec.msgpack.Decoder(_Addresses)


class Node(Protocol):
    """What the dial-back needs of the transport it belongs to."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    def busy_with(self, peer: PeerId) -> bool:
        """True if any stream to or from ``peer`` is open."""
        ...

    async def is_direct(self, peer: PeerId) -> bool: ...

    async def reconnect(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        """Drop every connection to ``peer`` and make a new one; ``NetworkError`` if it fails."""
        ...


def own_addresses(addresses: Sequence[str], relayed: Sequence[str]) -> tuple[str, ...]:
    """Which of our ``addresses`` a node behind the ``relayed`` ones may be able to dial; none if it is hopeless.

    Public ones always; private ones only if the relay is private too (one network), loopback ones only beside a relay
    on loopback.
    """
    direct = [address for address in addresses if not is_relayed(address)]
    usable = [address for address in direct if is_public(address)]
    if not any(map(is_public, relayed)):
        local = any(map(is_loopback, relayed))
        usable += [a for a in direct if not is_public(a) and (local or not is_loopback(a))]
    return tuple(dict.fromkeys(usable))[:MAX_ASKED_ADDRESSES]


class DialBack:
    """Both sides: asks hidden peers to dial back, and dials back for peers that ask."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._failed_s: OrderedDict[PeerId, float] = OrderedDict()
        self._dialling: set[PeerId] = set()

    def worth_asking(self, peer: PeerId, now_s: float) -> bool:
        """False if ``peer`` could not dial back a short while ago."""
        return now_s - self._failed_s.get(peer, -FORGET_S) >= FORGET_S

    async def ask(self, stream: Stream, addresses: Sequence[str], now_s: float) -> bool:
        """Ask the peer of ``stream`` to dial us at ``addresses``, and wait for it; True once the way is direct."""
        peer = stream.peer
        body = msgspec.msgpack.encode(tuple(addresses))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await stream.write(_LENGTH.pack(len(body)), body)
                willing = await stream.read_exactly(1) == b"\x01"
        except (NetworkError, TimeoutError):
            willing = False
        finally:
            await stream.close()
        if willing and await self._becomes_direct(peer):
            return True
        self._failed_s[peer] = now_s
        while len(self._failed_s) > _REMEMBERED_PEERS:
            self._failed_s.popitem(last=False)
        return False

    async def _becomes_direct(self, peer: PeerId) -> bool:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + DIRECT_TIMEOUT_S
        while loop.time() < until_s:
            if await self._node.is_direct(peer):
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def answer(self, stream: Stream) -> None:
        """Serve one request: agree if it makes sense, then drop the relayed connection and dial the asker."""
        peer = stream.peer
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            (size,) = _LENGTH.unpack(await stream.read_exactly(_LENGTH.size))
            if size > MAX_REQUEST_BYTES:
                raise ProtocolViolation(f"dial-back request of {size} bytes", peer=peer)
            try:
                wanted = _decoder.decode(await stream.read_exactly(size))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProtocolViolation("malformed dial-back request", peer=peer) from error
        usable = own_addresses(wanted, self._node.addresses)
        willing = bool(usable) and peer not in self._dialling and len(self._dialling) < MAX_AT_ONCE
        await stream.write(b"\x01" if willing else b"\x00")
        if not willing:
            return
        self._dialling.add(peer)
        try:
            await _await_end(stream)
            await stream.close()
            # Sessions that run over the relay already stay undisturbed, and so does a way that became direct meanwhile.
            if not self._node.busy_with(peer) and not await self._node.is_direct(peer):
                await self._node.reconnect(peer, usable, ANSWER_TIMEOUT_S)
        finally:
            self._dialling.discard(peer)


async def _await_end(stream: Stream) -> None:
    """Wait until the asker has read the answer and hung up, or has had time to."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await stream.read_exactly(1)
    except (NetworkError, TimeoutError):
        return
