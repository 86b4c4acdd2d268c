"""A stream over libp2p: a unix socket on this side of the daemon, a multiplexed TCP connection on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swarm.core.errors import PeerLostError
from swarm.core.ids import PeerId
from swarm.transport.p2pd import hang_up

_JOIN_LIMIT_BYTES = 128 * 1024


class Libp2pStream:
    """See ``Stream``. ``forget`` is told of it once it is closed here; ``address`` is where it comes from, if known."""

    def __init__(
        self,
        peer: PeerId,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        forget: Callable[[Libp2pStream], None],
        address: str = "",
    ) -> None:
        self._peer = peer
        self.address = address
        self._reader = reader
        self._writer = writer
        self._forget = forget
        self._closing = False

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def read_exactly(self, count: int) -> bytes:
        """See ``Stream.read_exactly``."""
        try:
            return await self._reader.readexactly(count)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._lost() from error

    async def write(self, *parts: bytes | memoryview) -> None:
        """See ``Stream.write``."""
        if self._closing or self._writer.is_closing() or self._reader.at_eof():
            raise self._lost()
        if sum(len(part) for part in parts) <= _JOIN_LIMIT_BYTES:
            self._writer.write(b"".join(parts))  # one system call
        else:
            for part in parts:
                self._writer.write(part)
        try:
            await self._writer.drain()
        except OSError as error:
            raise self._lost() from error

    async def close(self) -> None:
        """See ``Stream.close``. What is written already still leaves, if the peer takes it within a second."""
        if self._closing:
            return
        self._closing = True
        self._forget(self)
        await hang_up(self._writer)

    def _lost(self) -> PeerLostError:
        if self._closing:
            return PeerLostError("the stream was closed here", peer=self._peer)
        return PeerLostError(f"peer {self._peer[-8:]} closed the stream or went away", peer=self._peer)
