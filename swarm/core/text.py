"""Text that a stranger wrote, made safe to show."""

from __future__ import annotations


def clip(text: str, limit: int) -> str:
    """``text`` on one line, at most ``limit`` characters, with every unprintable character shown as ``?``.

    Control characters would steer a terminal, bidirectional marks would reorder a line, and lone surrogates could
    not be encoded.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…" if limit > 1 else text[:limit]
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)
