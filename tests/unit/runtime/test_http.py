"""What our HTTP servers share, over real sockets: whom they answer, headers, and large bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from http_at_hand import Handler, serving
from hypothesis import given
from hypothesis import strategies as st

from swarm.runtime.http import PIECE_BYTES, Crossing, PacedResponse, host_allowed, household, is_own

ORIGIN = "https://example.org"


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


@pytest.mark.parametrize(
    ("address", "home", "own"),
    [
        ("192.0.2.7", "192.0.2.7", False),
        ("::ffff:192.0.2.7", "192.0.2.7", False),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64", False),
        ("fe80::1%eth0", "fe80::/64", False),
        ("127.1.2.3", "127.1.2.3", True),
        ("::ffff:127.0.0.1", "127.0.0.1", True),
        ("::1", "::/64", True),
        ("", "", False),
        ("@socket", "@socket", False),
    ],
)
def test_whom_an_address_stands_for(address: str, home: str, own: bool) -> None:
    assert (household(address), is_own(address)) == (home, own)


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


async def test_a_newcomer_takes_the_place_of_who_does_not_read() -> None:
    held: list[asyncio.Transport] = []
    async with serving(handler=giving(30.0, held), connections=1, reading_s=0.0) as (_, port), deaf(port):
        await until(lambda: held and held[0].get_write_buffer_size())
        async with deaf(port):
            await until(lambda: len(held) == 2)
            assert held[0].is_closing()
            assert not held[0].get_write_buffer_size()
