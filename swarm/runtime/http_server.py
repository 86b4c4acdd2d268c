"""The life of an HTTP server, and its connections: who gets one, who is sent away, and what is no HTTP at all."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from swarm.core.errors import ConfigError
from swarm.runtime.http import SAFETY, household, is_own

RETRY_S = 5
"""When to come back who was sent away."""
FAREWELL_READ_S = 1.0
MAX_FAREWELLS = 64
"""Connections that were sent away, and are not closed before they could read why."""
MAX_REASON_CHARS = 200

ErrorBody = Callable[[int, str, str], Mapping[str, object]]
"""An error in JSON, of its status, its message and its code: the form is the application's own."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """``idle_s``: how long a connection may take to bring a whole request head, or bring none.

    ``connections``: at once; when they are used up a newcomer takes the place of the oldest one without a request, and
    is sent away with 503 if each has one. An answer on its way counts as one for ``reading_s``. ``per_address`` of them
    may come from one address (of IPv6: from one /64), in the same manner, with 429; this machine's own connections are
    not counted. ``farewell_s``: how long handlers have at the end. ``linger_s``: how long a body that nobody wants is
    read.
    """

    idle_s: float = 75.0
    connections: int = 1024
    per_address: int = 256
    reading_s: float = 10.0
    farewell_s: float = 3.0
    linger_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a connection is none."""

    status: HTTPStatus
    message: str
    code: str

    def response(self, body: ErrorBody) -> bytes:
        """The whole response."""
        data = json.dumps(body(self.status, self.message, self.code)).encode()
        headers = {
            **SAFETY,
            "Content-Type": "application/json; charset=utf-8",
            "Content-Length": str(len(data)),
            "Retry-After": str(RETRY_S),
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join((*lines, "", "")).encode() + data


def home_of(peername: object) -> str:
    """The household of a socket's other end; empty for this machine, and for a Unix socket."""
    address = str(peername[0]) if isinstance(peername, tuple) and peername else ""
    return "" if not address or is_own(address) else household(address)


SHUTTING_DOWN = Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "this server is shutting down", "shutting_down")


