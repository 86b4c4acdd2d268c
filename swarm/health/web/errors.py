"""What went wrong, as JSON: a status and ``{"error": {message, param, code}}``."""

from __future__ import annotations

import logging
import math

from aiohttp import web
from aiohttp.typedefs import Handler

from swarm.core.errors import SwarmError

log = logging.getLogger(__name__)


class ApiError(SwarmError):
    """An error with its HTTP status. ``param`` is what to change, ``retry_after_s`` when to come back."""

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, object]:
        """The JSON body."""
        return {"error": {"message": self.message, "param": self.param, "code": self.code}}

    @property
    def response(self) -> web.Response:
        """The error as a response; nobody may keep it for the next time."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_after_s), 1))
        return web.json_response(self.body, status=self.status, headers=headers)


def error_body(status: int, message: str, code: str) -> dict[str, object]:
    """The body of an error that comes before any handler."""
    return ApiError(status, message, code=code).body


def bad_parameter(name: str, message: str) -> ApiError:
    """A parameter that cannot be answered."""
    return ApiError(400, f"{name}: {message}", code="invalid_parameter", param=name)


@web.middleware
async def shaped(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error has this form, whoever raised it."""
    try:
        return await handler(request)
    except ApiError as error:
        return error.response
    except web.HTTPNotFound:
        return ApiError(404, f"no such URL: {request.path[:200]}", code="unknown_url").response
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        wrong = f"{request.method[:20]} is not allowed here, but {allowed}"
        response = ApiError(405, wrong, code="method_not_allowed").response
        response.headers["Allow"] = allowed
        return response
    except web.HTTPMisdirectedRequest as error:
        return ApiError(error.status, error.text or error.reason, code="unknown_host").response
    except web.HTTPException as error:
        return ApiError(error.status, error.reason, code="http_error").response
    except SwarmError as error:
        return ApiError(503, error.message, code="unavailable", retry_after_s=5.0).response
    except Exception as error:
        log.error("a bug while answering %s", request.path[:200], exc_info=error)
        return ApiError(500, "an error in the health page; its log says more", code="internal_error").response
