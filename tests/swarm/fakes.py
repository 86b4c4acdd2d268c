"""Peers that misbehave, beside the protocols they fake. They speak through the real wire, frame by frame or raw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from harness import Node, Swarm, until
from tiny_model import LAYERS

from swarm.core.announcement import State
from swarm.core.errors import GenerationInterruptedError, PeerError, PeerLostError, SwarmError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.core.records import sign_record
from swarm.core.spans import Span
from swarm.engine.speed import UNMEASURED, SpanSpeed
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Stream
from swarm.transport.pulse import PulseKeeper
from swarm.wire.evidence import Signed
from swarm.wire.fields import DECODE_LANE, Lane
from swarm.wire.frames import Frame
from swarm.wire.messages import Accept, Downstream, Hello, Open, Pace, Result, Step, Upstream
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel, Role

HIDDEN = 32
SECRET = b"the link secret!"
OTHER_SECRET = b"not that secret!"
SESSION = b"session 16 bytes"
IDS = [10, 20, 30]


def rows_of(value: float, count: int = 1, hidden: int = HIDDEN) -> bytes:
    """``count`` hidden rows, float32, all of one value."""
    return np.full((count, hidden), value, np.float32).tobytes()


def step(seq: int = 0, keep: int = 0, rows: int = 1, **changes: Any) -> Step:
    """A step that wants its last row answered."""
    fields: dict[str, Any] = {"generation": 0, "epoch": 0, "seq": seq, "keep": keep, "rows": rows, "want": 1}
    return Step(**(fields | {"ids": True} | changes))


def toward(record: bytes, stage: int = 1) -> Downstream:
    """The next server in an OPEN or a RELINK."""
    return Downstream(record, stage, OTHER_SECRET)


def signed(swarm: Swarm, node: Node, **changes: Any) -> bytes:
    """A genuine announcement of a server that is nobody's in the swarm."""
    stranger = swarm.identity()
    fields = {"peer": stranger.peer_id, "start": 3, "end": 5, "expires_s": swarm.clock.wall_s() + 60.0} | changes
    return sign_record(stranger, swarm.announcement(node.transport, node.engine, **fields))


class FakeClient:
    """Opens one-stage sessions by hand, right or wrong in any field."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.identity = swarm.identity()
        self.transport = swarm.network.transport(self.identity)
        self._streams: list[Stream] = []

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    async def raw(self, node: Node, channel: Channel) -> Stream:
        stream = await self.transport.dial(node.peer, channel.protocol)
        self._streams.append(stream)
        return stream

    async def control(self, node: Node) -> FrameStream:
        return FrameStream(await self.raw(node, Channel.CONTROL), Channel.CONTROL, Role.DIALER)

    def opening(self, node: Node, **changes: Any) -> Open:
        """An OPEN that ``node`` accepts: all it holds, as a chain of one."""
        info = node.engine.info
        fields: dict[str, Any] = {
            "protocol": 1,
            "model": str(self.swarm.files.model_id),
            "session": SESSION,
            "stage": 0,
            "start": info.span.start,
            "end": info.span.end,
            "embed": info.embeddings,
            "head": info.head,
            "kv_tokens": 64,
            "numerics": "",
            "codec": "raw",
            "upstream": Upstream(self.peer, SECRET),
            "downstream": None,
            "nonce": SECRET,
            "commitment": bytes(32),
        }
        return Open(**(fields | changes))

    async def open(self, node: Node, **changes: Any) -> tuple[FrameStream, Any]:
        """A control stream and the server's answer to OPEN."""
        control = await self.control(node)
        await control.send(self.opening(node, **changes))
        return control, (await control.receive()).message

    def greeting(self, lane: Lane = DECODE_LANE, **changes: Any) -> Hello:
        fields: dict[str, Any] = {"client": self.peer, "session": SESSION, "stage": 0, "secret": SECRET, "lane": lane}
        return Hello(**(fields | changes))

    async def link(self, node: Node, **changes: Any) -> FrameStream:
        """A link stream that has said hello."""
        link = FrameStream(await self.raw(node, Channel.LINK), Channel.LINK, Role.DIALER)
        await link.send(self.greeting(**changes))
        return link

    async def session(self, node: Node, **changes: Any) -> tuple[FrameStream, FrameStream]:
        """An accepted session: its control stream and its decode link."""
        control, reply = await self.open(node, **changes)
        assert isinstance(reply, Accept), reply
        return control, await self.link(node)

    async def ask(self, control: FrameStream, link: FrameStream, ids: Sequence[int], **changes: Any) -> Result:
        """One honest step and its result."""
        await link.send(step(rows=len(ids), **changes), pack_ids(ids))
        reply = await heard(control)
        assert isinstance(reply, Result), reply
        return reply

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()
        await self.transport.close()


