"""Strangers' text as it may be shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.text import MAX_MARKS, clip, legible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Ada's box", "Ada's box"),
        ("bo\u3164x\u2800\u115f", "box"),
        ("\ufe0f\u034f", ""),
        ("Z" + "\u0301" * 60, "Z" + "\u0301" * MAX_MARKS),
        ("naïve Ünïcödé ไม้ हिन्दी 東京", "naïve Ünïcödé ไม้ हिन्दी 東京"),
    ],
)
def test_what_nobody_sees_is_left_out_and_marks_do_not_pile_up(text: str, shown: str) -> None:
    assert legible(text) == shown


@given(st.text(max_size=80), st.integers(1, 60))
def test_what_is_shown_is_short_printable_and_stays_as_it_is(text: str, limit: int) -> None:
    shown = clip(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    assert legible(legible(text)) == legible(text)
    categories = [unicodedata.category(char) in ("Mn", "Me") for char in legible(text)]
    assert not any(all(categories[at : at + MAX_MARKS + 1]) for at in range(len(categories) - MAX_MARKS))
