"""The default strategy."""

from __future__ import annotations

from swarm.scheduling.allocation.greedy import greedy
from swarm.scheduling.allocation.plan import Plan, Score
from swarm.scheduling.cluster import Cluster


def parallax(cluster: Cluster, score: Score = "k2_over_s") -> Plan:
    """See DESIGN 7."""
    return greedy(cluster, score)
