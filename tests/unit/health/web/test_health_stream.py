"""The live stream: whole at first, then what changed; readers who come back, are slow, too many, or still there at
the end."""

from __future__ import annotations

import asyncio
import gzip
import socket
from typing import Any

import aiohttp
import msgspec
import pytest
from health_desk import Desk, Event, Reader, desk_of
from health_states import crowd, event, model, server, state
from msgspec.structs import replace

from swarm.health.state import Patch, SwarmState
from swarm.health.web.errors import ApiError
from swarm.health.web.patches import apply
from swarm.health.web.stream import Places


def followed(shown: SwarmState | None, told: Event) -> SwarmState:
    """What a reader knows after an event."""
    if told.kind == "state":
        return msgspec.convert(told.data, SwarmState)
    assert told.kind == "patch"
    patch = msgspec.convert(told.data, Patch)
    assert shown is not None
    assert shown.revision == patch.base
    return apply(shown, patch)


async def test_a_state_then_patches_that_keep_up_with_it() -> None:
    async with desk_of(state(1, [model([server(1), server(2)])])) as desk:
        reader = await desk.reader()
        told = await reader.event()
        assert (told.kind, followed(None, told)) == ("state", desk.watch.state())
        shown = followed(None, told)
        for revision, servers in ((2, [1, 2, 3]), (5, [2, 3]), (6, [])):
            wanted = await desk.show(
                state(revision, [model([server(one) for one in servers])], events=[event(revision)])
            )
            told = await reader.event()
            assert told.kind == "patch"
            shown = followed(shown, told)
            assert shown == replace(wanted, events=shown.events)
        assert [one.number for one in shown.events] == [2, 5, 6]


async def test_changes_are_told_once_in_a_second_and_together() -> None:
    async with desk_of() as desk:
        reader = await desk.reader()
        await reader.event()
        for revision in range(2, 10):
            desk.watch.show(state(revision, events=[event(revision)]))
            await desk.clock.advance(0.1)
        assert [one["number"] for one in (await reader.event()).data["events"]] == [2], "the first comes at once"
        await desk.clock.advance(1.0)
        told = await reader.event()
        assert (told.data["base"], told.data["revision"]) == (2, 9)


async def test_who_comes_back_gets_what_it_missed() -> None:
    async with desk_of(crowd(5)) as desk:
        reader = await desk.reader()
        told = await reader.event()
        shown = followed(None, told)
        reader.response.close()
        await desk.show(replace(crowd(5, 2), events=[event(1)]))
        await desk.show(replace(crowd(5, 3), events=[event(1), event(2)]))

        again = await desk.reader(Last_Event_ID=told.id)
        told = await again.event()
        assert told.kind == "patch"
        assert followed(shown, told).revision == 3
        assert [one["number"] for one in told.data["events"]] == [1, 2]

        current = await desk.reader(Last_Event_ID=told.id)
        await desk.show(replace(crowd(5, 4), events=[event(1), event(2)]))
        assert (await current.event()).data["base"] == 3, "nothing was told before: it had all"


async def test_who_was_away_too_long_or_comes_from_another_process_begins_anew() -> None:
    async with desk_of(state(1)) as desk:
        mark = (await (await desk.reader()).event()).id
        for revision in range(2, 30):
            await desk.show(state(revision))
        for stale in (mark, "0badcafe-29", mark.partition("-")[0] + "-999", "-29", "x", "²-²"):
            told = await (await desk.reader(Last_Event_ID=stale)).event()
            assert (told.kind, told.data["revision"]) == ("state", 29)


async def test_a_silent_stream_says_that_it_lives() -> None:
    async with desk_of() as desk:
        reader = await desk.reader()
        await reader.event()
        for _ in range(2):
            await desk.clock.advance(15.0)
            assert await reader.block() == {"event": "ping", "data": "{}"}
        await desk.show(state(2))
        assert (await reader.event()).kind == "patch", "a ping has no id, and moves nothing"


async def packed_stream(desk: Desk) -> tuple[aiohttp.ClientSession, aiohttp.ClientResponse]:
    session = aiohttp.ClientSession(auto_decompress=False)
    headers = {"Accept-Encoding": "gzip"}
    return session, await session.get(f"http://127.0.0.1:{desk.port}/api/v1/stream", headers=headers)


async def test_packed_and_plain_streams_say_the_same() -> None:
    async with desk_of(crowd(50)) as desk:
        plain = await desk.reader(Accept_Encoding="identity")
        packed = await desk.reader(Accept_Encoding="gzip")
        session, raw = await packed_stream(desk)
        assert "Content-Encoding" not in plain.response.headers
        assert packed.response.headers["Content-Encoding"] == "gzip"
        said = [await plain.event()]
        assert await packed.event() == said[0]
        for revision in (2, 3):
            await desk.show(crowd(40, revision))
            said.append(await plain.event())
            assert await packed.event() == said[-1], "it can be read as it comes"
        await desk.service.stop()
        whole = await raw.read()
        assert gzip.decompress(whole).count(b"event: ") == 3, "in the end it is one whole gzip file"
        assert len(whole) < len(gzip.decompress(whole)) / 3
        await session.close()


