"""Every strategy by its name, and the door to them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from swarm.core.errors import ConfigError
from swarm.scheduling.allocation.greedy import greedy
from swarm.scheduling.allocation.max_flow import max_flow
from swarm.scheduling.allocation.parallax import parallax
from swarm.scheduling.allocation.plan import Plan, Score, Strategy
from swarm.scheduling.allocation.ring import ring, ring_exo
from swarm.scheduling.cluster import Cluster

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {"parallax": parallax, "greedy": greedy, "ring": ring, "ring-exo": ring_exo, "max-flow": max_flow}
)


def allocate(cluster: Cluster, *, strategy: str = "parallax", score: Score = "k2_over_s") -> Plan:
    """Which node should hold which layers, by the strategy of that name; a pure function of the cluster.

    The same plan whatever the order of nodes, so that everybody who reads the same view comes to the same one. Raises
    ``ConfigError`` for an unknown strategy or score.
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown strategy {strategy!r:.40}", hint=f"choose one of {', '.join(STRATEGIES)}")
    if score not in ("k2_over_s", "paper"):
        raise ConfigError(f"unknown score {score!r:.40}", hint="choose k2_over_s or paper")
    return STRATEGIES[strategy](cluster, score)
