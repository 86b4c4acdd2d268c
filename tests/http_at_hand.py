"""A small HTTP server over real sockets, as tests of what our servers share need it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from swarm.runtime.http import Crossing, crossed, guarded, header_setter
from swarm.runtime.http_server import HttpLimits, HttpServer, home_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


def told(status: int, message: str, code: str) -> dict[str, object]:
    return {"wrong": {"status": status, "message": message, "code": code}}


@asynccontextmanager
async def serving(
    *,
    handler: Handler = hello,
    crossing: Crossing | None = None,
    home_of: Callable[[object], str] = home_of,
    **limits: Any,
) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server that says hello at ``/`` and ``/api``, known as ``box.local``; with its port."""
    crossing = crossing or Crossing()
    app = web.Application(middlewares=[crossed(crossing), guarded(["box.local"])])
    app.on_response_prepare.append(header_setter(crossing))
    app.router.add_get("/", handler)
    app.router.add_get("/api", handler)
    server = HttpServer(app, HttpLimits(**limits), told, home_of=home_of)
    try:
        yield server, await server.listen("127.0.0.1", 0)
    finally:
        await server.end()
