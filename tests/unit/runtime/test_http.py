"""What our HTTP servers share, over real sockets: whom they answer, headers, and connections that bring nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.runtime.http import (
    PIECE_BYTES,
    Crossing,
    HttpLimits,
    HttpServer,
    PacedResponse,
    crossed,
    guarded,
    header_setter,
    host_allowed,
)

ORIGIN = "https://example.org"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


@asynccontextmanager
async def serving(
    *, handler: Handler = hello, crossing: Crossing | None = None, **limits: float
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server that says hello at ``/`` and ``/api``, known as ``box.local``; with its port."""
    crossing = crossing or Crossing()
    app = web.Application(middlewares=[crossed(crossing), guarded(["box.local"])])
    app.on_response_prepare.append(header_setter(crossing))
    app.router.add_get("/", handler)
    app.router.add_get("/api", handler)
    server = HttpServer(app, HttpLimits(**limits))  # type: ignore[arg-type]
    try:
        yield server, await server.listen("127.0.0.1", 0)
    finally:
        await server.end()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "[::1]:8080",
        "192.0.2.7",
        "localhost",
        "LOCALHOST.:80",
        "a.localhost",
        "Box.local",
    ],
)
def test_hosts_that_no_stranger_can_be(host: str) -> None:
    assert host_allowed(host, ["box.LOCAL"])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost", "127.0.0.1@evil.example",
     "127.0.0.1:80:evil", "[evil]", "", " ", "evil.example#localhost", "box.local.evil"],
)  # fmt: skip
def test_hosts_that_a_stranger_may_be(host: str) -> None:
    assert not host_allowed(host, ["box.local"])
    assert host_allowed(host, ["*"])


@given(st.from_regex(r"[a-z]{1,10}(\.[a-z]{1,10}){1,3}", fullmatch=True))
def test_a_name_is_allowed_only_if_it_was_named(name: str) -> None:
    assert host_allowed(name, []) is (name == "localhost" or name.endswith(".localhost"))
    assert host_allowed(f"{name}:1234", [name])


async def test_a_rebound_name_is_refused_and_told_how_to_allow_it() -> None:
    async with serving() as (_, port), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        async with client.get("/", headers={"Host": "evil.example"}) as refused:
            assert refused.status == 421
            assert "--allow-host" in await refused.text()
            assert "evil" not in await refused.text()
        async with client.get("/", headers={"Host": "box.local"}) as answered:
            assert answered.status == 200


async def test_headers_of_every_response() -> None:
    async with serving() as (_, port), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        for path, status in (("/", 200), ("/nothing", 404)):
            async with client.get(path, headers={"Origin": ORIGIN}) as answer:
                assert answer.status == status
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Server"] == "swarm"
                assert "Access-Control-Allow-Origin" not in answer.headers


async def test_scripts_of_an_origin_that_was_let_in_may_ask_below_the_prefix() -> None:
    crossing = Crossing(origins=(ORIGIN,), prefix="/api", readable="etag")
    async with serving(crossing=crossing) as (_, port), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        ask = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}
        async with client.options("/api", headers=ask) as told:
            assert told.status == 204
            assert told.headers["Access-Control-Allow-Methods"] == "GET"
        async with client.get("/api", headers={"Origin": ORIGIN}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert answer.headers["Access-Control-Expose-Headers"] == "etag"
            assert answer.headers["Vary"] == "Origin"
        for path, origin in (("/", ORIGIN), ("/api", "https://evil.example")):
            async with client.get(path, headers={"Origin": origin}) as answer:
                assert "Access-Control-Allow-Origin" not in answer.headers


async def test_who_brings_no_request_or_half_of_one_is_sent_away() -> None:
    async with serving(idle_s=0.2) as (_, port):
        for begin in (b"", b"GET / HTTP/1.1\r\nHost: lo"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            assert await asyncio.wait_for(reader.read(), 10.0) == b""
            writer.close()


async def test_what_is_no_http_is_refused_and_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as (_, port):
        for nonsense in (
            b"\x00\x01\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"GET /" + b"x" * 10_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(nonsense)
            assert b" 400 " in await asyncio.wait_for(reader.readline(), 10.0)
            writer.close()
    assert caplog.text == ""


async def test_a_newcomer_takes_the_place_of_the_idle_and_of_nobody_else() -> None:
    entered, leave = asyncio.Semaphore(0), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        entered.release()
        await leave.wait()
        return web.Response(text="hello")

    async with serving(handler=slow, connections=2) as (_, port):
        ask = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        idle = await asyncio.open_connection("127.0.0.1", port)
        asking = []
        for _ in range(2):
            asking.append(await asyncio.open_connection("127.0.0.1", port))
            asking[-1][1].write(ask)
            await entered.acquire()
        assert await asyncio.wait_for(idle[0].read(), 10.0) == b"", "it had asked nothing"

        turned = await asyncio.open_connection("127.0.0.1", port)
        answer = await asyncio.wait_for(turned[0].read(), 10.0)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After" in answer
        leave.set()
        for reader, _ in asking:
            assert b" 200 " in await reader.readline()
        for _, writer in (idle, turned, *asking):
            writer.close()


LARGE = bytes(24 * 1024 * 1024)
"""More than what lies between the two ends of a connection."""


def giving(limit_s: float, held: list[asyncio.Transport]) -> Handler:
    async def give(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        held.append(request.transport)
        return PacedResponse(LARGE, headers={"Content-Type": "text/plain"}, limit_s=limit_s)

    return give


async def until(holds: Callable[[], object]) -> None:
    """Return once it holds; fails if that takes ten seconds."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


@asynccontextmanager
async def deaf(port: int) -> AsyncIterator[asyncio.StreamReader]:
    """One that asks, and does not read on its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    try:
        yield reader
    finally:
        writer.close()


async def test_a_large_body_is_given_out_as_it_is_taken() -> None:
    held: list[asyncio.Transport] = []
    async with serving(handler=giving(30.0, held)) as (_, port), deaf(port) as reader:
        await until(lambda: held and held[0].get_write_buffer_size())
        assert held[0].get_write_buffer_size() <= 4 * PIECE_BYTES, "the whole body waits for who does not read"
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert body == LARGE


async def test_the_head_of_a_large_body_tells_its_length() -> None:
    async with (
        serving(handler=giving(30.0, [])) as (_, port),
        aiohttp.ClientSession() as client,
        client.head(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert answer.headers["Content-Length"] == str(len(LARGE))


async def test_who_does_not_read_a_large_body_is_cut_off() -> None:
    held: list[asyncio.Transport] = []
    async with serving(handler=giving(0.2, held)) as (_, port), deaf(port):
        await until(lambda: held and held[0].is_closing())
        assert not held[0].get_write_buffer_size()


async def test_a_newcomer_takes_the_place_of_who_does_not_read_at_once() -> None:
    held: list[asyncio.Transport] = []
    async with serving(handler=giving(30.0, held), connections=1) as (_, port), deaf(port):
        await until(lambda: held and held[0].get_write_buffer_size())
        async with deaf(port):
            await until(lambda: len(held) == 2)
            assert held[0].is_closing()
            assert not held[0].get_write_buffer_size()


async def test_a_port_that_is_taken_and_a_name_that_is_none_are_told() -> None:
    async with serving() as (_, port):
        other = HttpServer(web.Application(), HttpLimits())
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: address already in use"):
            await other.listen("127.0.0.1", port)
        with pytest.raises(ConfigError, match=r"cannot listen on no-such-host\.invalid port 0"):
            await other.listen("no-such-host.invalid", 0)
        await other.end()
        await other.end()
