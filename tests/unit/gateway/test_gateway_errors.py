"""Every error of an answer has its HTTP status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swarm.core.errors import (
    BadLogitsError,
    BusyError,
    ConfigError,
    GenerationInterruptedError,
    NetworkError,
    NoRouteError,
    PeerUnreachableError,
    PromptTooLongError,
    ProtocolViolation,
    RefusedError,
)
from swarm.gateway.errors import UNREACHABLE, HttpError, error_body, told


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (PromptTooLongError("x"), 400, "invalid_request_error", "context_length_exceeded", "messages"),
        (RefusedError("x"), 400, "invalid_request_error", "context_length_exceeded", "messages"),
        (ConfigError("x"), 400, "invalid_request_error", "invalid_value", "messages"),
        (BusyError("x", retry_after_s=2.1), 429, "rate_limit_error", "swarm_busy", None),
        (NoRouteError("x"), 503, "server_error", "layers_missing", None),
        (GenerationInterruptedError("x", token_ids=(), text=""), 503, "server_error", "answer_cut", None),
        (NetworkError("x"), 503, "server_error", "swarm_unavailable", None),
        (PeerUnreachableError("x"), 503, "server_error", "swarm_unavailable", None),
        (BadLogitsError("x"), 503, "server_error", "swarm_unavailable", None),
        (ProtocolViolation("x"), 502, "server_error", "peer_failed", None),
        (RuntimeError("a secret"), 500, "server_error", "internal_error", None),
    ],
    ids=lambda item: type(item).__name__ if isinstance(item, Exception) else "",
)
def test_the_status_says_whose_turn_it_is(
    error: Exception, status: int, kind: str, code: str, param: str | None
) -> None:
    shown = told(error, "messages")
    assert shown.status == status
    body = shown.body["error"]
    assert isinstance(body, dict)
    assert (body["type"], body["code"], body["param"]) == (kind, code, param)
    assert "secret" not in str(body)


RAW = "cannot reach peer 12D3KooWabc: [/ip4/192.0.2.1/tcp/9] dial backoff"


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (PeerUnreachableError(RAW), UNREACHABLE, "swarm_unavailable"),
        (NoRouteError(f"no chain could be opened: {RAW}"), UNREACHABLE, "layers_missing"),
        (
            GenerationInterruptedError(f"the answer was cut after 2 valid tokens: {RAW}", token_ids=(1, 2), text="a"),
            f"the answer was cut after 2 valid tokens: {UNREACHABLE}",
            "answer_cut",
        ),
    ],
)
def test_what_the_network_says_goes_to_the_log(
    error: Exception, message: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    shown = told(error, "messages")
    assert (shown.status, shown.message, shown.code) == (503, message, code)
    assert RAW in caplog.text


def test_what_is_plain_stays_and_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert told(NoRouteError("no server holds layers 3 to 4"), "prompt").message == "no server holds layers 3 to 4"
    assert not caplog.text


def test_when_to_come_back_is_whole_seconds() -> None:
    assert told(BusyError("x", retry_after_s=2.1), "prompt").headers == {"Retry-After": "3"}
    assert told(BusyError("x", retry_after_s=0.0), "prompt").headers == {"Retry-After": "1"}
    assert told(ConfigError("x"), "prompt").headers == {}


def test_an_http_error_stays_what_it_is() -> None:
    error = HttpError(401, "no", code="missing_api_key")
    assert told(error, "prompt") is error
    assert error.headers == {"WWW-Authenticate": "Bearer"}


def test_the_manual_names_every_code() -> None:
    root = Path(__file__).parents[3]
    source = "".join(path.read_text(encoding="utf-8") for path in (root / "swarm" / "gateway").glob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', source)) | {"context_length_exceeded", "unsupported_parameter"}
    codes |= {"malformed_request", "connections_full", "connections_per_address_full"}
    told = set(re.findall(r"`(\w+)`", (root / "docs" / "gateway.md").read_text(encoding="utf-8")))
    assert len(codes) > 15
    assert codes - told == {"http_error", "invalid_body", "internal_error"}


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")]
)
def test_an_error_before_any_handler_has_the_same_form(status: int, kind: str) -> None:
    assert error_body(status, "no room", "full") == {
        "error": {"message": "no room", "type": kind, "param": None, "code": "full"}
    }
