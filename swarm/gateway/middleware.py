"""What happens to every request: errors take their form, headers are set, a line is logged."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from swarm.gateway.errors import BUG, HttpError, told

PROVENANCE = "x-swarm-route, x-swarm-exact, x-swarm-verification, retry-after"
"""Headers that scripts of other origins may read."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": CONTENT_POLICY,
}
NOTE = web.RequestKey("note", str)
"""Where a handler leaves a word for the log."""

log = logging.getLogger(__name__)
access = logging.getLogger("swarm.gateway.access")


def refused(error: HttpError) -> web.Response:
    """The error as a response."""
    return web.json_response(error.body, status=error.status, headers=error.headers)


@web.middleware
async def shaped(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error has OpenAI's form, whoever raised it."""
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return refused(HttpError(404, f"no such URL: {request.method} {request.path[:200]}", code="unknown_url"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        wrong = HttpError(405, f"{request.method[:20]} is not allowed here, but {allowed}", code="method_not_allowed")
        response = refused(wrong)
        response.headers["Allow"] = allowed
        return response
    except web.HTTPException as error:
        return refused(HttpError(error.status, error.reason, code="http_error"))
    except Exception as error:
        shown = told(error, "request")
        if shown.status == BUG:
            log.error("a bug while answering %s", request.path[:200], exc_info=error)
        return refused(shown)


@web.middleware
async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One line a request: who, what, how it ended, how long it took. Neither bodies nor query strings nor keys."""
    began_s = time.monotonic()
    ended = "client left"
    try:
        response = await handler(request)
        ended = f"{response.status} {request[NOTE]}" if NOTE in request else str(response.status)
        return response
    finally:
        took_s = time.monotonic() - began_s
        access.info("%s %s %s %s %.2f s", request.remote, request.method[:20], request.path[:200], ended, took_s)


def crossing(origins: Sequence[str]) -> Middleware:
    """Lets scripts of ``origins`` in (``*``: of all); without any nothing is said, and browsers keep them out."""

    @web.middleware
    async def cross(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not origins or request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return await handler(request)
        return web.Response(status=204)

    return cross


def _wanted_headers(request: web.Request) -> str:
    """What a script of a known origin wants to send: OpenAI's own adds a dozen that say what it runs on."""
    wanted = request.headers.get("Access-Control-Request-Headers", "")
    return wanted if re.fullmatch(r"[A-Za-z0-9_, -]{1,2000}", wanted) else "authorization, content-type"


def header_setter(origins: Sequence[str]) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Sets the headers of every response, just before it begins."""

    async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SAFETY)
        response.headers["Server"] = "swarm"
        if not origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin", "")
        if origin and ("*" in origins or origin in origins):
            response.headers["Access-Control-Allow-Origin"] = "*" if "*" in origins else origin
            response.headers["Access-Control-Expose-Headers"] = PROVENANCE
            if request.method == "OPTIONS":
                response.headers["Access-Control-Allow-Methods"] = "GET, POST"
                response.headers["Access-Control-Allow-Headers"] = _wanted_headers(request)
                response.headers["Access-Control-Max-Age"] = "600"

    return set_headers
