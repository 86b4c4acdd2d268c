"""STATUS streams, in virtual time: what hostile ends can do to each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from status_scene import ASK, LINKS, SERVER, Scene, heard

from swarm.core.errors import BusyError, PeerLostError, PeerUnreachableError, ProtocolViolation
from swarm.core.limits import MAX_HEADER_BYTES
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
)
from swarm.transport.framing import FrameStream
from swarm.transport.status import ANSWER_S, ask_status
from swarm.wire.frames import encode_head
from swarm.wire.messages import Busy, Noop, Refused
from swarm.wire.session import Channel, Role
from swarm.wire.status import AskStatus, StatusReport


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.end()


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
