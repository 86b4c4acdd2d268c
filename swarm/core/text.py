"""Text that a stranger wrote, made safe to show."""

from __future__ import annotations

import re
import unicodedata

MAX_MARKS = 3
"""Accents in a row: languages have so many at most, and a pile of them paints over the lines above and below."""
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""What Python calls printable, and nobody sees: fillers, blanks, selectors of variants."""


def clip(text: str, limit: int) -> str:
    """``text`` on one line, at most ``limit`` characters, with every unprintable character shown as ``?``.

    Control characters would steer a terminal, bidirectional marks would reorder a line, and lone surrogates could
    not be encoded. What ``legible`` leaves out is left out.
    """
    text = legible(text)
    if len(text) > limit:
        text = text[: limit - 1] + "…" if limit > 1 else text[:limit]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


def legible(text: str) -> str:
    """``text`` without letters that show nothing, and without more than ``MAX_MARKS`` accents in a row.

    Unprintable characters stay. O(length).
    """
    if text.isascii():
        return text
    kept: list[str] = []
    marks = 0
    for char in _INVISIBLE.sub("", text):
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        if marks <= MAX_MARKS:
            kept.append(char)
    return "".join(kept)
