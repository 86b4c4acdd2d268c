"""Bytes of frames by kind of message, as this process sends and receives them: prefix, header and payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from swarm.transport.framing import FrameStream
from swarm.wire.frames import PREFIX_BYTES, encode_head
from swarm.wire.messages import Message

RECEIPTS = ("Signed", "Settle", "Settled", "Countersign")
"""The messages that there would not be without receipts."""


@contextmanager
def counted_frames() -> Iterator[Counter[str]]:
    """Inside, the frames of every ``FrameStream`` of this process: bytes by the name of the message's type."""
    found: Counter[str] = Counter()
    read, send = FrameStream._read_payload, FrameStream.send

    async def reading(stream: FrameStream, *, keep: bool) -> bytes:
        if stream._lengths is not None and stream._judged is not None:
            header, payload = stream._lengths
            found[type(stream._judged[0]).__name__] += PREFIX_BYTES + header + payload
        return await read(stream, keep=keep)

    async def sending(stream: FrameStream, message: Message, *payload: bytes | memoryview) -> None:
        size = sum(memoryview(part).nbytes for part in payload)
        found[type(message).__name__] += len(encode_head(message, size)) + size
        await send(stream, message, *payload)

    with patch.object(FrameStream, "_read_payload", reading), patch.object(FrameStream, "send", sending):
        yield found


def bytes_per_token_hop(found: Counter[str], rows: int, stages: int) -> float:
    """What receipts took of ``rows`` accepted rows, each in ``stages`` stages."""
    return sum(found[name] for name in RECEIPTS) / (rows * stages)
