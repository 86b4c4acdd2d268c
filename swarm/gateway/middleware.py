"""Errors take OpenAI's form on their way out."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.typedefs import Handler

from swarm.gateway.errors import BUG, HttpError, told
from swarm.runtime.tracing import span

log = logging.getLogger(__name__)


def refused(error: HttpError) -> web.Response:
    """The error as a response."""
    return web.json_response(error.body, status=error.status, headers=error.headers)


@web.middleware
async def traced(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A span for each request, in the trace that its ``traceparent`` names."""
    resource = request.match_info.route.resource
    route = "" if resource is None else resource.canonical
    attributes = {"http.request.method": request.method[:20], "http.route": route}
    with span(f"{request.method[:20]} {route}".strip(), attributes, caller=request.headers) as seen:
        response = await handler(request)
        seen.set({"http.response.status_code": response.status})
        return response


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
    except web.HTTPMisdirectedRequest as error:
        return refused(HttpError(error.status, error.text or error.reason, code="unknown_host"))
    except web.HTTPException as error:
        return refused(HttpError(error.status, error.reason, code="http_error"))
    except Exception as error:
        shown = told(error, "request")
        if shown.status == BUG:
            log.error("a bug while answering %s", request.path[:200], exc_info=error)
        return refused(shown)
