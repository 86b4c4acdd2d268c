"""What a swarm can serve: tokens per second by layer, and of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from swarm.core.announcement import State
from swarm.scheduling.allocation.plan import Plan
from swarm.scheduling.cluster import Cluster, Node


def layer_rates(nodes: Iterable[Node], layers: int) -> npt.NDArray[np.float64]:
    """Tokens per second that each layer can serve, shape ``[layers]``: the sum over its holders of power / span.

    Only nodes that are online and have a span count. A server's power is that of one unbatched session, so with
    batching this is a lower bound. The same figures to the last bit whatever the nodes' order. O(n log n + n * layers).
    """
    rates = np.zeros(layers)
    for node in sorted(nodes, key=lambda node: node.id):
        if node.span is None or node.state is not State.ONLINE:
            continue
        # Sums alone, no differences: what one node adds is not lost beside another's much larger power elsewhere.
        rates[node.span.start : node.span.end] += node.power / len(node.span)
    return rates


def swarm_tokens_per_s(nodes: Iterable[Node], layers: int) -> float:
    """Tokens per second of the whole swarm: its weakest layer's rate, 0 if some layer has no holder."""
    return float(layer_rates(nodes, layers).min(initial=np.inf)) if layers else 0.0


def with_spans(cluster: Cluster, plan: Plan) -> tuple[Node, ...]:
    """The cluster's nodes as they will be once ``plan`` is carried out, newcomers online: for the functions above."""
    spans = {share.id: share.span for share in plan.shares}
    return tuple(
        replace(node, span=spans[node.id], state=State.ONLINE) if node.id in spans else replace(node, span=None)
        for node in cluster.nodes
    )
