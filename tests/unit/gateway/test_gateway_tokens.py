"""Tokens as they are shown beside their log probabilities."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.results import TokenLogprob
from swarm.client.tokenizer import Tokenizer
from swarm.gateway.tokens import TokenTexts
from swarm.models import ModelFiles


@pytest.fixture(scope="module")
def tokenizer(demo_files: ModelFiles) -> Tokenizer:
    return Tokenizer.of(demo_files)


@given(text=st.text(alphabet="ab cdé.,\n1", min_size=1, max_size=40))
def test_tokens_in_a_row_are_the_text(tokenizer: Tokenizer, text: str) -> None:
    """Wherever no character is spread over several tokens; and then the bytes are the text's."""
    texts = TokenTexts(tokenizer)
    tokens = [TokenLogprob(token, -1.0, ()) for token in tokenizer.encode(text, add_special_tokens=False)]
    shown = texts.chat(tokens)["content"]
    assert isinstance(shown, list)
    if all(entry["bytes"] is not None for entry in shown):
        assert "".join(entry["token"] for entry in shown) == text
        assert b"".join(bytes(entry["bytes"]) for entry in shown) == text.encode()
    else:
        assert "é" in text


def test_a_part_of_a_character_has_no_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("\U0001f98a", add_special_tokens=False)
    assert len(ids) > 1
    shown = TokenTexts(tokenizer).chat([TokenLogprob(ids[0], -1.0, ())])["content"]
    assert isinstance(shown, list)
    assert shown[0]["bytes"] is None


def test_offsets_go_on_from_where_the_text_is(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three", add_special_tokens=False)
    shown = TokenTexts(tokenizer).legacy([TokenLogprob(token, -1.0, ((token, -1.0),)) for token in ids], 10)
    assert shown["tokens"] == ["one", " two", " three"]
    assert shown["text_offset"] == [10, 13, 17]
    assert shown["top_logprobs"] == [{"one": -1.0}, {" two": -1.0}, {" three": -1.0}]


def test_what_cannot_come_is_still_json(tokenizer: Tokenizer) -> None:
    token = TokenLogprob(5, -math.inf, ((6, -math.inf),))
    for shown in (TokenTexts(tokenizer).chat([token]), TokenTexts(tokenizer).legacy([token], 0)):
        assert b"null" not in msgspec.json.encode({**shown, "refusal": 0})
        assert "Infinity" not in json.dumps(shown)
