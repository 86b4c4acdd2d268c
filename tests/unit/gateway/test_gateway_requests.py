"""Requests: what is supported is read, everything else is refused by name, and no bytes do anything else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from swarm.gateway.errors import HttpError
from swarm.gateway.options import MAX_CHOICES, MAX_STOPS
from swarm.gateway.requests import NO_OPS, Asked, ChatBody, TextBody, read_chat, read_text

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "Hi"}
OF_CHATS = set(get_type_hints(ChatParams)) | {"stream", "some_new_field"}
OF_TEXTS = set(get_type_hints(TextParams)) | {"stream", "some_new_field"}
OTHERS_OF_CHATS = sorted(OF_CHATS - set(ChatBody.__struct_fields__))
OTHERS_OF_TEXTS = sorted(OF_TEXTS - set(TextBody.__struct_fields__))


def chat(**fields: Any) -> Asked:
    return read_chat(json.dumps(CHAT | fields).encode())


def text(**fields: Any) -> Asked:
    return read_text(json.dumps(TEXT | fields).encode())


def refusal(read: Any, **fields: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


# -- what is not supported -----------------------------------------------------------------------------------------


def test_openai_has_fields_that_are_not_supported_here() -> None:
    """Or the next tests would test nothing."""
    assert {"tools", "response_format", "metadata", "audio", "some_new_field"} < set(OTHERS_OF_CHATS)
    assert {"best_of", "echo", "suffix", "some_new_field"} == set(OTHERS_OF_TEXTS)


@pytest.mark.parametrize("field", OTHERS_OF_CHATS)
def test_no_field_of_a_chat_is_silently_ignored(field: str) -> None:
    error = refusal(chat, **{field: {"what": "ever"}})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert repr(field) in error.message


@pytest.mark.parametrize("field", OTHERS_OF_TEXTS)
def test_no_field_of_a_completion_is_silently_ignored(field: str) -> None:
    error = refusal(text, **{field: {"what": "ever"}})
    assert (error.param, error.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in NO_OPS.items() for value in values])
def test_a_field_that_asks_for_nothing_is_let_through(field: str, value: object) -> None:
    assert chat(**{field: value}) == chat()
    assert chat(**{field: None}) == chat()


def test_a_user_is_told_nobody_and_changes_nothing() -> None:
    assert chat(user="ada") == chat()
    assert text(user="ada") == text()
    assert refusal(chat, user="a" * 513).param == "user"
    assert refusal(text, user={"name": "ada"}).param == "user"


def test_one_is_not_true() -> None:
    assert refusal(text, best_of=True).param == "best_of"
    assert refusal(text, echo=0).param == "echo"


def test_all_of_them_are_named() -> None:
    error = refusal(chat, tools=[{}], metadata={"a": "b"}, audio={})
    for name in ("'audio'", "'tools'", "'metadata'"):
        assert name in error.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "name": "ada"}, "messages[0].name"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]}, "messages[0].content[0].more"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"content": "x"}, "messages[0].role"),
        ("x", "messages[0]"),
    ],
)
def test_a_message_that_is_not_plain_text(message: object, param: str) -> None:
    assert refusal(chat, messages=[message]).param == param


def test_the_manual_names_every_field() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "gateway.md").read_text(encoding="utf-8")
    fields = {*ChatBody.__struct_fields__, *TextBody.__struct_fields__}
    told = set(re.findall(r"`([a-z_]+)`", manual))
    assert fields <= told | {"stream_options"}
    assert "`stream_options.include_usage`" in manual


# -- what is supported ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("n", [0, MAX_CHOICES + 1, True, "1", 1.5]),
        ("temperature", [-0.1, 2.1, "1", True]),
        ("top_p", [0, 1.1, -1]),
        ("top_k", [-1, 1.5]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("repetition_penalty", [0, 101]),
        ("seed", [-1, 2**63, 1.5, "7"]),
        ("stop", ["", [""], ["a"] * (MAX_STOPS + 1), 5, [5], "x" * 1001]),
        ("logit_bias", [{"x": 1}, {"-1": 1}, {"1.5": 1}, {"5": 101}, {"5": -101}, {"5": "1"}, [1]]),
        ("stream", ["yes", 1]),
        ("max_tokens", [0, -1, 1.5, "5"]),
        ("model", ["", 5, "m" * 401]),
        ("stream_options", [5, {"include_usage": "yes"}]),
    ],
)
def test_a_wrong_value_is_named(field: str, wrong: list[object]) -> None:
    for value in wrong:
        for read in (chat, text):
            error = refusal(read, **{"stream": True, field: value})
            assert (error.param or "").startswith(field), value


def test_what_is_asked_for_arrives() -> None:
    asked = chat(
        temperature=0.5, top_p=0.9, top_k=7, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1,
        logit_bias={"5": 3, "7": -2.5}, stop=["a", "b"], seed=9, n=2, max_tokens=11, stream=True,
        stream_options={"include_usage": True}, logprobs=True, top_logprobs=4,
    )  # fmt: skip
    assert asked.options == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "presence_penalty": 1.0, "frequency_penalty": -1.0,
        "repetition_penalty": 1.1, "logit_bias": {5: 3.0, 7: -2.5}, "stop": ("a", "b"), "seed": 9, "logprobs": 4,
    }  # fmt: skip
    assert (asked.n, asked.new_tokens, asked.stream, asked.include_usage) == (2, 11, True, True)
    assert asked.messages[0].plain == {"role": "user", "content": "Hi"}


def test_the_defaults_are_openais() -> None:
    asked = chat()
    assert asked.options["temperature"] == 1.0
    assert "logprobs" not in asked.options
    assert "seed" not in asked.options
    assert (asked.n, asked.new_tokens, asked.stream, asked.include_usage) == (1, None, False, False)
    assert text().new_tokens == 16


def test_both_names_of_the_length() -> None:
    assert chat(max_completion_tokens=5).new_tokens == chat(max_tokens=5).new_tokens == 5
    assert refusal(chat, max_completion_tokens=5, max_tokens=5).param == "max_tokens"


def test_log_probabilities() -> None:
    assert chat(logprobs=True).options["logprobs"] == 0
    assert type(chat(logprobs=True).options["logprobs"]) is int
    assert "logprobs" not in chat(logprobs=False).options
    assert refusal(chat, top_logprobs=3).param == "top_logprobs"
    assert refusal(chat, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refusal(chat, logprobs=3).param == "logprobs"
    assert text(logprobs=3).options["logprobs"] == 3
    assert text(logprobs=0).options["logprobs"] == 0
    assert refusal(text, logprobs=6).param == "logprobs"


def test_stream_options_without_a_stream() -> None:
    assert refusal(chat, stream_options={"include_usage": True}).param == "stream_options"


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Hi", ("Hi",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
)
def test_the_forms_of_a_prompt(prompt: object, read: object) -> None:
    assert text(prompt=prompt).prompts == read


@pytest.mark.parametrize("prompt", [None, [], {}, 5, [1.5], ["a", 5], [[1], "a", None], [-1], ["a"] * 17, [2**40]])
def test_what_is_no_prompt(prompt: object) -> None:
    assert refusal(text, prompt=prompt).param == "prompt"


def test_prompts_and_answers_are_bounded_together() -> None:
    assert len(text(prompt=["a"] * 4, n=4).prompts) == 4
    assert refusal(text, prompt=["a"] * 6, n=3).param == "n"


# -- anything at all -----------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted({*ChatBody.__struct_fields__, *TextBody.__struct_fields__, "tools", "\ud7ff\n`$.x`"})


def outcome(read: Any, body: bytes) -> Asked | HttpError:
    """What comes of a body; a refusal is a 400."""
    try:
        asked: Asked = read(body)
        return asked
    except HttpError as error:
        if error.status != 400:
            raise
        return error


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_be_refused(body: bytes) -> None:
    for read in (read_chat, read_text):
        with pytest.raises(HttpError) as caught:
            read(body)
        assert caught.value.status == 400


@given(st.sampled_from([CHAT, TEXT]), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_json_is_read_or_refused_by_name(base: dict[str, Any], fields: dict[str, Any]) -> None:
    """And a refusal names a field that was sent, or one that is missing."""
    body = msgspec.json.encode(base | fields)
    for read, kind in ((read_chat, ChatBody), (read_text, TextBody)):
        read_or_refused = outcome(read, body)
        sent = {key for key, value in (base | fields).items() if value is not None}
        if isinstance(read_or_refused, Asked):
            assert sent <= set(kind.__struct_fields__) | set(NO_OPS)
            assert 1 <= read_or_refused.n <= MAX_CHOICES
        else:
            named = read_or_refused.param or ""
            known = sent | {"model", "messages", "prompt"}
            assert named in {key[:40] for key in known} or re.split(r"[.\[]", named)[0] in known


@given(st.text(max_size=30), st.text(max_size=30))
def test_what_is_said_arrives_as_it_was_said(said: str, more: str) -> None:
    parts = [{"type": "text", "text": said}, {"type": "text", "text": more}]
    for content, plain in ((said, said), (parts, said + more)):
        body = msgspec.json.encode(CHAT | {"messages": [{"role": "developer", "content": content}]})
        assert read_chat(body).messages[0].plain == {"role": "system", "content": plain}
