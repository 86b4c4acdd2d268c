"""The gateway's HTTP itself: the form of every error, keys, origins, the page."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from gateway_desk import ASKED, MODEL, Desk, desk_of
from harness import Swarm

KEY = "a-key-that-is-known"
PATHS = ("/v1/chat/completions", "/v1/completions")


@pytest_asyncio.fixture
async def desk(swarm: Swarm, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_of(swarm, tmp_path) as desk:
        yield desk


def error_of(response: Any, status: int) -> dict[str, Any]:
    """The error of a response, which must have OpenAI's form."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


# -- who may ask ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({}, "missing_api_key"),
        ({"Authorization": KEY}, "missing_api_key"),
        ({"Authorization": f"Basic {KEY}"}, "missing_api_key"),
        ({"Authorization": "bearer x"}, "invalid_api_key"),
        ({"Authorization": f"Bearer {KEY}x"}, "invalid_api_key"),
        ({"Authorization": f"Bearer {KEY[:-1]}"}, "invalid_api_key"),
    ],
)
async def test_strangers_are_kept_out(desk: Desk, sent: dict[str, str], code: str) -> None:
    await desk.open(keys=(KEY, "another-key"))
    responses = [await desk.post(ASKED, path, **sent) for path in PATHS]
    responses += [await desk.http.get(f"http://gateway/v1/models{rest}", headers=sent) for rest in ("", f"/{MODEL}")]
    for response in responses:
        error = error_of(response, 401)
        assert (error["code"], error["type"]) == (code, "invalid_request_error")
        assert response.headers["www-authenticate"] == "Bearer"
        assert KEY not in response.text


async def test_whoever_has_a_key_is_let_in(desk: Desk) -> None:
    await desk.open(keys=("another-key", KEY))
    assert [model.id async for model in desk.client(KEY).models.list()] == [MODEL]
    with pytest.raises(openai.AuthenticationError):
        await desk.client("wrong").models.list()
    assert (await desk.http.get("http://gateway/health")).status_code == 503, "nobody serves, but anybody may look"


# -- what may be asked ---------------------------------------------------------------------------------------------


async def test_the_model_has_a_card(swarm: Swarm, desk: Desk) -> None:
    client = await desk.open(model_names=("toy", "org/toy"))
    for name in ("toy", "org/toy"):
        card = await client.models.retrieve(name)
        assert (card.id, card.object, card.owned_by) == (name, "model", "swarm")
    assert card.model_dump()["context_tokens"] == swarm.files.context_tokens
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt-4")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_another_model_is_not_here(desk: Desk) -> None:
    client = await desk.open()
    with pytest.raises(openai.NotFoundError, match="'toy' is") as caught:
        await client.chat.completions.create(**(ASKED | {"model": "gpt-4"}))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b"[1]", "invalid_json", None),
        (b"\xff\xfe", "invalid_json", None),
        (b"[" * 100_000, "invalid_json", None),
        ({"messages": ASKED["messages"]}, "missing_required_parameter", "model"),
        ({"model": MODEL}, "missing_required_parameter", "messages"),
        (ASKED | {"tools": [{}], "user": "ada"}, "unsupported_parameter", "tools"),
        (ASKED | {"temperature": "hot"}, "invalid_value", "temperature"),
        (ASKED | {"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        (ASKED | {"logit_bias": {"5000000": 1}}, "invalid_value", "logit_bias"),
        (ASKED | {"logit_bias": {"999": 1}}, "invalid_value", "logit_bias"),
        (ASKED | {"n": 3}, "invalid_value", "n"),
    ],
)
async def test_what_is_wrong_is_named(desk: Desk, body: Any, code: str, param: str | None) -> None:
    await desk.open(concurrent=2)
    error = error_of(await desk.post(body), 400)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)


async def test_a_model_without_a_chat_template(swarm: Swarm, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.open()
    monkeypatch.setattr(swarm.reference.tokenizer, "_template", None)
    error = error_of(await desk.post(ASKED), 400)
    assert "no chat template" in error["message"]
    assert error["param"] == "messages"


async def test_other_urls_and_methods(desk: Desk) -> None:
    await desk.open()
    assert error_of(await desk.post(ASKED, "/v1/embeddings"), 404)["code"] == "unknown_url"
    response = await desk.http.get("http://gateway/v1/chat/completions")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_other_content_is_not_taken_for_json(desk: Desk, kind: str) -> None:
    """A web page may send these to any address without asking; JSON it may not."""
    await desk.open()
    error = error_of(await desk.post(ASKED, **{"Content-Type": kind}), 415)
    assert error["code"] == "unsupported_media_type"


async def test_a_large_body_is_refused_before_it_is_read(desk: Desk) -> None:
    await desk.open(max_body_bytes=1000)
    body = json.dumps(ASKED | {"stop": "x" * 1000}).encode()
    assert error_of(await desk.post(body), 413)["code"] == "request_too_large"

    async def pieces() -> AsyncIterator[bytes]:
        yield body[:900]
        yield body[900:]

    sent = {"Content-Type": "application/json"}
    response = await desk.http.post(f"http://gateway{PATHS[0]}", content=pieces(), headers=sent)
    assert error_of(response, 413)["code"] == "request_too_large"
    packed = gzip.compress(body)
    assert len(packed) < 1000
    assert error_of(await desk.post(packed, **{"Content-Encoding": "gzip"}), 413)["code"] == "request_too_large"


async def test_a_body_that_does_not_come(desk: Desk) -> None:
    await desk.open(body_timeout_s=5.0)
    reader, writer = await asyncio.open_unix_connection(str(desk.path))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\n"
        b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    await writer.drain()
    assert await reader.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
    writer.close()
    await writer.wait_closed()


async def test_a_bug_tells_strangers_nothing(
    swarm: Swarm, desk: Desk, monkeypatch: pytest.MonkeyPatch, errors: list[Any]
) -> None:
    await desk.open()

    def broken(*_: Any) -> None:
        raise RuntimeError("a secret of ours")

    monkeypatch.setattr(desk.model, "encode", broken)
    response = await desk.post(ASKED)
    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert len(errors) == 1
    errors.clear()


# -- browsers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((), "https://a.example", None),
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
    ],
)
async def test_other_origins_are_let_in_only_where_told(
    desk: Desk, origins: tuple[str, ...], origin: str, allowed: str | None
) -> None:
    await desk.open(origins=origins)
    wanted = "authorization,content-type,x-stainless-lang"
    asks = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": wanted,
    }
    before = await desk.http.request("OPTIONS", f"http://gateway{PATHS[0]}", headers=asks)
    assert before.headers.get("access-control-allow-origin") == allowed
    if allowed:
        assert before.status_code == 204
        assert before.headers["access-control-allow-headers"] == wanted
    response = await desk.post(ASKED, Origin=origin)
    assert response.headers.get("access-control-allow-origin") == allowed


async def test_the_page_runs_nothing_but_its_own_files(desk: Desk) -> None:
    await desk.open()
    for path, kind in {
        "/": "text/html",
        "/page/chat.js": "text/javascript",
        "/page/chat.css": "text/css",
        "/page/icon.svg": "image/svg+xml",
    }.items():
        response = await desk.http.get(f"http://gateway{path}")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith(kind)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


async def test_no_page_where_none_is_wanted(desk: Desk) -> None:
    await desk.open(page=False)
    assert error_of(await desk.http.get("http://gateway/"), 404)["code"] == "unknown_url"
