"""What the rest of the house knows of the network: ordered byte streams between authenticated peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from swarm.core.ids import PeerId


class Stream(Protocol):
    """One ordered, reliable, bidirectional byte stream. Its two directions fail together."""

    @property
    def peer(self) -> PeerId:
        """The other end, as the transport authenticated it."""
        ...

    async def read_exactly(self, count: int) -> bytes:
        """The next ``count`` bytes; ``PeerLostError`` if the stream ends or breaks first."""
        ...

    async def write(self, *parts: bytes | memoryview) -> None:
        """Send the parts in order; waits while the send buffer is full. ``PeerLostError`` if the stream is gone."""
        ...

    async def close(self) -> None:
        """Close both directions; the other end's ``read_exactly`` raises. Idempotent, never raises."""
        ...


StreamHandler = Callable[[Stream], Awaitable[None]]
"""Called for each inbound stream; the stream is closed when it returns."""


class Transport(Protocol):
    """Streams to and from other peers, by named protocol."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Multiaddresses others may dial, each without its ``/p2p/`` part."""
        ...

    async def listen(self, protocol: str, handler: StreamHandler) -> None:
        """Serve inbound streams of ``protocol``; each handler runs in its own task."""
        ...

    async def dial(
        self, peer: PeerId, protocol: str, *, addresses: Sequence[str] = (), timeout_s: float = 10.0
    ) -> Stream:
        """Open a stream; ``PeerUnreachableError`` (names the peer, says why) if it fails or takes too long."""
        ...

    async def close(self) -> None:
        """Close every stream and stop listening. Idempotent."""
        ...
