"""How a server is, asked over a stream: once, or again and again over one that stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarm.core.errors import (
    BusyError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolViolation,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_HEADER_BYTES
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream, Transport
from swarm.wire.messages import Busy, Message, Refused
from swarm.wire.session import Channel, Role
from swarm.wire.status import AskStatus, StatusReport

ANSWER_S = 8.0
"""For a report to come once it was asked for."""
DIAL_S = 10.0


async def ask_status(
    transport: Transport, peer: PeerId, *, addresses: Sequence[str] = (), dial_s: float = DIAL_S
) -> StatusReport:
    """What ``peer`` tells of itself, asked over a stream of its own; takes ``dial_s`` and ``ANSWER_S`` at most.

    Raises what ``StatusLine.open`` and ``StatusLine.ask`` raise.
    """
    line = await StatusLine.open(transport, peer, addresses=addresses, dial_s=dial_s)
    try:
        return await line.ask()
    finally:
        await line.close()


class StatusLine:
    """A status stream that stays open. Its end is noticed at once, whether or not somebody waits for an answer.

    Made by ``open``; whoever opened it closes it.
    """

    def __init__(self, stream: Stream) -> None:
        self._frames = FrameStream(stream, Channel.STATUS, Role.DIALER, max_frame_bytes=2 + MAX_HEADER_BYTES)
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[Message] | None = None
        self._end: asyncio.Future[SwarmError] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen(), name=f"status of {stream.peer[-8:]}")

    @classmethod
    async def open(
        cls, transport: Transport, peer: PeerId, *, addresses: Sequence[str] = (), dial_s: float = DIAL_S
    ) -> StatusLine:
        """Dial ``peer``; ``PeerUnreachableError`` if that fails or takes longer than ``dial_s``. Asks nothing yet."""
        return cls(await transport.dial(peer, Channel.STATUS.protocol, addresses=addresses, timeout_s=dial_s))

    @property
    def peer(self) -> PeerId:
        return self._frames.peer

    @property
    def address(self) -> str:
        """See ``Stream.address``."""
        return self._frames.address

    @property
    def is_open(self) -> bool:
        return not self._end.done()

    async def ended(self) -> SwarmError:
        """Return once the line has ended, with what ended it; its own ``close`` counts as ``PeerLostError``."""
        return await asyncio.shield(self._end)

    async def ask(self) -> StatusReport:
        """One report; who else asks meanwhile waits for his turn.

        Raises ``BusyError``, with when to ask again, if this peer was asked too often; unless the server then hangs up
        the line stays open. Whatever else is raised has ended it: ``RefusedError`` if the server tells nobody,
        ``PeerLostError`` if it has gone, ``PeerUnreachableError`` if it does not answer within ``ANSWER_S``, and
        ``ProtocolViolation``, which names the peer, for anything that is no answer.
        """
        async with self._turn:
            if self._end.done():
                raise self._end.result()
            answer = self._answer = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._frames.send(AskStatus())
                    return self._report(await answer)
            except TimeoutError:
                raise self._over(
                    PeerUnreachableError(f"peer {self.peer[-8:]} did not say how it is within {ANSWER_S:g} s")
                ) from None
            except asyncio.CancelledError:
                self._over(PeerLostError("an answer that nobody waits for any more", peer=self.peer))
                raise
            except PeerLostError as error:
                raise self._over(error) from error.__cause__
            finally:
                self._answer = None

    async def close(self) -> None:
        """Hang up. Idempotent."""
        self._over(PeerLostError(f"the line to {self.peer[-8:]} was closed here", peer=self.peer))
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._frames.close()

    def _report(self, message: Message) -> StatusReport:
        peer = self.peer
        if isinstance(message, Busy):
            raise BusyError(f"peer {peer[-8:]} is busy: {message.reason}", retry_after_s=message.retry_after_s)
        if not isinstance(message, StatusReport):
            raise self._over(ProtocolViolation(f"{type(message).__name__} where a report belongs", peer=peer))
        return message

    async def _listen(self) -> None:
        """Hand each answer to whoever waits for it, until the stream ends or says what nobody asked for."""
        try:
            while True:
                message = (await self._frames.receive()).message
                if self._answer is None or self._answer.done():
                    raise ProtocolViolation("says how it is, unasked", peer=self.peer)
                if isinstance(message, Refused):
                    raise RefusedError(f"peer {self.peer[-8:]} does not say how it is: {message.reason}")
                self._answer.set_result(message)
        except SwarmError as error:
            self._over(error)
        finally:
            await self._frames.close()

    def _over(self, error: SwarmError) -> SwarmError:
        """The line has ended: what ended it, which is ``error`` unless something else has before."""
        if not self._end.done():
            self._end.set_result(error)
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(error)
                self._answer.exception()  # marks it as seen: whoever asks may still be sending
            if asyncio.current_task() is not self._listening:
                self._listening.cancel()
        return self._end.result()
