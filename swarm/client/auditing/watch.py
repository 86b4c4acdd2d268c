"""What a challenge tells of itself while it goes on, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from swarm.client.results import Progress, ProgressCallback

Doing = Literal["settling", "fetching", "computing"]
"""After the answer: its servers sign what is left, rows are fetched, and computed again."""


def _unheard(progress: Progress) -> None:
    """Nobody listens."""


def _unseen(doing: Doing, rows: int) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Watch:
    """``answer`` hears of the answer as it comes, ``doing`` of what follows, with the rows that it is about.

    Both are called in the client's event loop and must not block it. ``settling`` comes with 0 rows.
    """

    answer: ProgressCallback = _unheard
    doing: Callable[[Doing, int], None] = _unseen


UNWATCHED = Watch()
