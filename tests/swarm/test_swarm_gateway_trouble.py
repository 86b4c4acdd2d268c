"""Clients that leave, swarms that break or are full, and a gateway that is told to end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from gateway_desk import ASKED, ENDLESS, HELLO, MODEL, Desk, desk_of
from harness import SPANS, Swarm, until

from swarm.server.config import ServerConfig

HOP_S = 0.005
FREED_S = 3.0
"""Within so long after its client has left nothing of an answer is held anywhere."""


@pytest_asyncio.fixture
async def desk(swarm: Swarm, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_of(swarm, tmp_path) as desk:
        yield desk


async def begun(swarm: Swarm) -> None:
    """Until every server computes for somebody."""
    await until(lambda: all(node.rows for node in swarm.nodes))


# -- clients that leave --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"n": 2}], ids=["one", "two"])
async def test_a_stream_whose_client_leaves_is_computed_no_further(
    swarm: Swarm, desk: Desk, options: dict[str, Any]
) -> None:
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**ENDLESS, **options, stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await asyncio.sleep(FREED_S)
    await swarm.check_free()
    assert desk.gateway.app.gate.running == 0
    assert max(sum(node.rows) for node in swarm.nodes) < 400


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_client_leaves_while_a_server_is_frozen(swarm: Swarm, desk: Desk, place: int) -> None:
    """The others are free within the same time; nobody's place waits for the one that is silent."""
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**ENDLESS, stream=True)
    frozen = swarm.nodes[place]
    swarm.network.freeze(frozen.peer)
    await stream.close()
    await asyncio.sleep(FREED_S)
    await swarm.check_free(besides=[frozen])
    assert desk.gateway.app.gate.running == 0
    swarm.network.thaw(frozen.peer)
    await asyncio.sleep(10.0)


@pytest.mark.parametrize("after", ["begun", "at once"])
async def test_a_client_that_gives_up_waiting_for_a_whole_answer(swarm: Swarm, desk: Desk, after: str) -> None:
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    asking = asyncio.create_task(client.chat.completions.create(**ENDLESS))
    await (begun(swarm) if after == "begun" else until(lambda: desk.gateway.app.gate.running))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(FREED_S)
    await swarm.check_free()
    assert desk.gateway.app.gate.running == 0


