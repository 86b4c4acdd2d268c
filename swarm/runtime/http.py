"""What our HTTP servers have in common: whom they answer to, the headers of every response, their log, their life."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from swarm.core.errors import ConfigError

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

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """``idle_s``: how long a connection may take to bring a whole request head, or bring none.

    ``connections``: at once; when they are used up a newcomer takes the place of the oldest one without a request, and
    is sent away if each has one. ``farewell_s``: how long handlers have at the end. ``linger_s``: how long a body that
    nobody wants is read.
    """

    idle_s: float = 75.0
    connections: int = 1024
    farewell_s: float = 3.0
    linger_s: float = 2.0


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


class HttpServer:
    """An application's connections, from the first door it listens at to the end. Idempotent where it ends."""

    def __init__(self, app: web.Application, limits: HttpLimits) -> None:
        self._limits = limits
        self._busy: set[web.RequestHandler] = set()
        self._doors: list[asyncio.Server] = []
        app.middlewares.insert(0, self._counted)
        # A client that leaves takes its handler with it: nothing is computed for nobody.
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=_ServerLog(log, {}),
            keepalive_timeout=limits.idle_s,
            lingering_time=limits.linger_s,
            shutdown_timeout=limits.farewell_s,
        )

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host``; returns the port, which the system chooses for 0. ``ConfigError`` if it cannot be had."""
        await self._set_up()
        loop = asyncio.get_running_loop()
        try:
            door = await loop.create_server(self._protocol, host, port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host} port {port}: {_reason(error)}",
                hint="choose another --port, or 0 for any that is free",
            ) from error
        self._doors.append(door)
        return int(door.sockets[0].getsockname()[1])

    async def listen_at(self, path: Path) -> None:
        """Listen on a Unix socket."""
        await self._set_up()
        self._doors.append(await asyncio.get_running_loop().create_unix_server(self._protocol, path))

    def close_doors(self) -> None:
        """Take no new connection; those there are stay."""
        for door in self._doors:
            door.close()
        self._doors.clear()

    async def end(self) -> None:
        """Give handlers ``farewell_s`` to end, then cancel them, and close every connection."""
        self.close_doors()
        await self._runner.cleanup()

    async def _set_up(self) -> None:
        if self._runner.server is None:
            await self._runner.setup()

    @web.middleware
    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._busy.discard(request.protocol)

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None:
            return _Turned()
        here = [one for one in server.connections if one.transport is not None]
        if len(here) >= self._limits.connections:
            idle = next((one for one in here if one not in self._busy), None)
            if idle is None:
                return _Turned()
            transport = idle.transport
            idle.force_close()
            if transport is not None:
                transport.abort()  # closed, it would stay for as long as the other side does not read
        return server()


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp has to tell. A stranger's malformed request is no error of ours, and must not fill the log."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if isinstance(kwargs.get("exc_info"), HttpProcessingError):
            level = logging.DEBUG
        super().log(level, msg, *args, **kwargs)


class _Turned(asyncio.Protocol):
    """A connection that there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n")
        transport.close()


def _reason(error: OSError) -> str:
    """Names that cannot be resolved have no number in ``errno``'s sense."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error.strerror or error)
