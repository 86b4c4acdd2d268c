"""The gateway as a process over a swarm of processes: what it prints can be used, and it ends in good order."""

from __future__ import annotations

import json
import shlex
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from swarm.client.blocking import SwarmModel

QUESTION = [{"role": "user", "content": "Name two colours."}]
ASKED: dict[str, Any] = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
ENDLESS = ASKED | {"max_tokens": 2000, "logit_bias": {"2": -100}}
KEY = "a-key-for-this-test"
FREED_S = 3.0


@pytest.fixture(scope="module")
def gateway(module_launcher: Any, swarm30: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The process and what it said when it listened."""
    keys = tmp_path_factory.mktemp("gateway") / "keys"
    keys.write_text(f"{KEY}\n")
    process = module_launcher.run(
        "swarm.gateway", "--model", "demo", "--initial-peers", swarm30[1].address, "--port", "0", "--json",
        "--api-keys", str(keys), "--log-level", "info",
    )  # fmt: skip
    for _ in range(10):
        said = json.loads(process.line(120.0))
        if said["event"] == "listening":
            return process, said
    raise AssertionError(process.stderr)


def asked_by_curl(line: str) -> Any:
    """What the printed curl command gets, for a short answer."""
    curl, url, *rest = shlex.split(line)
    flags = list(zip(rest[::2], rest[1::2], strict=True))
    assert curl == "curl"
    headers = dict(value.split(": ", 1) for flag, value in flags if flag == "-H")
    [body] = [json.loads(value) for flag, value in flags if flag == "-d"]
    return httpx2.post(url, headers=headers, json=body | {"max_tokens": 12}, timeout=120.0).json()


def test_openais_client_curl_and_a_leaving_client(
    gateway: Any,
    model30: SwarmModel,
    free_tokens: Callable[[SwarmModel], dict[str, int]],
    eventually: Callable[[Callable[[], bool], float], None],
) -> None:
    process, said = gateway
    client = OpenAI(api_key=KEY, base_url=f"{said['url']}/v1", max_retries=0)
    wanted = model30.generate(messages=QUESTION, max_new_tokens=12)

    reply = client.chat.completions.create(**ASKED)
    assert reply.choices[0].message.content == wanted.text
    assert reply.choices[0].finish_reason == wanted.finish_reason
    chain = reply.model_dump()["swarm"]["answers"][0]["chain"]
    assert [stage["span"] for stage in chain] == [[0, 10], [10, 20], [20, 30]]

    chunks = list(client.chat.completions.create(**ASKED, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted.text

    assert asked_by_curl(said["curl"].replace("KEY", KEY))["choices"][0]["finish_reason"] in ("stop", "length")

    before = free_tokens(model30)
    stream = client.chat.completions.create(**ENDLESS, stream=True)
    next(iter(stream))
    assert all(free_tokens(model30)[peer] < free for peer, free in before.items())
    stream.close()
    eventually(lambda: free_tokens(model30) == before, FREED_S)

    stream = client.chat.completions.create(**(ENDLESS | {"max_tokens": 20}), stream=True)
    next(iter(stream))
    process.signal(signal.SIGTERM)
    assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length", "it ends what it has begun"
    began_s = time.monotonic()
    assert process.wait() == 0, process.stderr
    assert time.monotonic() - began_s < 20.0
    assert QUESTION[0]["content"] not in process.stderr
    assert "POST /v1/chat/completions 200" in process.stderr
