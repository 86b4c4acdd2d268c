"""What left-over servers do: they replicate the layers with the least throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Share
from swarm.scheduling.cluster import Node


def weakest_window(rates: npt.NDArray[np.float64], width: int) -> Span:
    """The span of ``width`` layers that most needs one server more.

    ``rates`` are tokens per second by layer, ``width`` is at least 1 and at most their number. It holds as many of the
    weakest layers as any such span; among those its mean rate is the least, then it starts first. O(layers).
    """
    weakest = rates <= rates.min() * (1 + 1e-9)
    held = np.concatenate(([0], np.cumsum(weakest)))
    summed = np.concatenate(([0.0], np.cumsum(rates)))
    counts = held[width:] - held[:-width]
    means = summed[width:] - summed[:-width]
    candidates = np.flatnonzero(counts == counts.max())
    start = int(candidates[np.argmin(np.round(means[candidates], 9))])
    return Span(start, start + width)


def replicate(layers: int, territories: Sequence[Sequence[Node]], spans: Mapping[str, Span]) -> list[Share]:
    """A span for every node of ``territories`` that has none in ``spans``, the largest first.

    Each takes the ``weakest_window`` of its own territory, as wide as it can hold; of the whole swarm where its
    territory has no pipeline. A greedy choice: each is right for the moment it is made. O(nodes * layers).
    """
    everywhere = np.zeros(layers)
    rates = []
    for nodes in territories:
        here = np.zeros(layers)
        for node in nodes:
            if (span := spans.get(node.id)) is not None:
                here[span.start : span.end] += node.power / len(span)
        rates.append(here)
        everywhere += here
    shares = []
    for nodes, here in zip(territories, rates, strict=True):
        own = any(node.id in spans for node in nodes)
        for node in nodes:
            if node.id in spans:
                continue
            span = weakest_window(here if own else everywhere, min(node.capacity_layers, layers))
            here[span.start : span.end] += node.power / len(span)
            everywhere[span.start : span.end] += node.power / len(span)
            shares.append(Share(node.id, span))
    return shares
