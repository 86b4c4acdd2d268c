"""What OpenAI's own client gets from a gateway over a whole swarm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gateway_desk import ASKED, HELLO, MODEL, NO_END, Desk, desk_of
from harness import SPANS, Swarm

CLIENTS = 50
TOKENS = 12
TEXT: dict[str, Any] = {"model": MODEL, "temperature": 0, "logit_bias": NO_END, "max_tokens": TOKENS}


@pytest_asyncio.fixture
async def desk(swarm: Swarm, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_of(swarm, tmp_path) as desk:
        yield desk


def alone(swarm: Swarm, content: str = "Hello", new_tokens: int = TOKENS) -> str:
    """What transformers answers to a chat of one message."""
    tokenizer = swarm.reference.tokenizer
    ids = tokenizer.chat([{"role": "user", "content": content}])
    return tokenizer.decode(swarm.reference.greedy(ids, new_tokens, eos_token_id=None, suppress_tokens=[1]))


def continued(swarm: Swarm, prompt: str) -> str:
    """What transformers adds to a text."""
    ids = swarm.reference.greedy(prompt, TOKENS, eos_token_id=None, suppress_tokens=[1])
    return swarm.reference.tokenizer.decode(ids)


# -- chats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["local", "remote"])
async def test_a_chat_is_what_the_model_alone_would_say(swarm: Swarm, desk: Desk, head: str) -> None:
    nodes = await swarm.serve()
    client = await desk.open(head=head)
    raw = await client.chat.completions.with_raw_response.create(**ASKED)
    reply = raw.parse()
    [choice] = reply.choices
    assert choice.message.content == alone(swarm)
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    prompt = len(swarm.reference.tokenizer.chat(HELLO))
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, TOKENS)
    assert reply.usage.total_tokens == prompt + TOKENS
    assert reply.object == "chat.completion"
    assert raw.headers["x-swarm-route"] == " ".join(
        f"{node.peer}[{span}]" for node, span in zip(nodes, SPANS, strict=True)
    )
    [answer] = reply.model_dump()["swarm"]["answers"]
    assert [stage["peer"] for stage in answer["chain"]] == [node.peer for node in nodes]
    assert (answer["heals"], answer["exact"]) == ([], True)
    assert raw.headers["x-swarm-exact"] == "true"


async def test_who_signed_for_an_answer_is_told(swarm: Swarm, desk: Desk) -> None:
    nodes = await swarm.serve()
    client = await desk.open()
    raw = await client.chat.completions.with_raw_response.create(**(ASKED | {"max_tokens": 100}))
    [answer] = raw.parse().model_dump()["swarm"]["answers"]
    found = answer["verification"]
    assert found["windows"] > 0
    assert found["rows"] > 0
    assert sorted(found["signers"]) == sorted(node.peer for node in nodes)
    assert found["problems"] == []
    told = f"windows={found['windows']};rows={found['rows']};signers=3;problems=0"
    assert raw.headers["x-swarm-verification"] == told


async def test_a_stream_has_the_shape_that_clients_expect(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    await desk.open()
    events = await desk.events(ASKED | {"stream_options": {"include_usage": True}})
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    usage = chunks.pop()
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == TOKENS
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert "".join(choice["delta"]["content"] for choice in choices[:-1]) == alone(swarm)
    assert len(chunks[-1]["swarm"]["answers"][0]["chain"]) == len(SPANS)


async def test_no_usage_unless_asked_for(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    await desk.open()
    chunks = [json.loads(event) for event in (await desk.events(ASKED))[:-1]]
    assert not any("usage" in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


async def test_openais_client_reads_the_stream(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    stream = await client.chat.completions.create(**ASKED, stream=True)
    assert len(stream.response.headers["x-swarm-route"].split()) == len(SPANS)
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
    assert text == alone(swarm)


async def test_a_conversation_goes_back_as_the_client_holds_it(swarm: Swarm, desk: Desk) -> None:
    """Clients send what they got, nulls and all; content may come in parts; developer is system."""
    await swarm.serve()
    client = await desk.open()
    said = (await client.chat.completions.create(**ASKED)).choices[0].message.model_dump()
    parts = [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]
    messages = [*HELLO, said, {"role": "user", "content": parts}]
    reply = await client.chat.completions.create(**{**ASKED, "messages": messages})
    plain = [*HELLO, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And now?"}]
    same = await swarm.client().generate(messages=plain, max_new_tokens=TOKENS, logit_bias={1: -100.0})
    assert reply.choices[0].message.content == same.text


# -- how to answer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.3, "seed": 5},
        {"temperature": 1.3, "seed": 5, "top_p": 0.4},
        {"temperature": 1.3, "seed": 5, "extra_body": {"top_k": 3}},
        {"temperature": 0, "presence_penalty": 1.5},
        {"temperature": 0, "frequency_penalty": 0.9},
        {"temperature": 0, "extra_body": {"repetition_penalty": 1.4}},
        {"temperature": 0, "logit_bias": {"40": 30, "1": -100}},
    ],
    ids=str,
)
async def test_every_option_reaches_the_sampler(swarm: Swarm, desk: Desk, options: dict[str, Any]) -> None:
    await swarm.serve()
    client = await desk.open()
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": TOKENS, "logit_bias": NO_END}
    reply = await client.chat.completions.create(**(asked | options))
    own = {key: value for key, value in options.items() if key not in ("extra_body", "logit_bias")}
    bias = {int(token): float(value) for token, value in (asked | options)["logit_bias"].items()}
    same: dict[str, Any] = own | options.get("extra_body", {}) | {"logit_bias": bias, "max_new_tokens": TOKENS}
    text = (await swarm.client().generate(messages=HELLO, **same)).text
    assert reply.choices[0].message.content == text
    plain: dict[str, Any] = {"temperature": options["temperature"], "seed": 5, "logit_bias": {1: -100.0}}
    other = (await swarm.client().generate(messages=HELLO, max_new_tokens=TOKENS, **plain)).text
    assert (text == other) == (set(options) == {"temperature", "seed"}), "an option that changes nothing tests nothing"


async def test_stop_strings_end_the_answer(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    options = ASKED | {"temperature": 1.5, "seed": 3, "max_tokens": 40}
    whole = (await client.chat.completions.create(**options)).choices[0].message.content
    assert whole
    place = len(whole) // 2
    stop = whole[place : place + 2]
    for given in (stop, [stop], ["never there at all", stop]):
        [choice] = (await client.chat.completions.create(**options, stop=given)).choices
        assert choice.finish_reason == "stop"
        assert choice.message.content == whole[: whole.index(stop)]
    streamed = [json.loads(event) for event in (await desk.events(options | {"stop": stop}))[:-1]]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in streamed)
    assert text == whole[: whole.index(stop)]
    assert streamed[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_models_own_end_is_a_stop(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    reply = await client.chat.completions.create(**(ASKED | {"logit_bias": {"1": 100}}), logprobs=True)
    [choice] = reply.choices
    assert (choice.finish_reason, choice.message.content) == ("stop", "")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 1, "the token that ended it was computed"
    assert choice.logprobs is None or not choice.logprobs.content, "but shows no text"


async def test_several_answers_to_one_seed_differ_and_come_again(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    options = ASKED | {"temperature": 1.5, "seed": 11, "n": 3}
    first = await client.chat.completions.create(**options)
    again = await client.chat.completions.create(**options)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [choice.message.content for choice in again.choices] == texts
    assert first.usage is not None
    assert first.usage.completion_tokens == 3 * TOKENS
    assert first.usage.prompt_tokens == len(swarm.reference.tokenizer.chat(HELLO)), "the prompt counts once"
    streamed = ["", "", ""]
    ends = []
    async for chunk in await client.chat.completions.create(**options, stream=True):
        [choice] = chunk.choices
        streamed[choice.index] += choice.delta.content or ""
        ends += [choice.index] if choice.finish_reason else []
    assert streamed == texts
    assert sorted(ends) == [0, 1, 2]


async def test_log_probabilities_add_up_to_the_text(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    options = ASKED | {"logprobs": True, "top_logprobs": 3, "temperature": 1.0, "seed": 2}
    [choice] = (await client.chat.completions.create(**options)).choices
    assert choice.logprobs is not None
    told = choice.logprobs.content or []
    assert len(told) == TOKENS
    assert all(len(token.top_logprobs) == 3 and token.logprob <= 0.0 for token in told)
    whole = [token for token in told if token.bytes is not None]
    assert all(bytes(token.bytes or []).decode() == token.token for token in whole)
    result = await swarm.client().generate(
        messages=HELLO, max_new_tokens=TOKENS, temperature=1.0, seed=2, logprobs=3, logit_bias={1: -100.0}
    )
    assert [token.logprob for token in told] == [token.logprob for token in result.logprobs]
    streamed = []
    async for chunk in await client.chat.completions.create(**options, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed += (logprobs.content or []) if logprobs is not None else []
    assert [token.model_dump() for token in streamed] == [token.model_dump() for token in told]


# -- text completions ----------------------------------------------------------------------------------------------


async def test_text_is_continued_as_it_stands(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    wanted = continued(swarm, "Hello")
    assert (await client.completions.create(prompt="Hello", **TEXT)).choices[0].text == wanted
    ids = swarm.reference.tokenizer.encode("Hello")
    assert (await client.completions.create(prompt=ids, **TEXT)).choices[0].text == wanted
    text, end = "", ""
    async for chunk in await client.completions.create(prompt="Hello", stream=True, **TEXT):
        text += chunk.choices[0].text
        end = chunk.choices[0].finish_reason or end
    assert (text, end) == (wanted, "length")


async def test_several_prompts_at_once(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    reply = await client.completions.create(prompt=["Hello", "abc"], n=2, **TEXT)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    hello, abc = continued(swarm, "Hello"), continued(swarm, "abc")
    assert [choice.text for choice in reply.choices] == [hello, hello, abc, abc]
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == 5 + 3
    tokens = [list(b"xy"), list(b"z")]
    assert len((await client.completions.create(prompt=tokens, **TEXT)).choices) == 2


async def test_legacy_log_probabilities(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open()
    options = TEXT | {"prompt": "Hello", "logprobs": 2}
    [choice] = (await client.completions.create(**options)).choices
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.text_offset is not None
    assert len(told.tokens) == len(told.token_logprobs or []) == len(told.top_logprobs or []) == TOKENS
    if "\N{REPLACEMENT CHARACTER}" not in "".join(told.tokens):
        assert "".join(told.tokens) == choice.text
        assert [choice.text[at:].startswith(t) for at, t in zip(told.text_offset, told.tokens, strict=True)]
    offsets: list[int] = []
    async for chunk in await client.completions.create(**options, stream=True):
        logprobs = chunk.choices[0].logprobs
        offsets += (logprobs.text_offset or []) if logprobs is not None else []
    assert offsets == told.text_offset


async def test_a_completion_that_says_nothing_of_length_has_sixteen_tokens(swarm: Swarm, desk: Desk) -> None:
    await swarm.serve()
    client = await desk.open(new_tokens=20)
    reply = await client.completions.create(model=MODEL, prompt="Hello", logit_bias=NO_END)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16
    chat = await client.chat.completions.create(model=MODEL, messages=HELLO, logit_bias=NO_END)
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 20


# -- many at once --------------------------------------------------------------------------------------------------


async def test_fifty_clients_at_once(swarm: Swarm, desk: Desk) -> None:
    """More than the gateway runs at once: the others wait their turn, and every answer is the right one."""
    nodes = await swarm.serve(kv_tokens=8192)
    await desk.open(concurrent=8)
    swarm.delay(0.002)

    wanted = [alone(swarm, f"I am of kind {kind}", 6) for kind in range(5)]
    assert len(set(wanted)) > 1

    async def ask(number: int) -> None:
        client, content = desk.client(), f"I am of kind {number % len(wanted)}"
        options: dict[str, Any] = ASKED | {"messages": [{"role": "user", "content": content}], "max_tokens": 6}
        if number % 2:
            text = (await client.chat.completions.create(**options)).choices[0].message.content
        else:
            chunks = [chunk async for chunk in await client.chat.completions.create(**options, stream=True)]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert chunks[-1].choices[0].finish_reason == "length"
        assert text == wanted[number % len(wanted)]

    await asyncio.gather(*(ask(number) for number in range(CLIENTS)))
    assert desk.gateway.app.gate.running == 0
    await swarm.check_free()
    assert all(node.rows for node in nodes)
