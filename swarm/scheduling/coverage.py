"""Which layers of a model how many servers hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from swarm.core.announcement import Reach, State
from swarm.core.listing import Listing
from swarm.core.spans import Span


def usable(listing: Listing) -> bool:
    """True if a session could be routed over this server: online, reachable, and heard of lately."""
    announced = listing.announcement
    return listing.metrics is not None and announced.state is State.ONLINE and announced.reach is not Reach.UNREACHABLE


def holders(spans: Iterable[Span], layers: int) -> list[int]:
    """For each of ``layers`` layers how many of the spans hold it; spans may reach beyond the model.

    O(spans + layers).
    """
    steps = [0] * (layers + 1)
    for span in spans:
        steps[min(span.start, layers)] += 1
        steps[min(span.end, layers)] -= 1
    return list(accumulate(steps[:layers]))


def runs(counts: Sequence[int]) -> list[tuple[Span, int]]:
    """Maximal stretches of layers with the same count, in order; together they tile ``[0, len(counts))``."""
    cuts = [index for index, count in enumerate(counts) if index == 0 or count != counts[index - 1]]
    ends = [*cuts[1:], len(counts)]
    return [(Span(start, end), counts[start]) for start, end in zip(cuts, ends, strict=True)]
