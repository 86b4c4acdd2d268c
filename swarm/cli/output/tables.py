"""Columns of text, and figures as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.runtime.logs import printable


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


def ms(seconds: float | None) -> str:
    """Milliseconds with two digits after the point, "-" for None."""
    return "-" if seconds is None else f"{seconds * 1e3:.2f} ms"


def option_name(flag: str) -> str:
    """A flag of a namespace as people type it."""
    return "--" + flag.replace("_", "-")