class HttpServer:
    """An application's connections, from the first door it listens at to the end. Idempotent where it ends.

    ``home_of`` says whose a connection is (its peer's name as sockets have it); empty for whoever is not counted.
    """

    def __init__(
        self,
        app: web.Application,
        limits: HttpLimits,
        error_body: ErrorBody,
        *,
        home_of: Callable[[object], str] = home_of,
    ) -> None:
        self._limits = limits
        self._error_body = error_body
        self._home_of = home_of
        self._busy: set[web.RequestHandler] = set()
        self._farewells: set[_SentAway] = set()
        self._doors: list[asyncio.Server] = []
        app.middlewares.insert(0, self._counted)
        self._settings: dict[str, Any] = {
            "access_log": None,
            "logger": _ServerLog(log, {}),
            "keepalive_timeout": limits.idle_s,
            "lingering_time": limits.linger_s,
        }
        # A client that leaves takes its handler with it: nothing is computed for nobody.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=limits.farewell_s, **self._settings
        )

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host``; returns the port, which the system chooses for 0. ``ConfigError`` if it cannot be had."""
        await self._set_up()
        loop = asyncio.get_running_loop()
        try:
            door = await loop.create_server(self._at_the_door, host, port)
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
        self._doors.append(await asyncio.get_running_loop().create_unix_server(self._at_the_door, path))

    def close_doors(self) -> None:
        """Take no new connection; those there are stay."""
        for door in self._doors:
            door.close()
        self._doors.clear()

    async def end(self) -> None:
        """Give handlers ``farewell_s`` to end, then cancel them, and close every connection."""
        self.close_doors()
        await self._runner.cleanup()
        for farewell in tuple(self._farewells):
            farewell.close()

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

    def _at_the_door(self) -> asyncio.Protocol:
        return _Door(self._admit)

    def _admit(self, transport: asyncio.Transport) -> None:
        """Let the connection in, or send it away."""
        server = self._runner.server
        home = self._home_of(transport.get_extra_info("peername"))
        refusal = SHUTTING_DOWN if server is None else self._make_room(server, home)
        taker: asyncio.Protocol
        if server is None or refusal is not None:
            taker = _SentAway((refusal or SHUTTING_DOWN).response(self._error_body), self._farewells)
        else:
            taker = _Connection(server, self._error_body, home, self._settings)
        transport.set_protocol(taker)
        taker.connection_made(transport)

    def _make_room(self, server: web.Server, home: str) -> Refusal | None:
        """Room for one more of ``home``, at the cost of one that has no request; else why there is none."""
        here = [one for one in server.connections if isinstance(one, _Connection) and one.transport is not None]
        of_home = [one for one in here if one.home == home] if home else []
        if len(of_home) >= self._limits.per_address:
            message = f"{len(of_home)} connections of your address are all busy"
            crowd, refusal = of_home, Refusal(HTTPStatus.TOO_MANY_REQUESTS, message, "connections_per_address_full")
        elif len(here) >= self._limits.connections:
            message = f"all {len(here)} connections are busy"
            crowd, refusal = here, Refusal(HTTPStatus.SERVICE_UNAVAILABLE, message, "connections_full")
        else:
            return None
        now_s, reading_s = asyncio.get_running_loop().time(), self._limits.reading_s
        uses = [(use, one) for one in crowd if one not in self._busy and (use := one.use(now_s, reading_s)) is not None]
        if not uses:
            return refusal
        _, gone = min(uses, key=lambda pair: pair[0])
        transport = gone.transport
        gone.force_close()
        if transport is not None:
            transport.abort()  # closed, it would stay for as long as the other side does not read
        return None


class _Door(asyncio.Protocol):
    """A connection of which nothing is known yet."""

    def __init__(self, admit: Callable[[asyncio.Transport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._admit(transport)


class _Connection(web.RequestHandler):
    """One that was let in. What is no HTTP gets an answer that looks like all others: aiohttp's tells versions."""

    __slots__ = ("_error_body", "home", "sending_since_s")

    def __init__(self, server: web.Server, error_body: ErrorBody, home: str, settings: Mapping[str, Any]) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self._error_body = error_body
        self.home = home
        self.sending_since_s: float | None = None

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """See aiohttp. The handler is done; its answer is on the way for as long as it is read."""
        self.sending_since_s = self._loop.time()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.sending_since_s = None

    def use(self, now_s: float, reading_s: float) -> int | None:
        """How much is lost with it, as long as no handler is at work: 0 nothing, 1 what the other side has yet to
        take, 2 an answer that has been on its way for ``reading_s``; None: it is on its way, and may yet arrive."""
        if self.sending_since_s is not None:
            return 2 if now_s - self.sending_since_s >= reading_s else None
        return int(self.transport is not None and self.transport.get_write_buffer_size() > 0)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See aiohttp; it logs, and raises if an answer has begun."""
        super().handle_error(request, status, exc, message)
        code, text = "internal_error", "an error in this server; its log says more"
        if status < 500:
            reason = _reason_told(message or "")
            code, text = (
                "malformed_request",
                f"this is no HTTP request: {reason}" if reason else "this is no HTTP request",
            )
        response = web.json_response(self._error_body(status, text, code), status=status, headers=SAFETY)
        response.force_close()
        return response


class _SentAway(asyncio.Protocol):
    """A connection that is told why it is none. Closed at once it might lose that: the request is on its way."""

    def __init__(self, response: bytes, farewells: set[_SentAway]) -> None:
        self._response = response
        self._farewells = farewells
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._response)
        if len(self._farewells) >= MAX_FAREWELLS:
            transport.close()
            return
        self._farewells.add(self)
        transport.write_eof()
        asyncio.get_running_loop().call_later(FAREWELL_READ_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._farewells.discard(self)

    def close(self) -> None:
        """Now."""
        if self._transport is not None:
            self._transport.abort()


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp has to tell. A stranger's malformed request is no error of ours, and must not fill the log."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if isinstance(kwargs.get("exc_info"), HttpProcessingError):
            level = logging.DEBUG
        super().log(level, msg, *args, **kwargs)


def _reason_told(message: str) -> str:
    """What aiohttp says of a malformed request, without what it quotes."""
    return message.partition("\n")[0].partition(": ")[0].strip(" :.")[:MAX_REASON_CHARS]


def _reason(error: OSError) -> str:
    """Names that cannot be resolved have no number in ``errno``'s sense."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error.strerror or error)
