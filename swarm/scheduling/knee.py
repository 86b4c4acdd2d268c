"""How many sessions a chain takes before one more only makes all of them slower (DESIGN 7)."""

from __future__ import annotations

import math

import numpy as np

from swarm.core.metrics import BATCHES
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.routing_price import Chain, chain_s, present_step_s
from swarm.scheduling.routing_types import RouteNeeds

ROUNDING = 1e-9
"""Relative: a knee this little below a whole number is that number."""


def lone_step_s(node: Node, layers: int) -> float:
    """A step over ``layers`` of the node's layers for one session on an idle node.

    ``step_s`` is measured over the whole span, a part takes its share of it. Unknown: as at the present load, which
    overrates a busy node's knee by its queue.
    """
    if not node.step_s or node.span is None:
        return present_step_s(node, layers)
    return node.step_s[0] * layers / len(node.span)


def best_rate(node: Node, layers: int) -> float:
    """μ: the most steps per second over ``layers`` of its layers, ``max_b b/t(b)``; unbatched if t(b) is unknown."""
    if not node.step_s or node.span is None:
        step_s = present_step_s(node, layers)
        return 1 / step_s if step_s > 0 else math.inf
    share = layers / len(node.span)
    rates = (
        batch / (t_s * share) if t_s * share > 0 else math.inf for batch, t_s in zip(BATCHES, node.step_s, strict=False)
    )
    return max(rates)


def stage_knees(cluster: Cluster, chain: Chain, needs: RouteNeeds) -> list[float]:
    """``T·μ`` of every stage: how many sessions of this chain keep it busy, T being a lone session's traversal."""
    traversal_s = chain_s(cluster, chain, needs, lone_step_s)
    rates = [best_rate(node, layers) for node, layers in chain]
    return [math.inf if math.isinf(rate) else traversal_s * rate for rate in rates]


def knee(cluster: Cluster, chain: Chain, needs: RouteNeeds) -> float:
    """``C* = T·μ``, μ the slowest stage's best rate. For p equal unbatched stages of t and network R: ``p + R/t``.

    Below it sessions fill each other's waiting time and cost one another nothing; above it every further session
    stretches all of them, and the throughput stays. At least 1 (T is no less than the slowest stage's own step).
    """
    return min(stage_knees(cluster, chain, needs))


def full_servers(cluster: Cluster, chain: Chain, needs: RouteNeeds) -> list[str]:
    """Ids of the chain's servers that one session more would take over their knee in this chain.

    Each is judged by the sessions it has itself: a busy server elsewhere in the chain does not use this one up. Where
    all have the same number it is ``sessions + 1 > knee``.
    """
    knees = stage_knees(cluster, chain, needs)
    return [
        node.id
        for (node, _), most in zip(chain, knees, strict=True)
        if node.sessions > 0 and node.sessions + 1 > most * (1 + ROUNDING)
    ]


def swarm_knee(cluster: Cluster, chain: Chain, needs: RouteNeeds) -> float:
    """How many sessions all servers of ``cluster`` together take before they are slowed: ``T·M``.

    T is a lone session's traversal of ``chain``, M the steps per second that the scarcest layer's holders give
    together, each at its best rate over its whole span. For one chain of whole spans it is ``knee``. It overrates where
    spans that overlap cannot all be used in full at once, and where classes of numerics do not mix. Infinite where
    every layer has a holder without a step time. O(nodes · layers).
    """
    rates = np.zeros(cluster.layers)
    for node in cluster.nodes:
        if node.span is not None:
            rates[node.span.start : node.span.end] += best_rate(node, len(node.span))
    least = float(rates.min())
    return least if math.isinf(least) else max(chain_s(cluster, chain, needs, lone_step_s) * least, 1.0)
