"""Memory-weighted rings: everybody holds a part of the model in proportion to its memory. Two baselines."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.spans import Span
from swarm.scheduling.allocation.assembly import finish
from swarm.scheduling.allocation.plan import Plan, Score, Share
from swarm.scheduling.allocation.replicas import replicate
from swarm.scheduling.allocation.territories import room, territories, usable_nodes
from swarm.scheduling.allocation.waterfill import water_fill
from swarm.scheduling.cluster import Cluster


def ring(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """One pipeline over all nodes of a territory, each with layers in proportion to its capacity.

    A region that can hold the model gets a ring of its own; if none can, one ring spans them all. Within a ring node i
    gets ``c_i * L / sum(c)`` layers, rounded by largest remainder, ties to the larger, the more powerful, the lower id;
    a node whose share is zero is left over and replicates. That repairs the published rule (``ring_exo``): since
    ``L <= sum(c)`` the quota is at most c_i, and so is the next whole number above it, so nobody gets more than it can
    hold. A pipeline is found whenever the capacity allows one. O(N log N), and O(N * L) for the replicas.

    Not optimal in ``k`` by design: a ring is one pipeline where ``floor(sum(c) / L)`` might do; ``gap`` says so.
    """
    grounds = territories(cluster)
    pipelines = []
    for members in grounds:
        if room(members) >= cluster.layers:
            capacities = [node.capacity_layers for node in members]
            counts = water_fill(capacities, capacities, cluster.layers)
            pipelines.append(tile([node.id for node in members], counts, cluster.layers))
    spans = {share.id: share.span for pipeline in pipelines for share in pipeline}
    possible = sum(room(members) // cluster.layers for members in grounds)
    gap = "" if len(pipelines) == possible else f"one ring a region: {len(pipelines)} of at most {possible} pipelines"
    return finish(cluster, grounds, pipelines, replicate(cluster.layers, grounds, spans), score, gap)


def ring_exo(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """The published rule, to the letter: ``round(L * c_i / sum(c))`` layers, at least one, and the last takes the rest.

    One pipeline over all nodes whatever their regions, largest first, halves rounded to even as Python does. The rule
    never looks at what a node can hold, so the plan may break capacities, and with many nodes its "at least one" may
    hand out more layers than there are: the ring is then cut at the model's end. ``gap`` names either, and
    ``check_plan`` is not promised. No pipeline if no node has capacity. Source: exo's placement, as published.
    """
    layers = cluster.layers
    members = usable_nodes(cluster)
    total = room(members)
    counts = [max(1, round(layers * node.capacity_layers / total)) for node in members[:-1]]
    last = layers - sum(counts)
    shares = tile([node.id for node in members], [*counts, max(0, last)][: len(members)], layers)
    held = {share.id: len(share.span) for share in shares}
    flaws = [
        f"{node.id} holds {held[node.id]} layers and has room for {node.capacity_layers}"
        for node in members
        if held.get(node.id, 0) > node.capacity_layers
    ]
    if members and last < 1:
        flaws.insert(0, f"the rule hands out {sum(counts)} of {layers} layers before the last node")
    elif not flaws and total // layers > 1:
        flaws.append(f"one ring: 1 of at most {total // layers} pipelines")
    return finish(cluster, [members], [shares] if shares else [], [], score, "; ".join(flaws))


def tile(ids: Sequence[str], counts: Sequence[int], layers: int) -> tuple[Share, ...]:
    """Spans of ``counts`` layers one after the other, empty ones left out, cut at ``layers``."""
    shares, start = [], 0
    for node, count in zip(ids, counts, strict=True):
        stop = min(start + count, layers)
        if stop > start:
            shares.append(Share(node, Span(start, stop)))
        start = stop
    return tuple(shares)
