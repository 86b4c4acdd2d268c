"""Asking a server for what it kept of a closed session of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from swarm.client.auditing.rows import RowForm, by_rows
from swarm.client.chains.member import dial
from swarm.client.plan import StagePlan
from swarm.core.errors import BusyError, PeerUnreachableError, ProtocolViolation, RefusedError
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.verification.signed.leaves import LEAF_BYTES, TAIL_LEAF_BYTES
from swarm.wire.evidence import FetchedRows, FetchRows
from swarm.wire.messages import Busy, Refused
from swarm.wire.payload import ID_BYTES
from swarm.wire.session import Channel

DIAL_S = 10.0
FRAME_S = 15.0
"""How long a server may take to send the next part of what was asked."""
SLOWEST_BYTES_PER_S = 64 * 1024
"""And how slow it may be on the whole."""

Want = Literal["leaves", "outputs", "sent"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Of whom what is asked: one stage of one session, and the secret that shows that the client may."""

    plan: StagePlan
    session: bytes
    stage: int
    secret: bytes


class Fetching:
    """One fetch stream. ``byte_count`` has come so far. One request at a time.

    Every request raises ``BusyError`` or ``RefusedError`` for the server's own word, ``ProtocolViolation`` for what
    was not asked, another ``NetworkError`` if it is not there or too slow.
    """

    def __init__(self, stream: FrameStream, kept: Kept) -> None:
        self.byte_count = 0
        self._stream = stream
        self._kept = kept

    async def leaves(self, first: int, last: int) -> list[bytes]:
        """The canonical bytes of each leaf, as many as asked for."""
        found: list[bytes] = []
        for message, payload in await self._fetch("leaves", first, last, TAIL_LEAF_BYTES):
            found += _split_leaves(payload, message.rows)
        return found

    async def outputs(self, first: int, last: int, form: RowForm) -> bytes:
        """The rows as computed, one after the other; ``form`` is raw."""
        return await self._rows("outputs", first, last, form)

    async def sent(self, first: int, last: int, form: RowForm) -> bytes:
        """The rows as they went to the next server, one after the other, without the ids that rode along."""
        return await self._rows("sent", first, last, form)

    async def _rows(self, want: Want, first: int, last: int, form: RowForm) -> bytes:
        parts = []
        for message, payload in await self._fetch(want, first, last, form.row_bytes + ID_BYTES):
            ids_bytes = message.rows * ID_BYTES if message.ids else 0
            if len(payload) != ids_bytes + message.rows * form.row_bytes:
                raise ProtocolViolation(f"{message.rows} rows in {len(payload)} bytes", peer=self._stream.peer)
            parts.append(by_rows(memoryview(payload)[ids_bytes:], form))
        return b"".join(parts)

    async def _fetch(self, want: Want, first: int, last: int, row_bytes: int) -> list[tuple[FetchedRows, bytes]]:
        kept, rows = self._kept, last - first
        limit_s = FRAME_S + rows * row_bytes / SLOWEST_BYTES_PER_S
        await self._stream.send(FetchRows(kept.session, kept.stage, kept.secret, first, last, want))
        found: list[tuple[FetchedRows, bytes]] = []
        try:
            async with asyncio.timeout(limit_s):
                while first < last:
                    message, payload = await self._part(want)
                    if message.first != first or first + message.rows > last:
                        raise ProtocolViolation(f"rows from {message.first} where {first} comes next")
                    if len(payload) > message.rows * row_bytes:
                        raise ProtocolViolation(f"{message.rows} rows in {len(payload)} bytes")
                    first += message.rows
                    self.byte_count += len(payload)
                    found.append((message, payload))
        except TimeoutError as error:
            raise PeerUnreachableError(f"{rows} rows did not come within {limit_s:.0f} s") from error
        return found

    async def _part(self, want: Want) -> tuple[FetchedRows, bytes]:
        frame = await self._stream.receive_within(FRAME_S, want)
        message = frame.message
        if isinstance(message, Busy):
            raise BusyError(f"busy: {message.reason}", retry_after_s=message.retry_after_s)
        if isinstance(message, Refused):
            raise RefusedError(f"refused: {message.reason}")
        if not isinstance(message, FetchedRows):
            raise ProtocolViolation(f"unexpected {type(message).__name__}", peer=self._stream.peer)
        return message, bytes(frame.payload)


@asynccontextmanager
async def fetching(transport: Transport, kept: Kept) -> AsyncIterator[Fetching]:
    """A fetch stream to the server of ``kept``; raises as ``Fetching`` does."""
    stream = await dial(transport, kept.plan, Channel.FETCH, DIAL_S)
    try:
        yield Fetching(stream, kept)
    finally:
        await stream.close()


def _split_leaves(payload: bytes, count: int) -> Sequence[bytes]:
    """Leaves one behind the other: the first byte of each tells its length."""
    found, start = [], 0
    while start < len(payload):
        end = start + (TAIL_LEAF_BYTES if payload[start] else LEAF_BYTES)
        found.append(payload[start:end])
        start = end
    if len(found) != count:
        raise ProtocolViolation(f"{len(found)} leaves where {count} were announced")
    return found
