"""STATUS streams, in virtual time: what a server answers and to whom, and what hostile ends can do to each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
import pytest_asyncio
from virtual_time import LoopClock

from swarm.core.errors import BusyError, PeerLostError, PeerUnreachableError, ProtocolViolation, RefusedError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.limits import MAX_HEADER_BYTES
from swarm.server.reports.figures import Figures
from swarm.server.reports.telling import (
    ANSWERS_PER_S_IN_ALL,
    ANSWERS_PER_S_PER_ADDRESS,
    BURST,
    FRESH_S,
    IDLE_S,
    MAX_IMPATIENCE,
    MAX_REQUEST_BYTES,
    MAX_STREAMS,
    MAX_STREAMS_PER_ADDRESS,
    MAX_STREAMS_PER_PEER,
    SEND_S,
    SHUT_OUT_S,
    SILENT_S,
    Telling,
)
from swarm.transport.framing import FrameStream
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.transport.protocol import Stream
from swarm.transport.status import ANSWER_S, StatusLine, ask_status
from swarm.wire.frames import encode_head
from swarm.wire.messages import Busy, Message, Noop, Refused
from swarm.wire.session import Channel, Role
from swarm.wire.status import MAX_LINKS, AskStatus, LinkFigures, StatusReport

SERVER = Identity(bytes([255]) * 32).peer_id
ASK = encode_head(AskStatus())
LINKS = tuple(LinkFigures("\u2603" * 64, 1.0, 1.0, 1.0) for _ in range(MAX_LINKS))
"""Make a report large."""


class Scene:
    """A server that tells how it is, and as many askers as are made."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.server = self.network.transport(SERVER)
        self.figures = Figures(self.now_s)
        self.telling = Telling(self._report, self.clock)
        self.made = 0
        self.links: tuple[LinkFigures, ...] = ()
        self._askers = 0

    def _report(self) -> StatusReport:
        self.made += 1
        return self.figures.report(self.now_s, receipts=0, sent_bytes=0, links=self.links)

    def asker(self, place: str = "") -> MemoryTransport:
        self._askers += 1
        identity = Identity(self._askers.to_bytes(32, "big"))
        if place:
            self.network.places[identity.peer_id] = place
        return self.network.transport(identity)

    async def listen(self) -> None:
        await self.server.listen(Channel.STATUS.protocol, self.telling.serve)

    async def line(self, asker: MemoryTransport | None = None) -> StatusLine:
        return await StatusLine.open(asker or self.asker(), SERVER)

    async def frames(self, asker: MemoryTransport | None = None) -> FrameStream:
        """A stream of somebody who need not keep to any rule."""
        stream = await (asker or self.asker()).dial(SERVER, Channel.STATUS.protocol)
        return FrameStream(stream, Channel.STATUS, Role.DIALER)

    async def hostile(self, answer: Callable[[FrameStream], Awaitable[None]]) -> None:
        """Put another in the server's place, which answers every question by ``answer``."""

        async def serve(stream: Stream) -> None:
            frames = FrameStream(stream, Channel.STATUS, Role.LISTENER)
            frames._machine.sent = lambda message: None  # type: ignore[method-assign,assignment]
            assert isinstance((await frames.receive()).message, AskStatus)
            await answer(frames)

        await self.server.listen(Channel.STATUS.protocol, serve)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.network.close()
    await asyncio.sleep(0.01)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others
    assert not made.network._streams
    assert not made.telling._open


async def answers(line: StatusLine, seconds: float, gap_s: float) -> tuple[int, int]:
    """``(answers, refusals for asking too early)`` of a line that asks every ``gap_s``."""
    clock, told, waits_s = LoopClock(), 0, []
    until_s = clock.monotonic_s() + seconds
    while clock.monotonic_s() < until_s:
        try:
            await line.ask()
            told += 1
        except BusyError as error:
            waits_s.append(error.retry_after_s)
        await clock.sleep(gap_s)
    assert all(wait_s > 0 for wait_s in waits_s)
    return told, len(waits_s)


# -- who asks as he may -------------------------------------------------------------------------------------


async def test_whoever_asks_is_told(scene: Scene) -> None:
    await scene.listen()
    await scene.clock.sleep(5.0)
    report = await ask_status(scene.asker(), SERVER)
    assert report.uptime_s == pytest.approx(5.0, abs=0.1)


