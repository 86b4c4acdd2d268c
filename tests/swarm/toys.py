"""Servers that compute nothing but keep the whole protocol: their cache is the token ids they were sent.

So a chain's own behaviour shows without an engine, and a server that went on with wrong rows gives a wrong answer.
Subclasses misbehave by overriding one method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm.client.chains.chain import StagePlan
from swarm.core.announcement import Announcement
from swarm.core.errors import NetworkError, PeerError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.transport.framing import FrameStream
from swarm.transport.memory import MemoryNetwork
from swarm.transport.protocol import Stream
from swarm.transport.pulse import PulseKeeper
from swarm.wire.fields import LANES, PREFILL_LANE, Lane
from swarm.wire.frames import Frame
from swarm.wire.messages import (
    Accept,
    Close,
    Downstream,
    Failed,
    Hello,
    LinkLost,
    Open,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
    Upstream,
)
from swarm.wire.payload import pack_ids, split_payload
from swarm.wire.session import Channel, Role

MODEL = ModelId.parse("toy@main#0123456789abcdef")
KV_TOKENS = 4096
PARAMS = SamplingParams()
REPLAY_ROWS = 128


def token_after(ids: Sequence[int]) -> int:
    """What a toy answers; it depends on every id and its place."""
    return sum((place + 1) * token for place, token in enumerate(ids)) % 997


async def patiently(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Return once ``condition`` holds; ``TimeoutError`` after so much virtual time."""
    for _ in range(int(within_s / 0.001)):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


