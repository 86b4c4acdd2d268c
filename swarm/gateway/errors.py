"""What went wrong, as OpenAI's clients expect to be told: a status and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

import logging
import math
import re

from swarm.core.errors import (
    BusyError,
    GenerationInterruptedError,
    MisuseError,
    NoRouteError,
    PeerError,
    PromptTooLongError,
    RefusedError,
    SwarmError,
)

INVALID = "invalid_request_error"
SERVER = "server_error"
BUSY = "rate_limit_error"
BUG = 500
"""The status of what is wrong with the gateway itself."""
UNREACHABLE = "servers of the swarm cannot be reached from the gateway just now; ask again"

log = logging.getLogger(__name__)
_OF_THE_NETWORK = re.compile(r"/(?:ip[46]|dns\w*)/|cannot reach peer")


class HttpError(SwarmError):
    """An error with its HTTP status. ``retry_after_s`` asks the client to come back then, in whole seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = INVALID,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, object]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to it."""
        headers = {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_after_s), 1))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def error_body(status: int, message: str, code: str) -> dict[str, object]:
    """The body of an error that comes before any handler."""
    kind = BUSY if status == 429 else SERVER if status >= BUG else INVALID
    return HttpError(status, message, code=code, kind=kind).body


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> HttpError:
    """A request that cannot be answered as it stands; ``param`` is the field to change."""
    return HttpError(400, message, code=code, param=param)


def too_long(message: str, param: str) -> HttpError:
    """Prompt and answer do not fit."""
    return bad_request(message, param, "context_length_exceeded")


def closing() -> HttpError:
    """This gateway is about to end."""
    return HttpError(503, "the gateway is shutting down", code="shutting_down", kind=SERVER, retry_after_s=5.0)


def told(error: Exception, prompt_field: str) -> HttpError:
    """Any error of an answer as HTTP has it; ``prompt_field`` is what the request calls its prompt.

    An answer that was cut is an error as well, never an answer that ended. What the network says of addresses goes
    to the log, and plain words to who asked.
    """
    found = _told(error, prompt_field)
    if found is error or found.kind == INVALID or not _OF_THE_NETWORK.search(found.message):
        return found
    log.warning("%s: %s", found.code, found.message)
    plain = UNREACHABLE
    if isinstance(error, GenerationInterruptedError):
        plain = f"the answer was cut after {len(error.token_ids)} valid tokens: {UNREACHABLE}"
    return HttpError(found.status, plain, code=found.code, kind=found.kind, retry_after_s=found.retry_after_s)


def _told(error: Exception, prompt_field: str) -> HttpError:
    match error:
        case HttpError():
            return error
        case PromptTooLongError() | RefusedError():
            return too_long(error.message, prompt_field)
        case BusyError():
            wait_s = error.retry_after_s
            return HttpError(429, str(error), code="swarm_busy", kind=BUSY, retry_after_s=wait_s)
        case NoRouteError():
            return HttpError(503, error.message, code="layers_missing", kind=SERVER, retry_after_s=10.0)
        case GenerationInterruptedError():
            return HttpError(503, error.message, code="answer_cut", kind=SERVER)
        case MisuseError():
            return bad_request(str(error), prompt_field)
        case PeerError():
            return HttpError(502, error.message, code="peer_failed", kind=SERVER)
        case SwarmError():
            return HttpError(503, error.message, code="swarm_unavailable", kind=SERVER, retry_after_s=5.0)
    return HttpError(BUG, "an error in the gateway; its log says more", code="internal_error", kind=SERVER)
