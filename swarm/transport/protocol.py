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

    @property
    def address(self) -> str:
        """Where the other end is, as a multiaddress; empty if that is not known."""
        ...

    async def read_exactly(self, count: int) -> bytes:
        """The next ``count`` bytes; ``PeerLostError`` if the stream ends or breaks first.

        Cancelled, it takes nothing: the bytes are there for the next call. One reader at a time. The caller bounds
        ``count``.
        """
        ...

    async def write(self, *parts: bytes | memoryview) -> None:
        """Send the parts in order (memoryviews of single bytes); waits while the send buffer is full.

        Either all parts enter the buffer or, with ``PeerLostError`` because the stream is gone, none; cancelling the
        wait takes nothing back. That the peer has gone may show only at the write after the next read of the loop:
        success never means that the peer got the bytes.
        """
        ...

    async def close(self) -> None:
        """Close both directions; idempotent, never raises.

        What was written still arrives if the peer reads; after it the other end's ``read_exactly`` raises, and so
        does its ``write``. Unread bytes are dropped. A ``read_exactly`` waiting on this end raises.
        """
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
        """Serve inbound streams of ``protocol``; each handler runs in its own task.

        A handler that raises loses its own stream and nothing else. Streams over a fixed number, in all or per peer,
        are closed at once. ``MisuseError`` if ``protocol`` has a handler already.
        """
        ...

    async def dial(
        self, peer: PeerId, protocol: str, *, addresses: Sequence[str] = (), timeout_s: float = 10.0
    ) -> Stream:
        """Open a stream; ``PeerUnreachableError`` (names the peer, says why) if it fails or takes too long.

        With ``addresses`` the peer is looked for there and nowhere else, unless a connection is up already; without
        any, the transport must know the peer. Nobody can dial himself.
        """
        ...

    async def close(self) -> None:
        """Cancel every handler, close every stream and stop listening. Idempotent; waits for all of it."""
        ...
