"""What our HTTP servers have in common: whom they answer to, the headers of every response, their log, large bodies."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": CONTENT_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "swarm",
}
"""Headers of every response."""
ANY = "*"
NOTE = web.RequestKey("note", str)
"""Where a handler leaves a word for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What scripts of other ``origins`` may do (``*``: of all; empty: browsers keep every one of them out).

    ``prefix`` is of the paths they may ask, ``methods`` how, ``readable`` the headers that they may read.
    """

    origins: Sequence[str] = ()
    prefix: str = "/"
    methods: str = "GET"
    readable: str = ""

    def lets(self, request: web.Request) -> bool:
        """Whether the origin that the request names may do this."""
        known = ANY in self.origins or request.headers.get("Origin", ANY) in self.origins
        return known and "Origin" in request.headers and request.path.startswith(self.prefix)


def host_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a request to ``host`` (the header of that name) is meant for a server that is called ``names``.

    A page of a stranger that points its own name at this machine (DNS rebinding) may ask us as if it were ours; the
    name betrays it. So IP addresses pass, as does ``localhost``: no stranger's page has such an origin.
    """
    if ANY in names:
        return True
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@\s]+)(?::\d{0,5})?", host)
    if match is None:
        return False
    name = match[1].lower().removesuffix(".")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost" or name.endswith(".localhost") or name in {other.lower() for other in names}
    return True


def is_own(address: str) -> bool:
    """Whether an IP address as sockets have it is this machine's loopback."""
    host = _parsed(address)
    return host is not None and host.is_loopback


def household(address: str) -> str:
    """Whom an IP address stands for: with IPv6 everybody has a /64 of them. What is no address, for itself."""
    host = _parsed(address)
    if host is None:
        return address
    return str(host) if host.version == 4 else str(ipaddress.ip_network((int(host), 64), strict=False))


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """As a socket that takes IPv6 and IPv4 has it, too; None for what is no address."""
    try:
        host = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(host, "ipv4_mapped", None) or host


def guarded(names: Collection[str]) -> Middleware:
    """Refuses requests to other names than ``names`` (``host_allowed``) with ``web.HTTPMisdirectedRequest``, 421."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        hosts = request.headers.getall("Host", ())
        if hosts and not all(host_allowed(host, names) for host in hosts):
            said = "this server does not know itself by that name; --allow-host NAME teaches it"
            raise web.HTTPMisdirectedRequest(text=said)
        return await handler(request)

    return guard


def logged(access: logging.Logger) -> Middleware:
    """One line a request: who, what, how it ended, how long it took. Neither bodies nor query strings nor keys."""

    @web.middleware
    async def write(request: web.Request, handler: Handler) -> web.StreamResponse:
        began_s = time.monotonic()
        ended = "client left"
        try:
            response = await handler(request)
            ended = f"{response.status} {request[NOTE]}" if NOTE in request else str(response.status)
            return response
        finally:
            took_s = time.monotonic() - began_s
            access.info("%s %s %s %s %.2f s", request.remote, request.method[:20], request.path[:200], ended, took_s)

    return write


def crossed(crossing: Crossing) -> Middleware:
    """Answers browsers that ask whether a script may ask; what they are told is ``header_setter``'s."""

    @web.middleware
    async def cross(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if asks and crossing.origins and request.path.startswith(crossing.prefix):
            return web.Response(status=204)
        return await handler(request)

    return cross


def header_setter(crossing: Crossing) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Sets the headers of every response, just before it begins (``on_response_prepare``)."""

    async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SAFETY)
        if not crossing.origins:
            return
        response.headers.add("Vary", "Origin")
        if not crossing.lets(request):
            return
        origin = ANY if ANY in crossing.origins else request.headers["Origin"]
        response.headers["Access-Control-Allow-Origin"] = origin
        if crossing.readable:
            response.headers["Access-Control-Expose-Headers"] = crossing.readable
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = crossing.methods
            response.headers["Access-Control-Allow-Headers"] = _wanted_headers(request)
            response.headers["Access-Control-Max-Age"] = "600"

    return set_headers


def _wanted_headers(request: web.Request) -> str:
    """What a script of a known origin wants to send: OpenAI's own adds a dozen that say what it runs on."""
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    return wanted if re.fullmatch(r"[A-Za-z0-9_, -]{1,2000}", wanted) else "authorization, content-type"


PIECE_BYTES = 64 * 1024
"""Of a body, handed to a connection at once."""
BODY_S = 60.0
"""For a body to be taken."""


class PacedResponse(web.StreamResponse):
    """A body given out no faster than it is taken, and cut off after ``limit_s``: what was handed to a connection is
    copied for it, so that readers who do not read would take memory as often as the whole body is large."""

    def __init__(self, data: bytes, *, headers: Mapping[str, str], limit_s: float = BODY_S) -> None:
        super().__init__(headers=headers)
        self.content_length = len(data)
        self._data = data
        self._limit_s = limit_s

    async def write_eof(self, data: bytes = b"") -> None:
        """Write all of it. Raises ``ConnectionResetError`` if the reader is gone, or took too long."""
        request = self._req
        try:
            async with asyncio.timeout(self._limit_s):
                if request is not None and request.method != "HEAD" and not self._eof_sent:
                    for start in range(0, len(self._data), PIECE_BYTES):
                        await self.write(self._data[start : start + PIECE_BYTES])
                await super().write_eof(data)
        except TimeoutError:
            if request is not None and request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the reader does not read") from None
