"""What an allocation is, and what every strategy promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node

Score: TypeAlias = Literal["k2_over_s", "paper"]


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part of a pipeline."""

    id: str
    span: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """Pipelines, each a tiling of the model in order, and whoever is left over.

    ``score`` is the value of ``score_name`` (DESIGN 7); ``scores`` holds both. ``replicas`` are left-over nodes put
    to the layers with the least throughput, ``unused`` those that hold nothing. ``gap`` says in words how far
    ``k`` may be from the best possible ("" if it is proven the best: by its score, or because no plan has more).
    """

    pipelines: tuple[tuple[Share, ...], ...]
    replicas: tuple[Share, ...] = ()
    unused: tuple[str, ...] = ()
    score: float = 0.0
    score_name: Score = "k2_over_s"
    scores: tuple[tuple[Score, float], ...] = ()
    gap: str = ""

    @property
    def k(self) -> int:
        return len(self.pipelines)

    @property
    def stages(self) -> int:
        return sum(map(len, self.pipelines))

    @property
    def shares(self) -> tuple[Share, ...]:
        """Everybody's part: the pipelines' in order, then the replicas'."""
        return (*(share for pipeline in self.pipelines for share in pipeline), *self.replicas)

    def span_of(self, node: str) -> Span | None:
        """What ``node`` holds under this plan."""
        for share in self.shares:
            if share.id == node:
                return share.span
        return None


Strategy: TypeAlias = Callable[[Cluster, Score], Plan]
"""A pure function of the cluster (and of the score that chooses k): the same plan whatever the nodes' order.

Only ``Node.id``, ``capacity_layers``, ``power``, ``region``, ``state`` and the links are read, never present spans.
"""


def check_plan(plan: Plan, cluster: Cluster) -> None:
    """The certificate of a plan: raise ``ConfigError`` that names the first thing that does not hold.

    Every pipeline tiles ``[0, layers)`` in order, nobody holds more layers than it can, everybody stands in exactly one
    place.
    """
    capacity = {node.id: node.capacity_layers for node in cluster.nodes}
    for index, pipeline in enumerate(plan.pipelines):
        reached = 0
        for share in pipeline:
            if share.span.start != reached:
                raise ConfigError(f"pipeline {index} has a seam at layer {reached}")
            reached = share.span.end
        if reached != cluster.layers:
            raise ConfigError(f"pipeline {index} ends at layer {reached} of {cluster.layers}")
    shares = plan.shares
    for share in shares:
        if share.id not in capacity:
            raise ConfigError(f"there is no node {share.id}")
        if len(share.span) > capacity[share.id]:
            raise ConfigError(f"node {share.id} holds {len(share.span)} layers and has room for {capacity[share.id]}")
        share.span.within(cluster.layers)
    places = sorted([*(share.id for share in shares), *plan.unused])
    if places != sorted(capacity):
        raise ConfigError("some node stands in two places, or in none")


def by_size(nodes: Sequence[Node]) -> list[Node]:
    """Largest capacity first, then the more powerful, then by id: one order whatever the input's."""
    return sorted(nodes, key=lambda node: (-node.capacity_layers, -node.power, node.id))
