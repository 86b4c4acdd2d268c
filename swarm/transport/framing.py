"""Frames over a byte stream, with the stream's state machine watching both directions."""

from __future__ import annotations

import asyncio

from swarm.core.errors import PeerUnreachableError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_FRAME_BYTES
from swarm.transport.protocol import Stream
from swarm.wire.frames import PREFIX_BYTES, Frame, encode_head, parse_message, parse_prefix
from swarm.wire.messages import Message
from swarm.wire.session import Channel, Phase, Role, StreamMachine


class FrameStream:
    """One end of a control or link stream. Sends and receives whole frames; several tasks may send."""

    def __init__(
        self, stream: Stream, channel: Channel, role: Role, *, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._stream = stream
        self._machine = StreamMachine(channel, role)
        self._max_frame_bytes = max_frame_bytes
        self._sending = asyncio.Lock()

    @property
    def peer(self) -> PeerId:
        return self._stream.peer

    @property
    def phase(self) -> Phase:
        return self._machine.phase

    async def send(self, message: Message, *payload: bytes | memoryview) -> None:
        """Write one frame whose payload is the parts in order.

        Raises ``MisuseError`` if the protocol forbids it now, ``PeerLostError`` if the stream is gone.
        """
        head = encode_head(message, sum(len(part) for part in payload))
        async with self._sending:
            self._machine.sent(message)
            await self._stream.write(head, *payload)

    async def receive(self) -> Frame:
        """The next frame that the state machine does not drop.

        Raises ``ProtocolViolation`` (which names the peer) for bad bytes or order, ``PeerLostError`` at the end.
        """
        try:
            while True:
                prefix = await self._stream.read_exactly(PREFIX_BYTES)
                header_bytes, payload_bytes = parse_prefix(prefix, max_frame_bytes=self._max_frame_bytes)
                message = parse_message(await self._stream.read_exactly(header_bytes))
                payload = await self._stream.read_exactly(payload_bytes) if payload_bytes else b""
                if self._machine.received(message):
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
