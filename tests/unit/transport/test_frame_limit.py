"""A stream whose largest frame is known takes none above it."""

from __future__ import annotations

import pytest

from swarm.core.errors import ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_FRAME_BYTES
from swarm.transport.framing import FrameStream
from swarm.wire.frames import encode_head
from swarm.wire.messages import Hello, Step
from swarm.wire.session import Channel, Role


class Given:
    """A stream that holds given bytes."""

    peer = PeerId("peer")

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def read_exactly(self, count: int) -> bytes:
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    async def write(self, *parts: bytes | memoryview) -> None:
        raise AssertionError("nothing is sent here")

    async def close(self) -> None:
        return


HELLO = encode_head(Hello("client", b"s" * 16, 0, b"x" * 16, 0))


async def greeted(payload_bytes: int, limit: int) -> FrameStream:
    data = HELLO + encode_head(Step(0, 0, 0, 0, 1, 1), payload_bytes) + bytes(payload_bytes)
    link = FrameStream(Given(data), Channel.LINK, Role.LISTENER)
    await link.receive()
    link.limit_frames(limit)
    return link


async def test_frames_up_to_the_limit_pass() -> None:
    header = len(encode_head(Step(0, 0, 0, 0, 1, 1))) - 4
    frame = await (await greeted(1000, 1000 + header)).receive()
    assert len(frame.payload) == 1000
    with pytest.raises(ProtocolViolation, match="limit"):
        await (await greeted(1001, 1000 + header)).receive()


async def test_the_wires_own_limit_stays() -> None:
    link = await greeted(10, 10 * MAX_FRAME_BYTES)
    assert link._max_frame_bytes == MAX_FRAME_BYTES
