"""The commands that documents show: found in their fenced blocks, and run as they stand.

A document writes the same address wherever it means "one that a server printed"; only that is put in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooW..."
"""An address that a server printed."""
PEER = "12D3KooW..."
"""A server's peer id."""
GATEWAY = "http://127.0.0.1:8000"
HEALTH = "http://127.0.0.1:8080"

SHELL, PYTHON = "sh", "python"
SHOWN = frozenset({"", "console", "ini", "json", "toml", "yaml"})
"""Languages of blocks that are not run: output, and files."""

_BLOCK = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; ``line`` is that of its first line in the document."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def commands(self) -> tuple[str, ...]:
        """What a shell would run one after the other: a line each, or several that backslashes join."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def blocks(document: str) -> Iterator[Block]:
    """Those of ``document``, a path from the root of the repository."""
    text = (ROOT / document).read_text()
    for found in _BLOCK.finditer(text):
        yield Block(document, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"])
