"""The two scores that choose how many pipelines to build (DESIGN 7)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.scheduling.allocation.plan import Score
from swarm.scheduling.cluster import Cluster, Node

MAX_PAIRS = 128
"""So many pairs of a territory are looked at for its median hop: the median of a sample, the same for every reader."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Z of k pipelines out of ``stages`` servers; ``hop_s`` is r, the median one-way time inside a territory."""

    layers: int
    hop_s: float

    def score(self, name: Score, k: int, stages: int, power: float) -> float:
        """Z, higher is better; 0 without pipelines. ``power`` is the sum over the servers used, in layers per second.

        ``k2_over_s``: k² / stages, as Parallax's code has it. ``paper``: k - (stages / k) * r / T with
        T = layers / (mean power), as Parallax's paper has it.
        """
        if k == 0:
            return 0.0
        if name == "k2_over_s":
            return k * k / stages
        return k - (stages / k) * self.hop_s * (power / stages) / self.layers


def scoring_of(cluster: Cluster, territories: Sequence[Sequence[Node]]) -> Scoring:
    """Measure r over pairs of servers that share a territory; 0 if there is no such pair. O(nodes + MAX_PAIRS)."""
    hops = []
    share = max(1, MAX_PAIRS // max(1, len(territories)))
    for nodes in territories:
        ordered = sorted(nodes, key=lambda node: node.id)
        count = len(ordered)
        distances = range(1, count // 2 + 1)  # around a circle of ids: every pair once or twice, spread evenly
        pairs = ((a, (a + distance) % count) for distance in distances for a in range(count))
        for (a, b), _ in zip(pairs, range(share), strict=False):
            hops.append(cluster.rtt_between(ordered[a], ordered[b]) / 2)
    return Scoring(cluster.layers, statistics.median(hops) if hops else 0.0)