async def heard(control: FrameStream, receipts: list[Signed] | None = None) -> Any:
    """The next message that says something new; receipts, which come at any time, are put into ``receipts``."""
    while isinstance(message := (await control.receive()).message, Pace | Signed):
        if isinstance(message, Signed) and receipts is not None:
            receipts.append(message)
    return message


async def ended(control: Any) -> Any:
    """The server's last word on a control stream, after which it hangs up; None if it says nothing."""
    last = None
    while True:
        try:
            last = (await control.receive()).message
        except PeerLostError:
            return last


async def refused(link: Any) -> bool:
    try:
        await link.receive()
    except PeerLostError:
        return True
    return False


def blamed(error: SwarmError, peer: str) -> bool:
    """The error, or its cause, names the peer in words and in its field."""
    cause = error.__cause__ if isinstance(error, GenerationInterruptedError) else error
    return isinstance(cause, PeerLostError | PeerError) and cause.peer == peer and peer[-8:] in str(error)


@dataclass
class FakeServer:
    """Announces a span and speaks the server's side; ``on_open`` and ``on_step`` are what tests replace.

    As it stands it accepts every session, takes every step and says nothing.
    """

    swarm: Swarm
    span: str
    numerics: Numerics = field(default_factory=lambda: Numerics("float32"))
    speed: SpanSpeed = UNMEASURED
    opens: list[Open] = field(default_factory=list)
    controls: list[FrameStream] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _links: dict[Lane, FrameStream] = field(default_factory=dict)

    async def start(self) -> FakeServer:
        swarm, span = self.swarm, Span.parse(self.span)
        self.identity = swarm.identity()
        self.transport = swarm.network.transport(self.identity)
        await self.transport.listen(Channel.CONTROL.protocol, self._serve_control)
        await self.transport.listen(Channel.LINK.protocol, self._serve_link)
        await PulseKeeper(self.transport, swarm.clock).serve()
        like = swarm.nodes[0]
        announcement = swarm.announcement(
            self.transport,
            like.engine,
            start=span.start,
            end=span.end,
            embeddings=span.start == 0,
            head=span.end == LAYERS,
            numerics=self.numerics,
            kv_tokens=4096,
            state=State.ONLINE,
            expires_s=swarm.clock.wall_s() + 500.0,
        )
        self.record = await swarm.enlist(self.identity, announcement, speed=self.speed)
        return self

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        await control.send(Accept(0, 0, 4096))

    async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
        """Called for every step that comes, with the session's control stream."""

    async def push(self, opened: Open, message: Step, *payload: bytes, lane: Lane = DECODE_LANE) -> None:
        """Send a step on to the next server of the chain."""
        place = opened.downstream
        assert place is not None
        if lane not in self._links:
            record = msgspec.msgpack.decode(place.record)
            stream = await self.transport.dial(record[0], Channel.LINK.protocol)
            link = self._links[lane] = FrameStream(stream, Channel.LINK, Role.DIALER)
            client = self.controls[-1].peer
            await link.send(Hello(client, opened.session, place.stage, place.secret, lane))
        await self._links[lane].send(message, *payload)

    async def _serve_control(self, stream: Stream) -> None:
        control = FrameStream(stream, Channel.CONTROL, Role.LISTENER)
        opened = (await control.receive()).message
        assert isinstance(opened, Open)
        self.opens.append(opened)
        self.controls.append(control)
        await self.on_open(control, opened)
        while True:
            await control.receive()

    async def _serve_link(self, stream: Stream) -> None:
        link = FrameStream(stream, Channel.LINK, Role.LISTENER)
        await link.receive()
        await until(lambda: self.controls)
        while True:
            frame = await link.receive()
            if not isinstance(frame.message, Step):
                continue
            self.steps.append(frame.message)
            await self.on_step(self.controls[-1], self.opens[-1], frame)
