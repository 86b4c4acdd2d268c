"""Columns of text, and figures as people read them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from swarm.runtime.logs import printable

LINE_CHARS = 100
"""What a terminal and a mail show unbroken."""
ENDING_CHARS = 8
"""Of a peer id: so much of it people are shown, here as on the health page."""
LEGEND = f"Servers are named by the last {ENDING_CHARS} characters of their peer ids; --json has them whole."
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{40,}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "  ") -> str:
    """Lines with aligned columns, one for ``head`` and one for each row; every cell on one printable line.

    A column whose cells all begin with a digit (or say "-") is aligned to the right.
    """
    cells = [[printable(cell) for cell in row] for row in (head, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(cell[:1].isdigit() or cell == "-" for cell in column[1:]) for column in columns]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)


def folded(parts: Sequence[str], joint: str, *, begin: str = "", indent: str = "    ") -> str:
    """``parts`` with ``joint`` between them after ``begin``, in lines of at most ``LINE_CHARS``; no part is broken."""
    lines, line = [], begin
    for index, part in enumerate(parts):
        piece = part + (joint.rstrip() if index < len(parts) - 1 else "")
        gap = joint[len(joint.rstrip()) :] if index else ""
        if index and len(line + gap + piece) > LINE_CHARS:
            lines.append(line)
            line = indent + piece
        else:
            line += gap + piece
    return "\n".join([*lines, line])


def short_names(ids: Iterable[str]) -> dict[str, str]:
    """For each id what people are shown: a peer id's ending, or all of it where two of ``ids`` end alike. O(ids)."""
    short = {name: name[-ENDING_CHARS:] if _PEER_ID.fullmatch(name) else name for name in ids}
    shared = Counter(short.values())
    return {name: ending if shared[ending] == 1 else name for name, ending in short.items()}


def legend(names: Mapping[str, str]) -> list[str]:
    """The line that explains ``short_names``, if it left anything out."""
    return [LEGEND] if any(name != shown for name, shown in names.items()) else []


def ms(seconds: float | None) -> str:
    """Milliseconds with two digits after the point, "-" for None."""
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


def option_name(flag: str) -> str:
    """A flag of a namespace as people type it."""
    return "--" + flag.replace("_", "-")