@dataclass(eq=False)
class Part:
    """One session at one toy."""

    opened: Open
    control: FrameStream
    generation: int
    upstream: Upstream
    downstream: Downstream | None
    kv: list[int] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    links: dict[Lane, FrameStream] = field(default_factory=dict)
    attached: list[FrameStream] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Toy:
    """A server of a span. ``rows`` are what it computed in all, ``wrong`` what it was told that cannot be."""

    def __init__(self, network: MemoryNetwork, seed: int, span: str) -> None:
        self.identity = Identity(bytes([seed]) * 32)
        self.transport = network.transport(self.identity)
        self.network = network
        self.span = Span.parse(span)
        self.parts: dict[int, Part] = {}
        self.relinks: list[Relink] = []
        self.opens: list[Open] = []
        self.closes = 0
        self.rows = 0
        self.wrong: list[str] = []
        self.takes_s = 0.0
        """Virtual time per row."""
        self.logs = True

    async def start(self) -> Toy:
        await self.transport.listen(Channel.CONTROL.protocol, self._serve_control)
        await self.transport.listen(Channel.LINK.protocol, self._serve_link)
        self.pulse = PulseKeeper(self.transport, self.network.clock)
        await self.pulse.serve()
        return self

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    @property
    def part(self) -> Part:
        """Its newest session."""
        return list(self.parts.values())[-1]

    def stage(self, span: str = "") -> StagePlan:
        announcement = Announcement(
            model=str(MODEL),
            peer=self.peer,
            instance=1,
            sequence=1,
            expires_s=1e10,
            started_s=1.0,
            layer_count=6,
            start=self.span.start,
            end=self.span.end,
            numerics=Numerics("float32"),
            addresses=self.transport.addresses,
        )
        return StagePlan(announcement, self.peer.encode(), Span.parse(span) if span else self.span)

    # -- what subclasses replace ----------------------------------------------------------------------------

    async def admit(self, part: Part) -> None:
        await part.control.send(Accept(0, 0, KV_TOKENS))

    async def relinked(self, part: Part, message: Relink) -> None:
        await part.control.send(Relinked(message.generation, len(part.kv), len(part.log)))

    async def replayed(self, part: Part, message: Replay) -> None:
        await part.control.send(Replayed(part.generation, len(part.kv)))

    async def answer(self, part: Part, message: Step) -> None:
        where = (message.generation, message.epoch, message.seq, len(part.kv))
        await part.control.send(Result(*where, (token_after(part.kv),) if message.want else ()))

    # -- the protocol ---------------------------------------------------------------------------------------

    async def _serve_control(self, stream: Stream) -> None:
        control = FrameStream(stream, Channel.CONTROL, Role.LISTENER)
        opened = (await control.receive()).message
        assert isinstance(opened, Open)
        self.opens.append(opened)
        part = Part(opened, control, opened.generation, opened.upstream, opened.downstream)
        self.parts[opened.stage] = part
        try:
            await self.admit(part)
            part.spawn(self._lead_on(part))
            while not isinstance(message := (await control.receive()).message, Close):
                if isinstance(message, Relink):
                    await self._relink(part, message)
            self.closes += 1
        except (NetworkError, PeerError):
            return
        finally:
            del self.parts[opened.stage]
            for task in list(part.tasks):
                task.cancel()
            await asyncio.gather(*part.tasks, return_exceptions=True)
            for link in [*part.links.values(), *part.attached]:
                await link.close()

    async def _relink(self, part: Part, message: Relink) -> None:
        self.relinks.append(message)
        if message.generation <= part.generation:
            self.wrong.append(f"RELINK to {message.generation} in {part.generation}")
        part.generation = message.generation
        if len(part.kv) < message.keep:
            self.wrong.append(f"keep {message.keep} of {len(part.kv)}")
        del part.kv[message.keep :], part.log[message.keep :]
        if message.upstream is not None:
            part.upstream, old = message.upstream, part.attached
            part.attached = []
            for link in old:
                await link.close()
        if message.downstream is not None:
            links, part.links, part.downstream = part.links, {}, message.downstream
            for link in links.values():
                await link.close()
            part.spawn(self._lead_on(part))
        await self.relinked(part, message)
        if message.replay_hops is not None and len(part.log) >= message.keep:
            part.spawn(self._replay_log(part, message.keep, message.generation, message.replay_hops))

    async def _lead_on(self, part: Part) -> None:
        if (after := part.downstream) is None:
            return
        peer, generation = PeerId(after.record.decode()), part.generation
        try:
            for lane in LANES:
                stream = await self.transport.dial(peer, Channel.LINK.protocol)
                link = FrameStream(stream, Channel.LINK, Role.DIALER)
                client = part.control.peer
                await link.send(Hello(client, part.opened.session, after.stage, after.secret, lane, generation))
                part.links[lane] = link
                part.spawn(self._watch(part, link, generation))
        except NetworkError as error:
            await self._report(part, LinkLost(peer, str(error), generation))

    async def _watch(self, part: Part, link: FrameStream, generation: int) -> None:
        try:
            while True:
                await link.receive()
        except NetworkError as error:
            await self._report(part, LinkLost(link.peer, str(error), generation))

    async def _report(self, part: Part, message: LinkLost) -> None:
        try:
            await part.control.send(message)
        except NetworkError:
            return

    async def _serve_link(self, stream: Stream) -> None:
        link = FrameStream(stream, Channel.LINK, Role.LISTENER)
        hello = (await link.receive()).message
        assert isinstance(hello, Hello)
        generation, part = -1, None
        try:
            await patiently(lambda: self._awaits(hello))
            part = self.parts[hello.stage]
            generation = part.generation
            if (hello.secret, link.peer, hello.generation) != (part.upstream.secret, part.upstream.peer, generation):
                self.wrong.append(f"a hello that was not arranged: {hello}")
                return
            part.attached.append(link)
            while True:
                frame = await link.receive()
                if isinstance(frame.message, Step):
                    await self._step(part, frame.message, frame, hello.lane)
                elif isinstance(frame.message, Replay):
                    await self._replay(part, frame.message, frame)
        except TimeoutError:
            return
        except PeerError as error:
            if part is not None:
                await part.control.send(Failed("server", f"server {link.peer[-8:]} sent what cannot be: {error}"))
                await part.control.close()
        except NetworkError as error:
            if part is not None and link in part.attached:
                await self._report(part, LinkLost(link.peer, str(error), generation))

    def _awaits(self, hello: Hello) -> bool:
        part = self.parts.get(hello.stage)
        return part is not None and part.generation >= hello.generation

    async def _take(self, part: Part, message: Step | Replay, frame: Frame) -> list[int] | None:
        """Compute the rows: the ids; None if they are void."""
        if message.generation < part.generation:
            return None
        if self.takes_s:
            await asyncio.sleep(self.takes_s * message.rows)
            if message.generation < part.generation:
                return None
        ids, _ = split_payload(message, frame.payload)
        if ids is None or message.generation > part.generation or message.keep > len(part.kv):
            self.wrong.append(f"{message} with {len(part.kv)} rows in generation {part.generation}")
            return None
        rows = [int(token) for token in ids]
        del part.kv[message.keep :], part.log[message.keep :]
        part.kv += rows
        if self.logs:
            part.log += rows
        self.rows += len(rows)
        return rows

    async def _step(self, part: Part, message: Step, frame: Frame, lane: Lane) -> None:
        rows = await self._take(part, message, frame)
        if rows is None:
            return
        if part.downstream is None:
            await self.answer(part, message)
        else:
            await self._push(part, message, rows, lane)

    async def _replay(self, part: Part, message: Replay, frame: Frame) -> None:
        rows = await self._take(part, message, frame)
        if rows is None:
            return
        if message.hops == 0:
            await self.replayed(part, message)
        else:
            await self._pass_on(part, message.keep, rows, message.generation, message.hops - 1)

    async def _replay_log(self, part: Part, keep: int, generation: int, hops: int) -> None:
        for begin in range(0, keep, REPLAY_ROWS):
            await self._pass_on(part, begin, part.log[begin : min(begin + REPLAY_ROWS, keep)], generation, hops)

    async def _pass_on(self, part: Part, keep: int, rows: Sequence[int], generation: int, hops: int) -> None:
        await self._push(part, Replay(generation, keep, len(rows), True, 0, hops), rows, PREFILL_LANE)

    async def _push(self, part: Part, message: Step | Replay, rows: Sequence[int], lane: Lane) -> None:
        await patiently(lambda: lane in part.links or message.generation < part.generation)
        try:
            if message.generation == part.generation:
                await part.links[lane].send(message, pack_ids(rows))
        except NetworkError:
            return  # the link's watcher says so