async def test_a_line_that_stays_open_is_asked_again_and_again(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    assert await answers(line, 120.0, gap_s=1.0) == (120, 0)
    assert await answers(line, 4 * IDLE_S, gap_s=IDLE_S - 1.0) == (5, 0)
    assert line.is_open
    await line.close()
    await line.close()
    assert isinstance(await line.ended(), PeerLostError)
    with pytest.raises(PeerLostError, match="closed here"):
        await line.ask()


async def test_who_asks_too_often_is_told_when_to_ask_and_the_line_stays(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    told, busy = await answers(line, 60.0, gap_s=0.6)
    assert 60 <= told <= 60 + BURST
    assert busy > 10
    await scene.clock.sleep(BURST)
    for _ in range(BURST):
        await line.ask()
    with pytest.raises(BusyError) as caught:
        await line.ask()
    await scene.clock.sleep(caught.value.retry_after_s)
    await line.ask()
    await line.close()


async def test_all_who_ask_at_one_time_share_one_report(scene: Scene) -> None:
    await scene.listen()
    lines = [await scene.line() for _ in range(20)]
    for _ in range(10):
        reports = await asyncio.gather(*(line.ask() for line in lines))
        assert len({report.uptime_s for report in reports}) == 1
        await scene.clock.sleep(1.0)
    assert scene.made == 10
    await scene.clock.sleep(FRESH_S)
    assert (await lines[0].ask()).uptime_s > reports[0].uptime_s
    await asyncio.gather(*(line.close() for line in lines))


async def test_two_of_one_line_take_turns(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    both = await asyncio.gather(line.ask(), line.ask())
    assert both[0] == both[1]
    await line.close()


async def test_statistics_may_be_off(scene: Scene) -> None:
    scene.telling = Telling(None, scene.clock)
    await scene.listen()
    line = await scene.line()
    with pytest.raises(RefusedError, match="statistics are off"):
        await line.ask()
    assert isinstance(await line.ended(), RefusedError)
    with pytest.raises(RefusedError):
        await ask_status(scene.asker(), SERVER)
    await line.close()


# -- the end is noticed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves", "dies"])
async def test_a_servers_end_is_noticed_at_once_by_whoever_watches(scene: Scene, how: str) -> None:
    await scene.listen()
    line = await scene.line()
    await line.ask()
    watching = asyncio.create_task(line.ended())
    began_s = scene.now_s
    await (scene.telling.close() if how == "leaves" else scene.network.kill(SERVER))
    assert isinstance(await watching, PeerLostError)
    assert scene.now_s - began_s < 0.1
    assert not line.is_open
    with pytest.raises(PeerLostError):
        await line.ask()
    await line.close()
    with pytest.raises((PeerLostError, PeerUnreachableError)):
        await ask_status(scene.asker(), SERVER)


async def test_a_server_that_stands_still_is_noticed_when_it_is_asked(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    scene.network.freeze(SERVER)
    began_s = scene.now_s
    with pytest.raises(PeerUnreachableError, match="did not say how it is"):
        await line.ask()
    assert scene.now_s - began_s == pytest.approx(ANSWER_S, abs=0.1)
    assert not line.is_open
    with pytest.raises(PeerUnreachableError):
        await line.ask()
    scene.network.thaw(SERVER)
    await line.close()


async def test_a_question_that_was_given_up_ends_the_line(scene: Scene) -> None:
    """Its answer must not pass for the next one's."""
    await scene.listen()
    line = await scene.line()
    scene.network.freeze(SERVER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(line.ask(), 1.0)
    scene.network.thaw(SERVER)
    with pytest.raises(PeerLostError, match="nobody waits"):
        await line.ask()
    await line.close()


# -- hostile askers -----------------------------------------------------------------------------------------


async def heard(frames: FrameStream) -> list[Message]:
    """Everything until the stream ends."""
    messages = []
    try:
        while True:
            messages.append((await frames.receive()).message)
    except PeerLostError:
        return messages
    finally:
        await frames.close()


async def test_attack_a_flood_of_questions(scene: Scene) -> None:
    """It ends the stream, nobody listens to that peer for a while, and others are answered meanwhile."""
    await scene.listen()
    flooder, honest = scene.asker(), await scene.line()
    stream = await flooder.dial(SERVER, Channel.STATUS.protocol)
    asking = asyncio.create_task(stream.write(ASK * 10_000))
    frames = FrameStream(stream, Channel.STATUS, Role.DIALER)
    frames._machine.sent(AskStatus())
    messages = await heard(frames)
    await asyncio.gather(asking, return_exceptions=True)
    assert [type(message) for message in messages] == [StatusReport] * BURST + [Busy] * MAX_IMPATIENCE
    await honest.ask()
    for _ in range(50):
        assert await heard(await scene.frames(flooder)) == []
    await scene.clock.sleep(SHUT_OUT_S)
    await ask_status(flooder, SERVER)
    await honest.close()


async def test_attack_a_flood_over_many_streams_gets_no_more_answers(scene: Scene) -> None:
    await scene.listen()
    flooder, told, busy = scene.asker(), 0, 0
    until_s = scene.now_s + 20.0
    while scene.now_s < until_s:
        try:
            await ask_status(flooder, SERVER)
            told += 1
        except BusyError:
            busy += 1
        await scene.clock.sleep(0.05)
    assert told <= 20 + BURST
    assert busy > 100
    assert scene.made <= 20 / FRESH_S


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 64, encode_head(Noop()), encode_head(Refused("no")), ASK[:-1] + b"\x00", ASK[:3]],
    ids=["garbage", "another message", "an answer", "an unknown type", "half a question"],
)
async def test_attack_what_is_no_question(scene: Scene, data: bytes) -> None:
    await scene.listen()
    stream = await scene.asker().dial(SERVER, Channel.STATUS.protocol)
    await stream.write(data)
    began_s = scene.now_s
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert scene.now_s - began_s <= IDLE_S + 0.1
    await stream.close()
    await ask_status(scene.asker(), SERVER)


async def test_a_later_versions_question_may_have_fields_but_is_bounded(scene: Scene) -> None:
    await scene.listen()
    for size, answered in ((100, True), (MAX_REQUEST_BYTES, False)):
        header = msgspec.msgpack.encode([25, b"x" * size])
        stream = await scene.asker().dial(SERVER, Channel.STATUS.protocol)
        await stream.write((2 + len(header)).to_bytes(4, "big") + len(header).to_bytes(2, "big") + header)
        frames = FrameStream(stream, Channel.STATUS, Role.DIALER)
        frames._machine.sent(AskStatus())
        if answered:
            assert isinstance((await frames.receive()).message, StatusReport)
        else:
            assert await heard(frames) == []
        await frames.close()


async def test_attack_streams_that_say_nothing(scene: Scene) -> None:
    """A peer holds a few of them and not for long; another is served meanwhile."""
    await scene.listen()
    silent, began_s = scene.asker(), scene.now_s
    streams = [await silent.dial(SERVER, Channel.STATUS.protocol) for _ in range(10 * MAX_STREAMS_PER_PEER)]
    await scene.clock.sleep(0.1)
    assert len(scene.telling._open) == 2 * MAX_STREAMS_PER_PEER
    await ask_status(scene.asker(), SERVER)
    for stream in streams:
        with pytest.raises(PeerLostError):
            await stream.read_exactly(1)
    assert scene.now_s - began_s == pytest.approx(IDLE_S, abs=0.2)
    await asyncio.gather(*(stream.close() for stream in streams))


async def test_attack_more_streams_than_there_is_room_for(scene: Scene) -> None:
    """Who comes too late is told so, and is answered once there is room."""
    await scene.listen()
    strangers = [await scene.asker().dial(SERVER, Channel.STATUS.protocol) for _ in range(MAX_STREAMS)]
    with pytest.raises(BusyError, match="too many streams"):
        await ask_status(scene.asker(), SERVER)
    await asyncio.gather(*(stream.close() for stream in strangers))
    await scene.clock.sleep(0.1)
    await ask_status(scene.asker(), SERVER)


async def test_attack_a_crowd_that_holds_every_place_and_asks_nothing(scene: Scene) -> None:
    """Streams cost a stranger nothing either: who asks takes the place of who has been silent, and of nobody else."""
    await scene.listen()
    asking = await scene.line()
    strangers = [await scene.asker().dial(SERVER, Channel.STATUS.protocol) for _ in range(MAX_STREAMS - 1)]
    await scene.clock.sleep(SILENT_S)
    await asking.ask()
    late = [await scene.line() for _ in range(3)]
    for line in late:
        assert isinstance(await line.ask(), StatusReport)
        assert len(scene.telling._open) == MAX_STREAMS
    await scene.clock.sleep(1.0)
    assert isinstance(await asking.ask(), StatusReport)
    await asyncio.gather(*(stream.close() for stream in strangers), *(line.close() for line in (asking, *late)))


async def test_attack_one_address_under_many_names(scene: Scene) -> None:
    """Peer ids cost nothing: an address has its own share of streams and answers, and others keep theirs."""
    await scene.listen()
    near, far = "/ip4/203.0.113.7/tcp/1", "/ip4/198.51.100.1/tcp/1"
    sybils = [await scene.line(scene.asker(near)) for _ in range(MAX_STREAMS_PER_ADDRESS)]
    found = await asyncio.gather(*(line.ask() for line in sybils), return_exceptions=True)
    assert sum(isinstance(answer, StatusReport) for answer in found) == ANSWERS_PER_S_PER_ADDRESS
    with pytest.raises(BusyError, match="too many streams"):
        await ask_status(scene.asker(near), SERVER)
    await ask_status(scene.asker(far), SERVER)
    await asyncio.gather(*(line.close() for line in sybils))


async def test_attack_a_crowd_gets_only_so_many_answers_in_all(scene: Scene) -> None:
    await scene.listen()
    crowd = [await scene.line() for _ in range(MAX_STREAMS)]
    found = await asyncio.gather(*(line.ask() for line in crowd), return_exceptions=True)
    assert sum(isinstance(answer, StatusReport) for answer in found) == ANSWERS_PER_S_IN_ALL
    assert all(isinstance(answer, StatusReport | BusyError) for answer in found)
    await asyncio.gather(*(line.close() for line in crowd))


async def test_attack_an_asker_that_never_reads(scene: Scene) -> None:
    scene.network._buffer_bytes = 64
    scene.links = LINKS
    await scene.listen()
    lazy = await scene.asker().dial(SERVER, Channel.STATUS.protocol)
    await lazy.write(ASK)
    began_s = scene.now_s
    while scene.telling._open or scene.now_s == began_s:
        await scene.clock.sleep(0.5)
    assert scene.now_s - began_s == pytest.approx(SEND_S, abs=1.0)
    await lazy.close()


# -- hostile servers ----------------------------------------------------------------------------------------


async def test_attack_a_server_that_says_nothing_or_drips(scene: Scene) -> None:
    report = encode_head(scene.figures.report(0.0, receipts=0, sent_bytes=0, links=LINKS))

    async def drip(frames: FrameStream) -> None:
        for byte in report:
            await frames._stream.write(bytes([byte]))
            await asyncio.sleep(1.0)

    await scene.hostile(drip)
    began_s = scene.now_s
    with pytest.raises(PeerUnreachableError, match="did not say how it is"):
        await ask_status(scene.asker(), SERVER)
    assert scene.now_s - began_s == pytest.approx(ANSWER_S, abs=0.1)


async def test_attack_a_server_that_hangs_up(scene: Scene) -> None:
    async def answer(frames: FrameStream) -> None:
        return

    await scene.hostile(answer)
    with pytest.raises(PeerLostError):
        await ask_status(scene.asker(), SERVER)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        encode_head(Noop()),
        ASK,
        (MAX_HEADER_BYTES + 3).to_bytes(4, "big") + MAX_HEADER_BYTES.to_bytes(2, "big"),
        b"\x00\x00\x00\x06\x00\x03\x92\x1a\x01",
    ],
    ids=["garbage", "another message", "a question", "a payload", "half a report"],
)
async def test_attack_a_server_that_says_something_else(scene: Scene, data: bytes) -> None:
    async def answer(frames: FrameStream) -> None:
        await frames._stream.write(data)
        await asyncio.sleep(100)

    await scene.hostile(answer)
    with pytest.raises(ProtocolViolation) as caught:
        await ask_status(scene.asker(), SERVER)
    assert caught.value.peer == SERVER


async def test_attack_answers_that_nobody_asked_for(scene: Scene) -> None:
    """They are at fault on their own, and none of them passes for a later answer."""
    report = scene.figures.report(0.0, receipts=0, sent_bytes=0, links=())

    async def answer(frames: FrameStream) -> None:
        for _ in range(1000):
            await frames.send(report)
        await asyncio.sleep(100)

    await scene.hostile(answer)
    line = await scene.line()
    assert await line.ask() == report
    ended = await line.ended()
    assert isinstance(ended, ProtocolViolation)
    assert ended.peer == SERVER
    with pytest.raises(ProtocolViolation):
        await line.ask()
    await line.close()


async def test_nobody_is_there(scene: Scene) -> None:
    with pytest.raises(PeerUnreachableError):
        await ask_status(scene.asker(), PeerId("12D3KooWNobody"))
    with pytest.raises(PeerUnreachableError):
        await ask_status(scene.asker(), SERVER)