def slow_socket(port: int, room_bytes: int = 4096) -> socket.socket:
    """A reader that asked and has not begun to read, with little room."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room_bytes)
    link.connect(("127.0.0.1", port))
    link.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return link


async def test_who_reads_slowly_gets_the_newest_and_no_queue() -> None:
    shown = 60
    async with desk_of() as desk:
        link = slow_socket(desk.port)
        link.setblocking(False)
        text = "x" * 500_000  # the kernel's own buffers hold a few of these
        for revision in range(2, shown + 2):
            await desk.show(state(revision, [model([server(1, name=f"{revision} {text}")])]))
            await asyncio.sleep(0)
        stream, writer = await asyncio.open_connection(sock=link, limit=2**24)
        await stream.readuntil(b"\r\n\r\n")
        reader, kinds = Reader(_Unchunked(stream)), []  # type: ignore[arg-type]
        known: SwarmState | None = None
        while known is None or known.revision < shown + 1:
            told = await reader.event()
            kinds.append(told.kind)
            known = followed(known, told)
        assert known.models == desk.watch.state().models
        assert len(kinds) < shown / 2
        assert kinds.count("state") == 2, "at first, and when its own state was no longer known"
        writer.close()


class _Unchunked:
    """A response over a bare socket, as far as ``Reader`` needs it."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.content = self

    async def readuntil(self, end: bytes) -> bytes:
        while end not in self._buffer:
            size = int(await self._stream.readline(), 16)
            self._buffer += (await self._stream.readexactly(size + 2))[:-2]
        line, _, self._buffer = self._buffer.partition(end)
        return bytes(line + end)


async def test_who_does_not_read_at_all_is_cut_off_and_frees_the_place() -> None:
    text = "x" * 8_000_000
    async with desk_of(state(1, [model([server(1, name=text)])]), streams=1, write_timeout_s=0.2) as desk:
        link = slow_socket(desk.port)
        link.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(link, 12) == b"HTTP/1.1 200"
        assert (await desk.get("/api/v1/stream")).status == 503
        await until_let_in(desk)
        link.close()


async def test_who_reads_just_enough_of_an_event_to_be_borne_with_is_cut_off_in_the_end() -> None:
    text = "x" * 64_000_000
    async with desk_of(state(1, [model([server(1, name=text)])]), streams=1, write_timeout_s=0.5) as desk:
        link = slow_socket(desk.port, 2**17)
        link.setblocking(False)
        reading = asyncio.create_task(read_a_little(link))
        await until_let_in(desk)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        link.close()


async def read_a_little(link: socket.socket) -> None:
    """Some 10 MB a second."""
    loop = asyncio.get_running_loop()
    while True:
        await loop.sock_recv(link, 2**16)
        await asyncio.sleep(0.005)


async def until_let_in(desk: Desk) -> None:
    """Ask for a stream until there is a place."""
    for _ in range(3000):
        async with desk.client.get("/api/v1/stream") as answer:
            if answer.status == 200:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("never let in")


async def test_streams_are_counted_and_freed() -> None:
    async with desk_of(streams=2, streams_per_address=2) as desk:
        first, _ = await desk.reader(), await desk.reader()
        full = await desk.get("/api/v1/stream")
        assert full.status == 503
        assert int(full.headers["Retry-After"]) > 0
        assert (await full.json())["error"]["code"] == "streams_full"
        metrics = await (await desk.get("/metrics")).text()
        assert "swarm_health_streams 2.0" in metrics
        assert (await desk.client.head("/api/v1/stream")).status == 200, "it takes no place"
        first.response.close()
        await until_let_in(desk)


async def test_one_address_does_not_take_all_places() -> None:
    async with desk_of(streams=5, streams_per_address=1) as desk:
        await desk.reader()
        full = await desk.get("/api/v1/stream")
        assert (full.status, (await full.json())["error"]["code"]) == (503, "streams_per_address_full")
        local: Any = ("127.0.0.2", 0)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=local)) as other,
            other.get(f"http://127.0.0.1:{desk.port}/api/v1/stream") as answer,
        ):
            assert answer.status == 200


def test_a_network_of_ipv6_is_one_address() -> None:
    places = Places(limit=10, per_address=2)
    with places.one("2001:db8::1"), places.one("2001:db8::ffff:1"):
        with pytest.raises(ApiError, match="your address"), places.one("2001:db8::2"):
            pass
        with places.one("2001:db8:0:1::1"), places.one("192.0.2.1"), places.one("192.0.2.2"), places.one(""):
            assert places.taken == 6
    assert places.taken == 0


async def test_the_end_is_told_at_once_and_nobody_comes_in_after_it() -> None:
    async with desk_of(farewell_s=30.0) as desk:
        reader = await desk.reader()
        await reader.event()
        async with asyncio.timeout(10.0):  # far less than handlers would have
            await desk.service.stop()
            while await reader.block() is not None:
                pass
        try:
            async with desk.client.get("/api/v1/state") as late:
                raise AssertionError(f"answered {late.status}")
        except aiohttp.ClientConnectionError:
            pass
