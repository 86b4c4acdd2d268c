"""Whom a hivemind node knows, and how it gets to know somebody again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.dht.hivemind_import import Multiaddr, PeerID, dht_pb2
from swarm.dht.options import DirectoryOptions

_REASON_CHARS = 200
_HOSTS = ("ip4", "ip6", "dns", "dns4", "dns6")


Call: TypeAlias = Callable[[Coroutine[Any, Any, Any], str], Awaitable[Any]]


class HivemindCircle:
    """A ``Circle`` and ``Times`` over ``node``.

    ``call`` waits for a call of hivemind's, within bounds; ``forget`` is called when others are known again.
    """

    def __init__(
        self, node: Any, clock: Clock, options: DirectoryOptions, call: Call, forget: Callable[[], None]
    ) -> None:
        self._node = node
        self._call = call
        self._clock = clock
        self._options = options
        self._forget = forget

    def known(self) -> frozenset[str]:
        """See ``Circle.known``."""
        return frozenset(peer.to_base58() for peer in self._node.protocol.routing_table.peer_id_to_uid)

    async def whereabouts(self) -> dict[str, tuple[str, ...]]:
        """See ``Circle.whereabouts``."""
        # Never cancelled, as in ``_connect``.
        listing = asyncio.ensure_future(self._node.protocol.p2p._client.list_peers())
        listing.add_done_callback(lambda done: done.cancelled() or done.exception())
        found = await asyncio.shield(listing)
        return {info.peer_id.to_base58(): tuple(map(str, info.addrs)) for info in found}

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        """See ``Circle.meet``."""
        try:
            return await self._meet(peer, addresses)
        except Exception as error:  # hivemind's and the daemon's errors have no common class
            return _line(error)

    async def _meet(self, peer: str, addresses: Sequence[str]) -> str:
        protocol = self._node.protocol
        if peer == protocol.p2p.peer_id.to_base58():
            return "this is the node itself"
        connected = peer in await self.whereabouts()
        if not connected and (why := await self._connect(peer, addresses)):
            return why
        node_id = await protocol.call_ping(whom := PeerID.from_base58(peer))
        if node_id is None:
            return self._silence if connected else "connected, but it is not a directory node"
        self._node.blacklist.register_success(whom)
        await protocol.update_routing_table(node_id, whom)  # call_ping does this later, in a task of its own
        return ""

    async def _connect(self, peer: str, addresses: Sequence[str]) -> str:
        """Open a connection; empty if it worked, else why not.

        libp2p waits longer after each failed dial, up to five minutes, and refuses to dial meanwhile; so it is asked
        only once a plain TCP connection has shown that somebody is there.
        """
        doors = [door_of(address) for address in addresses]
        if doors and None not in doors:
            reasons = await asyncio.gather(*(self._knock(*door) for door in doors if door is not None))
            if all(reasons):
                return reasons[0]
        where = [Multiaddr(address.partition(f"/p2p/{peer}")[0]) for address in addresses]
        # Never cancelled: hivemind would leave the socket of an abandoned connect open.
        connect = asyncio.ensure_future(self._node.protocol.p2p._client.connect(PeerID.from_base58(peer), where))
        connect.add_done_callback(lambda done: done.cancelled() or done.exception())
        finished, _ = await asyncio.wait({connect}, timeout=self._options.connect_timeout_s)
        if not finished:
            return f"no connection in {self._options.connect_timeout_s:.0f} s"
        return _line(error) if (error := connect.exception()) is not None else ""

    async def _knock(self, host: str, port: int) -> str:
        """Open a TCP connection and close it; empty if it worked, else why not."""
        try:
            async with asyncio.timeout(self._options.rpc_timeout_s):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return self._silence
        except OSError as error:
            number = error.errno or 0
            return os.strerror(number) if number > 0 else error.strerror or _line(error)
        writer.transport.abort()
        return ""

    @property
    def _silence(self) -> str:
        return f"no answer in {self._options.rpc_timeout_s:.0f} s"

    async def settle(self) -> None:
        """See ``Circle.settle``."""
        with suppress(NetworkError):
            await self._call(self._node.find_nearest_nodes([self._node.node_id]), "look for the others")

    async def offset_s(self, peer: str) -> float | None:
        """See ``Times.offset_s``."""
        protocol, limit_s = self._node.protocol, self._options.rpc_timeout_s
        request = dht_pb2.PingRequest(peer=protocol.node_info, validate=False)
        began_s, began_wall_s = self._clock.monotonic_s(), self._clock.wall_s()
        try:
            answer = await protocol.get_stub(PeerID.from_base58(peer)).rpc_ping(request, timeout=limit_s)
        except Exception:  # hivemind's and the daemon's errors have no common class; the next lookup will notice
            return None
        if not answer.dht_time:
            return None
        return float(answer.dht_time) - (began_wall_s + (self._clock.monotonic_s() - began_s) / 2)

    def returned(self) -> None:
        """See ``Circle.returned``: hivemind would go on ignoring who has not answered for up to as long again."""
        self._node.blacklist.clear()
        self._forget()


def door_of(address: str) -> tuple[str, int] | None:
    """Host and TCP port of a direct multiaddress; None for any other."""
    parts = address.split("/")
    if len(parts) < 5 or parts[1] not in _HOSTS or parts[3] != "tcp" or "p2p-circuit" in parts:
        return None
    return (parts[2], int(parts[4])) if parts[4].isdecimal() else None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[-_REASON_CHARS:] or repr(error)
