"""Connections of our HTTP servers, over real sockets: who gets one, who is sent away, and how that is told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from http_at_hand import serving, told

from swarm.core.errors import ConfigError
from swarm.runtime.http import SAFETY
from swarm.runtime.http_server import MAX_FAREWELLS, MAX_REASON_CHARS, HttpLimits, HttpServer, home_of

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Slow:
    """Handlers that answer when they are let go."""

    def __init__(self) -> None:
        self.entered, self.leave = asyncio.Semaphore(0), asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        self.entered.release()
        await self.leave.wait()
        return web.Response(text="hello")


class Caller:
    """Opens connections from addresses of this machine, and closes them at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._opened: list[asyncio.StreamWriter] = []

    async def call(self, said: bytes = b"", address: str = "127.0.0.1") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(address, 0))
        self._opened.append(writer)
        writer.write(said)
        return reader

    def close(self) -> None:
        for writer in self._opened:
            writer.close()


@asynccontextmanager
async def called(**limits: Any) -> AsyncIterator[Caller]:
    """Whoever calls a server with these limits."""
    async with serving(**limits) as (_, port):
        caller = Caller(port)
        try:
            yield caller
        finally:
            caller.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer that ends with its connection; nothing where the connection just ended."""
    whole = await asyncio.wait_for(reader.read(), 10.0)
    head, _, body = whole.decode().partition("\r\n\r\n")
    if not head:
        return 0, {}, None
    first, *rest = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in rest)
    assert int(headers["Content-Length"]) == len(body.encode())
    assert headers["Content-Type"].startswith("application/json")
    assert {name: headers[name] for name in SAFETY} == SAFETY
    return int(first.split()[1]), headers, json.loads(body)


async def test_who_brings_no_request_or_half_of_one_is_sent_away() -> None:
    async with called(idle_s=0.2) as caller:
        for begin in (b"", b"GET / HTTP/1.1\r\nHost: lo"):
            reader = await caller.call(begin)
            assert await asyncio.wait_for(reader.read(), 10.0) == b""


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /" + b"x" * 10_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # whoever speaks TLS to it
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_in_our_own_form(nonsense: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Without a word of what runs here, and it fills no log."""
    caplog.set_level(logging.INFO)
    async with called() as caller:
        status, headers, body = await answer_of(await caller.call(nonsense))
        assert status == 400
        assert headers["Server"] == "swarm"
        assert "ython" not in str(headers) + str(body)
        wrong = body["wrong"]
        assert wrong["code"] == "malformed_request"
        assert wrong["message"].startswith("this is no HTTP request")
        assert len(wrong["message"]) < 2 * MAX_REASON_CHARS
    assert caplog.text == ""


async def test_a_newcomer_takes_the_place_of_the_idle_and_of_nobody_else() -> None:
    slow = Slow()
    async with called(handler=slow.answer, connections=2) as caller:
        idle = await caller.call()
        asking = []
        for _ in range(2):
            asking.append(await caller.call(ASK))
            await slow.entered.acquire()
        assert await asyncio.wait_for(idle.read(), 10.0) == b"", "it had asked nothing"
        status, headers, body = await answer_of(await caller.call(ASK))
        assert (status, headers["Retry-After"], headers["Connection"]) == (503, "5", "close")
        assert body == told(503, "all 2 connections are busy", "connections_full")
        slow.leave.set()
        for reader in asking:
            assert b" 200 " in await reader.readline()


def by_address(peername: object) -> str:
    """As if addresses of loopback were strangers'."""
    assert isinstance(peername, tuple)
    return str(peername[0])


async def test_no_address_takes_all_connections() -> None:
    slow = Slow()
    async with called(handler=slow.answer, connections=4, per_address=2, home_of=by_address) as caller:
        greedy = []
        for _ in range(2):
            greedy.append(await caller.call(ASK))
            await slow.entered.acquire()
        status, headers, body = await answer_of(await caller.call(ASK))
        assert (status, headers["Retry-After"]) == (429, "5")
        assert body["wrong"]["code"] == "connections_per_address_full"
        other = await caller.call(ASK, "127.0.0.2")
        await slow.entered.acquire()
        slow.leave.set()
        for reader in (*greedy, other):
            assert b" 200 " in await reader.readline()


async def test_beyond_its_share_an_address_pushes_out_its_own_idle_connections_alone() -> None:
    async with called(connections=4, per_address=2, home_of=by_address) as caller:
        other = await caller.call(ASK, "127.0.0.2")
        await other.readuntil(b"hello")
        mine = []
        for _ in range(3):
            mine.append(await caller.call(ASK))
            await mine[-1].readuntil(b"hello")
        assert await asyncio.wait_for(mine[0].read(), 10.0) == b"", "the oldest of its own"
        assert not other.at_eof()
        assert not mine[1].at_eof()


async def test_an_answer_that_is_still_being_read_is_not_cut() -> None:
    size = 16 << 20

    async def much(_: web.Request) -> web.Response:
        return web.Response(body=bytes(size))

    async with called(handler=much, per_address=1, home_of=by_address) as caller:
        slow = await caller.call(ASK)
        await slow.readuntil(b"\r\n\r\n")
        status, _, body = await answer_of(await caller.call(ASK))
        assert (status, body["wrong"]["code"]) == (429, "connections_per_address_full")
        assert len(await asyncio.wait_for(slow.readexactly(size), 30.0)) == size


async def test_this_machines_own_are_not_counted_by_address() -> None:
    """A proxy before it would have one address for all."""
    slow = Slow()
    async with called(handler=slow.answer, per_address=1) as caller:
        for _ in range(3):
            await caller.call(ASK)
            await slow.entered.acquire()
        slow.leave.set()


@pytest.mark.parametrize(
    ("peername", "home"),
    [
        (("127.0.0.1", 5), ""),
        (("::1", 5, 0, 0), ""),
        (("::ffff:127.0.0.1", 5, 0, 0), ""),
        ("", ""),
        (None, ""),
        (("192.0.2.7", 5), "192.0.2.7"),
        (("2001:db8::7", 5, 0, 0), "2001:db8::/64"),
    ],
)
def test_whose_a_connection_is(peername: object, home: str) -> None:
    assert home_of(peername) == home


async def test_many_who_are_sent_away_are_closed_at_once() -> None:
    slow = Slow()
    async with called(handler=slow.answer, connections=1) as caller:
        await caller.call(ASK)
        await slow.entered.acquire()
        waiting = [await caller.call() for _ in range(2 * MAX_FAREWELLS)]
        statuses = [(await answer_of(reader))[0] for reader in waiting]
        assert set(statuses) == {503}
        slow.leave.set()


async def test_a_port_that_is_taken_and_a_name_that_is_none_are_told() -> None:
    async with serving() as (_, port):
        other = HttpServer(web.Application(), HttpLimits(), told)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: address already in use"):
            await other.listen("127.0.0.1", port)
        with pytest.raises(ConfigError, match=r"cannot listen on no-such-host\.invalid port 0"):
            await other.listen("no-such-host.invalid", 0)
        await other.end()
        await other.end()