async def test_who_leaves_the_queue_takes_nobodys_turn(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open(concurrent=1)
    swarm.delay(HOP_S)
    gate = desk.gateway.app.gate
    first = asyncio.create_task(client.chat.completions.create(**ASKED))
    await until(lambda: gate.running)
    second = asyncio.create_task(desk.client().chat.completions.create(**ENDLESS))
    await until(lambda: gate.waiting == 1)
    third = asyncio.create_task(desk.client().chat.completions.create(**ASKED))
    await until(lambda: gate.waiting == 2)
    second.cancel()
    answers = await asyncio.gather(first, third)
    assert [answer.choices[0].finish_reason for answer in answers] == ["length", "length"]
    assert gate.running == gate.waiting == 0


async def test_a_client_that_does_not_read_is_cut_off(swarm: Swarm, desk: Desk) -> None:
    """Its answer may end, but neither the connection nor the place in the gateway is held for ever."""
    await swarm.serve()
    await desk.open(write_timeout_s=20.0)
    reader, writer = await asyncio.open_unix_connection(str(desk.path), limit=64)
    large = {"stream": True, "logprobs": True, "top_logprobs": 20, "max_tokens": 250}
    body = json.dumps(ENDLESS | large).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
    await writer.drain()
    await reader.readline()
    await until(lambda: desk.gateway.app.gate.running)
    await asyncio.sleep(60.0)
    assert desk.gateway.app.gate.running == 0
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


# -- swarms that break ---------------------------------------------------------------------------------------------


async def cut_stream(swarm: Swarm, desk: Desk) -> tuple[list[str], str]:
    """The events of a stream whose only chain dies on the way, and its text."""
    await swarm.serve()
    await desk.open(beat_s=1.0)
    swarm.delay(HOP_S)
    streaming = asyncio.create_task(desk.events(ENDLESS))
    await begun(swarm)
    await asyncio.sleep(1.0)
    await swarm.crash(swarm.nodes[1])
    events = await streaming
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return events, "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if "choices" in c)


async def test_a_cut_answer_never_looks_whole(swarm: Swarm, desk: Desk) -> None:
    """Nobody takes over: the stream ends with an error, without a finish reason and without [DONE]."""
    events, text = await cut_stream(swarm, desk)
    assert desk.beats in range(3, 8), "while it looked for somebody it said that it was alive"
    last = json.loads(events[-1])
    assert last["error"]["code"] == "answer_cut"
    assert last["error"]["type"] == "server_error"
    chunks = [json.loads(event) for event in events[:-1]]
    assert len(chunks) > 2
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    ids = swarm.reference.tokenizer.chat(HELLO)
    whole = swarm.reference.greedy(ids, 100, eos_token_id=None, suppress_tokens=[1])
    assert swarm.reference.tokenizer.decode(whole).startswith(text), "what came before is valid"


async def test_openais_client_raises_where_a_stream_is_cut(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**ENDLESS, stream=True)
    await swarm.crash(swarm.nodes[2])
    with pytest.raises(openai.APIError, match="the answer was cut after"):
        [chunk async for chunk in stream]


async def test_a_whole_answer_that_was_cut_is_an_error(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    asking = asyncio.create_task(client.chat.completions.create(**ENDLESS))
    await begun(swarm)
    await asyncio.sleep(1.0)
    await swarm.crash(swarm.nodes[1])
    with pytest.raises(openai.InternalServerError) as caught:
        await asking
    assert (caught.value.status_code, caught.value.code) == (503, "answer_cut")


async def test_a_heal_is_told(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve(*SPANS, *SPANS)
    client = await desk.open(beat_s=0.2)
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**(ENDLESS | {"max_tokens": 60}), stream=True)
    route = stream.response.headers["x-swarm-route"]
    victim = next(node for node in swarm.nodes if node.peer == route.split()[1].split("[")[0])
    await swarm.crash(victim)
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    [answer] = chunks[-1].model_dump()["swarm"]["answers"]
    [heal] = answer["heals"]
    assert [stage["peer"] for stage in heal["lost"]] == [victim.peer]
    assert victim.peer not in [stage["peer"] for stage in answer["chain"]]


async def test_missing_layers_are_named(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve("0:1", "3:5")
    client = await desk.open()
    with pytest.raises(openai.InternalServerError, match="nobody serves layers 1 to 2 of") as caught:
        await client.chat.completions.create(**ASKED)
    assert (caught.value.status_code, caught.value.code) == (503, "layers_missing")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    with pytest.raises(openai.InternalServerError, match="layers 1 to 2 of"):
        await client.chat.completions.create(**ASKED, stream=True)
    health = await desk.http.get("http://gateway/health")
    assert health.status_code == 503
    assert health.json()["missing_layers"] == [[1, 3]]
    await swarm.serve("1:3")
    await asyncio.sleep(5.0)
    assert (await desk.http.get("http://gateway/health")).json()["status"] == "ok"
    assert (await client.chat.completions.create(**ASKED)).choices[0].finish_reason == "length"


async def test_a_swarm_without_any_server(swarm: Swarm, desk: Desk) -> None:
    client = await desk.open()
    with pytest.raises(openai.InternalServerError, match="nobody serves layers 0 to 4 of"):
        await client.chat.completions.create(**ASKED)


# -- too much ------------------------------------------------------------------------------------------------------


async def test_a_busy_swarm_says_when_to_come_back(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve("0:5", config=ServerConfig(max_sessions=1))
    client = await desk.open(busy_timeout_s=1.0)
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**ENDLESS, stream=True)
    with pytest.raises(openai.RateLimitError) as caught:
        await desk.client().chat.completions.create(**ASKED)
    assert caught.value.code == "swarm_busy"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    await stream.close()


async def test_a_full_gateway_says_when_to_come_back(swarm: Swarm, desk: Desk) -> None:
    """One answer runs, one request waits, a third is told at once; the second after its time."""
    await swarm.serve()
    client = await desk.open(concurrent=1, queue=1, queue_timeout_s=0.5)
    swarm.delay(HOP_S)
    gate = desk.gateway.app.gate
    stream = await client.chat.completions.create(**ENDLESS, stream=True)
    second = asyncio.create_task(desk.client().chat.completions.create(**ASKED))
    await until(lambda: gate.waiting)
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(openai.RateLimitError) as third:
        await desk.client().chat.completions.create(**ASKED)
    assert swarm.clock.monotonic_s() - began_s < 0.1
    with pytest.raises(openai.RateLimitError) as caught:
        await second
    for error in (third.value, caught.value):
        assert error.code == "gateway_busy"
        assert int(error.response.headers["retry-after"]) >= 1
    await stream.close()


@pytest.mark.parametrize("options", [{"max_tokens": 700}, {"messages": [{"role": "user", "content": "x" * 700}]}])
async def test_what_does_not_fit_the_context_is_told_before_anything_runs(
    swarm: Swarm, desk: Desk, options: dict[str, Any]
) -> None:
    await swarm.serve()
    client = await desk.open()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**(ASKED | options))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert not any(node.rows for node in swarm.nodes)


async def test_what_no_server_has_room_for(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve(kv_tokens=64)
    client = await desk.open()
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=MODEL, prompt="Hello", max_tokens=300)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


# -- the end -------------------------------------------------------------------------------------------------------


async def test_told_to_end_it_finishes_what_it_began(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open(concurrent=1)
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**(ENDLESS | {"max_tokens": 60}), stream=True)
    waiting = asyncio.create_task(desk.client().chat.completions.create(**ASKED))
    await until(lambda: desk.gateway.app.gate.waiting)
    late = desk.client()
    await late.models.list()  # its connection is there
    stopping = asyncio.create_task(desk.gateway.stop(60.0))
    with pytest.raises(openai.InternalServerError) as caught:
        await waiting
    assert (caught.value.status_code, caught.value.code) == (503, "shutting_down")
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
        await late.chat.completions.create(**ASKED)
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    await stopping
    await swarm.check_free()


async def test_what_takes_too_long_is_cut_and_says_so(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    swarm.delay(HOP_S)
    stream = await client.chat.completions.create(**ENDLESS, stream=True)
    whole = asyncio.create_task(desk.client().chat.completions.create(**ENDLESS))
    await until(lambda: desk.gateway.app.gate.running == 2)
    stopping = asyncio.create_task(desk.gateway.stop(0.5))
    with pytest.raises(openai.APIError, match="shutting down"):
        [chunk async for chunk in stream]
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        await whole
    await stopping
    await swarm.check_free()


# -- the log -------------------------------------------------------------------------------------------------------


async def test_the_log_says_who_and_how_but_not_what(
    swarm: Swarm, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await swarm.serve()
    await desk.open(keys=("the-key-itself",))
    client = desk.client("the-key-itself")
    secret = [{"role": "user", "content": "xyzzy plugh"}]
    reply = await client.chat.completions.create(**(ASKED | {"messages": secret}))
    await client.chat.completions.create(**(ASKED | {"messages": secret}), stream=True)
    await desk.post(ASKED | {"xyzzy": 1}, "/v1/chat/completions?q=xyzzy", Authorization="Bearer the-key-itself")
    access = [record.getMessage() for record in caplog.records if record.name == "swarm.gateway.access"]
    assert any("POST /v1/chat/completions 200" in line for line in access)
    assert any("POST /v1/chat/completions 400" in line for line in access)
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("swarm"))
    for private in ("xyzzy", "the-key-itself", reply.choices[0].message.content or "?"):
        assert private not in logged
