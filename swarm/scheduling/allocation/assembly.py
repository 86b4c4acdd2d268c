"""From groups of servers to a plan: shares, order, scores, and what the left-over servers do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarm.core.spans import Span
from swarm.scheduling.allocation.hops import short_path
from swarm.scheduling.allocation.plan import Plan, Score, Share, by_size
from swarm.scheduling.allocation.replicas import replicate
from swarm.scheduling.allocation.scoring import scoring_of
from swarm.scheduling.allocation.waterfill import water_fill
from swarm.scheduling.cluster import Cluster, Node

SCORES: tuple[Score, ...] = ("k2_over_s", "paper")


def assemble(
    cluster: Cluster,
    territories: Sequence[Sequence[Node]],
    groups: Sequence[Sequence[Node]],
    score: Score,
    gap: str = "",
) -> Plan:
    """The plan whose pipelines are ``groups``, each able to hold the model and inside one of ``territories``.

    Layers are shared by water-filling; who gets none is left over, like those in no group, and replicates. Nodes that
    are in no territory (they cannot take layers) are unused.
    """
    pipelines = [_pipeline(cluster, group) for group in groups]
    spans = {share.id: share.span for pipeline in pipelines for share in pipeline}
    return finish(cluster, territories, pipelines, replicate(cluster.layers, territories, spans), score, gap)


def finish(
    cluster: Cluster,
    territories: Sequence[Sequence[Node]],
    pipelines: Sequence[tuple[Share, ...]],
    replicas: Sequence[Share],
    score: Score,
    gap: str = "",
) -> Plan:
    """The plan of these pipelines and replicas, with both scores; whoever is in neither is unused."""
    used = {share.id for pipeline in pipelines for share in pipeline}
    placed = {*used, *(share.id for share in replicas)}
    power = math.fsum(node.power for node in cluster.nodes if node.id in used)  # whatever the nodes' order
    scoring = scoring_of(cluster, territories)
    scores = tuple((name, scoring.score(name, len(pipelines), len(used), power)) for name in SCORES)
    return Plan(
        pipelines=tuple(pipelines),
        replicas=tuple(replicas),
        unused=tuple(sorted(node.id for node in cluster.nodes if node.id not in placed)),
        score=dict(scores)[score],
        score_name=score,
        scores=scores,
        gap=gap,
    )


def _pipeline(cluster: Cluster, group: Sequence[Node]) -> tuple[Share, ...]:
    group = by_size(group)
    counts = water_fill([node.capacity_layers for node in group], [node.power for node in group], cluster.layers)
    held = {node.id: count for node, count in zip(group, counts, strict=True) if count}
    shares, start = [], 0
    for node in short_path(cluster, [node for node in group if node.id in held]):
        shares.append(Share(node.id, Span(start, start + held[node.id])))
        start += held[node.id]
    return tuple(shares)
