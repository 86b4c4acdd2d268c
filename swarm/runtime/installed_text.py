"""Prose that is on every machine the package runs on: what the installed Python packages say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from importlib.metadata import distributions
from typing import cast


def installed_descriptions() -> Iterator[tuple[str, str]]:
    """``(name, description)`` of each installed package that has a description, by name; Markdown or plain text."""
    found: dict[str, str] = {}
    for distribution in distributions():
        metadata = cast(Message, distribution.metadata)
        body = metadata.get_payload()
        text = body if isinstance(body, str) and body.strip() else str(metadata.get("Description") or "")
        if text.strip():
            found.setdefault(str(metadata.get("Name") or "").lower(), text)
    yield from sorted(found.items())
