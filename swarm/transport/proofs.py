"""Proofs as they travel: a file of evidence over one stream of its own, named by its digest, bounded both ways."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

from swarm.core.clock import Clock
from swarm.core.errors import (
    BadProofError,
    BusyError,
    ConfigError,
    PeerUnreachableError,
    ProtocolViolation,
    RefusedError,
)
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_HEADER_BYTES, MAX_PROOF_BYTES
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream, Transport
from swarm.wire.evidence import FetchProof, ProofPart
from swarm.wire.frames import Frame
from swarm.wire.messages import Busy, Refused
from swarm.wire.session import Channel, Role

PART_BYTES = 64 * 1024
MAX_SERVED_AT_ONCE = 4
"""Proofs handed out at a time, to different peers: each is held in memory meanwhile."""
BYTES_PER_S = 2 * 1024 * 1024
"""At most so fast each, and over time to one peer, however often it asks."""
LEAST_BYTES_PER_S = 256 * 1024
"""A holder that is slower than this does not want to be heard."""
BUSY_S = 5.0
REQUEST_S = 10.0
"""For the request to come."""
PART_S = 20.0
"""For each part, to be taken or to come."""
_REMEMBERED_PEERS = 1024

Find = Callable[[bytes], bytes | None]
"""The proof with this digest, if it is here. Called in a thread."""


class ProofServer:
    """Hands out proofs to whoever asks, a few at a time and not too fast, so that nobody is kept from better things."""

    def __init__(self, find: Find, clock: Clock) -> None:
        self._find = find
        self._clock = clock
        self._serving: set[PeerId] = set()
        self._rests_until_s: OrderedDict[PeerId, float] = OrderedDict()

    async def listen(self, transport: Transport) -> None:
        """Serve proofs on ``transport``; ``MisuseError`` if somebody does already."""
        await transport.listen(Channel.PROOF.protocol, self.serve)

    async def serve(self, stream: Stream) -> None:
        """One inbound stream: one request and its answer. Raises what breaks it."""
        frames = FrameStream(stream, Channel.PROOF, Role.LISTENER, max_frame_bytes=MAX_HEADER_BYTES)
        request = (await frames.receive_within(REQUEST_S, "request for a proof")).message
        if not isinstance(request, FetchProof):
            raise ProtocolViolation(f"{type(request).__name__} where a request for a proof belongs", peer=stream.peer)
        wait_s = self._wait_s(stream.peer)
        if wait_s > 0:
            await frames.send(Busy(wait_s, "handing out proofs to others, or enough to this peer"))
            return
        self._serving.add(stream.peer)
        try:
            proof = await asyncio.to_thread(self._find, request.digest)
            if proof is None:
                await frames.send(Refused("no such proof here"))
                return
            await self._hand_out(frames, proof)
        finally:
            self._serving.discard(stream.peer)

    def _wait_s(self, peer: PeerId) -> float:
        """How long ``peer`` should wait; 0 if it is its turn."""
        rests_s = self._rests_until_s.get(peer, 0.0) - self._clock.monotonic_s()
        if peer in self._serving or len(self._serving) >= MAX_SERVED_AT_ONCE:
            return max(rests_s, BUSY_S)
        return max(rests_s, 0.0)

    async def _hand_out(self, frames: FrameStream, proof: bytes) -> None:
        began_s = self._clock.monotonic_s()
        self._rests_until_s[frames.peer] = began_s + len(proof) / BYTES_PER_S
        self._rests_until_s.move_to_end(frames.peer)
        while len(self._rests_until_s) > _REMEMBERED_PEERS:
            self._rests_until_s.popitem(last=False)
        view = memoryview(proof)
        for start in range(0, len(proof), PART_BYTES):
            try:
                async with asyncio.timeout(PART_S):
                    await frames.send(ProofPart(len(proof)), view[start : start + PART_BYTES])
            except TimeoutError as error:
                raise PeerUnreachableError(f"peer {frames.peer[-8:]} does not take the proof it asked for") from error
            due_s = began_s + min(start + PART_BYTES, len(proof)) / BYTES_PER_S
            await self._clock.sleep(max(due_s - self._clock.monotonic_s(), 0.0))


async def fetch_proof(
    transport: Transport,
    peer: PeerId,
    digest: bytes,
    *,
    addresses: Sequence[str] = (),
    size: int,
    dial_s: float = 10.0,
) -> bytes:
    """The proof of ``size`` bytes whose SHA-256 is ``digest``, from its holder ``peer``.

    Takes ``dial_s`` at most to reach it, and for the rest what ``LEAST_BYTES_PER_S`` allow. Raises
    ``PeerUnreachableError`` or ``PeerLostError`` if it does not come or not whole, ``BusyError`` with when to ask
    again, ``RefusedError`` if the holder has no such proof, and ``ProtocolViolation`` or ``BadProofError``, which name
    the peer, if something else comes.
    """
    if not 0 < size <= MAX_PROOF_BYTES:
        raise ConfigError(f"a proof of {size} bytes", hint=f"at most {MAX_PROOF_BYTES}")
    stream = await transport.dial(peer, Channel.PROOF.protocol, addresses=addresses, timeout_s=dial_s)
    limit_s = PART_S + size / LEAST_BYTES_PER_S
    try:
        async with asyncio.timeout(limit_s):
            return await _receive(stream, digest, size)
    except TimeoutError as error:
        raise PeerUnreachableError(f"peer {peer[-8:]} did not send the proof within {limit_s:.0f} s") from error
    finally:
        await stream.close()


async def _receive(stream: Stream, digest: bytes, size: int) -> bytes:
    most = PART_BYTES + MAX_HEADER_BYTES
    frames = FrameStream(stream, Channel.PROOF, Role.DIALER, max_frame_bytes=most)
    await frames.send(FetchProof(digest))
    found = bytearray()
    while len(found) < size:
        part = _part(await frames.receive_within(PART_S, "part of the proof"), stream.peer, size)
        if not part or len(found) + len(part) > size:
            raise ProtocolViolation(f"{len(part)} bytes after {len(found)} of {size}", peer=stream.peer)
        found += part
    if hashlib.sha256(found).digest() != digest:
        raise BadProofError("sent another proof than the one that was asked for", peer=stream.peer)
    return bytes(found)


def _part(frame: Frame, peer: PeerId, size: int) -> memoryview | bytes:
    message = frame.message
    if isinstance(message, Busy):
        raise BusyError(f"peer {peer[-8:]} is busy: {message.reason}", retry_after_s=message.retry_after_s)
    if isinstance(message, Refused):
        raise RefusedError(f"peer {peer[-8:]} refused the proof: {message.reason}")
    if not isinstance(message, ProofPart) or message.total_bytes != size:
        raise ProtocolViolation(f"not a part of a proof of {size} bytes", peer=peer)
    return frame.payload
