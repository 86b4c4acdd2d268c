"""Frames over a byte stream, with the stream's state machine watching both directions."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from swarm.core.errors import PeerLostError, PeerUnreachableError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_FRAME_BYTES
from swarm.transport.protocol import Stream
from swarm.transport.uplink import UplinkMeter
from swarm.wire.frames import PREFIX_BYTES, Frame, encode_head, parse_message, parse_prefix
from swarm.wire.messages import Message
from swarm.wire.session import Channel, Phase, Role, StreamMachine

_DISCARD_BYTES = 64 * 1024
_BREATH_FRAMES = 16
"""A read of what has come already never waits: after so many frames, whoever else has work in the loop gets a turn."""


class FrameStream:
    """One end of a control or link stream. Sends and receives whole frames; several tasks may send, one receives.

    ``receive`` may be cancelled and called again: it goes on where it was, even in the middle of a frame. ``uplink``,
    if given, measures what is sent.
    """

    def __init__(
        self,
        stream: Stream,
        channel: Channel,
        role: Role,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        uplink: UplinkMeter | None = None,
    ) -> None:
        self._stream = stream
        self._uplink = uplink
        self._machine = StreamMachine(channel, role)
        self._max_frame_bytes = max_frame_bytes
        self._sending = asyncio.Lock()
        self._frames = 0
        # The frame being read: (header bytes, payload bytes) once known, then its message and whether it counts.
        self._lengths: tuple[int, int] | None = None
        self._judged: tuple[Message, bool] | None = None

    @property
    def peer(self) -> PeerId:
        return self._stream.peer

    @property
    def address(self) -> str:
        """See ``Stream.address``."""
        return self._stream.address

    @property
    def phase(self) -> Phase:
        return self._machine.phase

    def limit_frames(self, max_frame_bytes: int) -> None:
        """From the next frame on take none above this many bytes, nor above the wire's own limit."""
        self._max_frame_bytes = min(max_frame_bytes, MAX_FRAME_BYTES)

    async def send(self, message: Message, *payload: bytes | memoryview) -> None:
        """Write one frame whose payload is the parts in order (memoryviews of any C-contiguous shape).

        Raises ``MisuseError`` if the protocol forbids it now, ``PeerLostError`` if the stream is gone or the peer
        has closed the session.
        """
        parts = [_flat(part) for part in payload]
        payload_bytes = sum(len(part) for part in parts)
        head = encode_head(message, payload_bytes)
        async with self._sending:
            if self._machine.closed_by_peer:
                raise PeerLostError(f"peer {self.peer[-8:]} has closed the session", peer=self.peer)
            self._machine.sent(message)
            with self._uplink.sending(len(head) + payload_bytes) if self._uplink is not None else nullcontext():
                await self._stream.write(head, *parts)

    async def receive(self) -> Frame:
        """The next frame that the state machine does not drop.

        Raises ``ProtocolViolation`` (which names the peer) for bad bytes or order, before any payload is read, and
        ``PeerLostError`` at the end of the stream.
        """
        try:
            while True:
                self._frames += 1
                if self._frames % _BREATH_FRAMES == 0:
                    await asyncio.sleep(0)
                message, counts = await self._read_head()
                payload = await self._read_payload(keep=counts)
                if counts:
                    return Frame(message, payload)
        except ProtocolViolation as error:
            raise ProtocolViolation(error.message, peer=self.peer) from error

    async def receive_within(self, timeout_s: float, what: str) -> Frame:
        """Like ``receive``, but ``PeerUnreachableError`` if nothing came within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self.receive()
        except TimeoutError as error:
            raise PeerUnreachableError(f"peer {self.peer[-8:]} sent no {what} within {timeout_s:g} s") from error

    async def close(self) -> None:
        await self._stream.close()

    async def _read_head(self) -> tuple[Message, bool]:
        if self._lengths is None:
            prefix = await self._stream.read_exactly(PREFIX_BYTES)
            self._lengths = parse_prefix(prefix, max_frame_bytes=self._max_frame_bytes)
        if self._judged is None:
            header_bytes, payload_bytes = self._lengths
            message = parse_message(await self._stream.read_exactly(header_bytes), payload_bytes)
            self._judged = message, self._machine.received(message)
        return self._judged

    async def _read_payload(self, *, keep: bool) -> bytes:
        header_bytes, left = self._lengths or (0, 0)
        while left > _DISCARD_BYTES and not keep:
            await self._stream.read_exactly(_DISCARD_BYTES)
            left -= _DISCARD_BYTES
            self._lengths = header_bytes, left
        payload = await self._stream.read_exactly(left) if left else b""
        self._lengths = self._judged = None
        return payload


def _flat(part: bytes | memoryview) -> bytes | memoryview:
    """``part`` as single bytes, so that ``len`` counts bytes whatever array a view looks at."""
    if isinstance(part, memoryview) and (part.itemsize != 1 or part.ndim != 1):
        return part.cast("B") if part.nbytes else b""
    return part
