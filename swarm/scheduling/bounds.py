"""From what to what a chain's step may take, where some of its links were never measured.

Routing takes such links for slow, so that an unknown one never looks free. Whoever asks what to expect is told what is
known of them: two points that both measured a third are no farther apart than both round trips together, and no nearer
than their difference. That supposes the triangle inequality, which holds for most round trips of the Internet and not
for all: a direct way may be longer than one by a third point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from swarm.scheduling.cluster import Cluster, Node, distance_s
from swarm.scheduling.routing_price import Chain, chain_s
from swarm.scheduling.routing_types import RouteNeeds

VAGUE = 1.25
"""Bounds that differ by more than this factor are told as two figures."""
MIN_STEP_S = 1e-6
"""A predicted step that is shorter is nobody's measurement."""
CLIENT = ""
"""Stands for the client among peer ids."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds of one decode step of a new session, from ``least_s`` to ``most_s``; alike where all was measured.

    ``unmeasured`` of the chain's ``links`` were never measured (the client's ways to its first and last server are
    links too), and ``uplinks`` are the uplinks among its servers' that were not.
    """

    least_s: float
    most_s: float
    links: int = 0
    unmeasured: int = 0
    uplinks: int = 0

    @property
    def middle_s(self) -> float:
        """The one that is wrong by no more than the same factor whichever end is right: their geometric mean."""
        return math.sqrt(self.least_s * self.most_s)

    @property
    def vague(self) -> bool:
        """True if one figure would say more than is known."""
        return self.most_s > VAGUE * self.least_s

    @property
    def guessed(self) -> int:
        """Figures that were never measured."""
        return self.unmeasured + self.uplinks

    @property
    def doubts(self) -> str:
        """What was not measured, in words; empty if everything was."""
        parts = []
        if self.unmeasured:
            parts.append(f"{self.unmeasured} of {self.links} links")
        if self.uplinks:
            parts.append("1 uplink" if self.uplinks == 1 else f"{self.uplinks} uplinks")
        return f"{' and '.join(parts)} not measured yet" if parts else ""


def bounds_of(cluster: Cluster, chain: Chain, needs: RouteNeeds) -> Bounds:
    """What a step over ``chain`` may take, priced as ``routing.price`` does.

    A measured link counts as it is. Of the others, the client and the chain's servers themselves are the third points:
    nobody else's word counts. Where there is none, a link takes no time at least, and at most what routing takes it
    for. Network coordinates narrow this down by their own error. An uplink that was not measured is between one
    without limit and the default. O(stages³).
    """
    between, unmeasured = _links(cluster, chain)
    least = replace(cluster, defaults=replace(cluster.defaults, uplink_mbps=math.inf))
    least_s = chain_s(_with(least, {link: low_s for link, (low_s, _) in between.items()}), chain, needs)
    most_s = chain_s(_with(cluster, {link: high_s for link, (_, high_s) in between.items()}), chain, needs)
    return Bounds(
        max(least_s, MIN_STEP_S),
        max(most_s, MIN_STEP_S),
        links=len(between),
        unmeasured=unmeasured,
        uplinks=sum(node.uplink_mbps is None for node in {node.id: node for node, _ in chain[:-1]}.values()),
    )


def likely(cluster: Cluster, chain: Chain) -> Cluster:
    """``cluster`` for prices of ``chain``, whose unmeasured links take what is in the middle of their bounds."""
    between, _ = _links(cluster, chain)
    return _with(cluster, {link: (low_s + high_s) / 2 for link, (low_s, high_s) in between.items()})


def _links(cluster: Cluster, chain: Chain) -> tuple[dict[tuple[str, str], tuple[float, float]], int]:
    """The least and the most that each round trip of ``chain`` may take, and how many were not measured."""
    nodes = {node.id: node for node, _ in chain}
    near = _measured(cluster, nodes)
    ways = {(a.id, b.id) for (a, _), (b, _) in pairwise(chain)}
    links = ways | {(CLIENT, chain[0][0].id), (CLIENT, chain[-1][0].id)}
    between = {(a, b): _between(cluster, nodes, near, a, b) for a, b in links}
    return between, sum(b not in near[a] for a, b in links)


def _measured(cluster: Cluster, nodes: Mapping[str, Node]) -> dict[str, dict[str, float]]:
    """Measured round trips among the client and ``nodes``, both ways."""
    near: dict[str, dict[str, float]] = {peer: {} for peer in (CLIENT, *nodes)}
    rows = {CLIENT: cluster.client_rtt_s} | {peer: cluster.rtt_s.get(peer, {}) for peer in nodes}
    for peer, row in rows.items():
        for other in nodes.keys() & row.keys() - {peer}:
            near[peer][other] = row[other]  # a server's own word counts before the other's
            near[other].setdefault(peer, row[other])
    return near


def _between(
    cluster: Cluster, nodes: Mapping[str, Node], near: Mapping[str, Mapping[str, float]], a: str, b: str
) -> tuple[float, float]:
    """The least and the most that the round trip between ``a``, the client perhaps, and server ``b`` may take."""
    if b in near[a]:
        return near[a][b], near[a][b]
    thirds = near[a].keys() & near[b].keys()
    least_s = max((abs(near[a][third] - near[b][third]) for third in thirds), default=0.0)
    assumed_s = cluster.defaults.client_rtt_s if a == CLIENT else cluster.rtt_between(nodes[a], nodes[b])
    most_s = min((near[a][third] + near[b][third] for third in thirds), default=assumed_s)
    here, there = (None if peer == CLIENT else nodes[peer].coordinate for peer in (a, b))
    if here is not None and there is not None:
        most_s = min(most_s, assumed_s)
        least_s = max(least_s, distance_s(here, there) * (1.0 - min(max(here.error, there.error), 1.0)))
    return min(least_s, most_s), most_s


def _with(cluster: Cluster, between: Mapping[tuple[str, str], float]) -> Cluster:
    """``cluster`` with these links alone."""
    rtt_s: dict[str, dict[str, float]] = {}
    for (a, b), seconds in between.items():
        rtt_s.setdefault(a, {})[b] = seconds
    client_rtt_s = rtt_s.pop(CLIENT, {})
    return replace(cluster, rtt_s=rtt_s, client_rtt_s=client_rtt_s)
