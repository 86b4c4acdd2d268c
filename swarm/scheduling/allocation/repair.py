"""A new plan and a swarm that already holds layers: who stays where it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from swarm.core.spans import Span
from swarm.scheduling.allocation.assembly import finish
from swarm.scheduling.allocation.plan import Plan, Share
from swarm.scheduling.allocation.territories import territories
from swarm.scheduling.cluster import Cluster, Node


def keep_spans(plan: Plan, cluster: Cluster) -> Plan:
    """The same pipelines and replicas with their servers exchanged, so that many hold the span they have already.

    A server that stands at its present span does not load anything: after a departure the survivors of broken
    pipelines join up as they are wherever their spans are called for. Exchanges stay within a territory and respect
    capacities; whoever cannot keep its span keeps its place in the plan if it can, else the larger places go to the
    larger servers. Shares are not balanced anew, so a pipeline may be slower than its water-filling was.

    Keepers are chosen the least roomy first (capacity less span), ties by id: the largest number of them where no
    more servers want a span than it has places, a heuristic otherwise. ``plan`` satisfies ``check_plan`` and keeps to
    the territories, as ``allocate``'s plans do. O(n log n + n * L).
    """
    grounds = territories(cluster)
    spans = {share.id: share.span for share in plan.shares}
    holders: dict[str, str] = {}  # who stands where the plan has put this server
    for nodes in grounds:
        holders |= _exchange(nodes, {node.id: spans[node.id] for node in nodes if node.id in spans})
    pipelines = [tuple(Share(holders[share.id], share.span) for share in pipeline) for pipeline in plan.pipelines]
    replicas = [Share(holders[share.id], share.span) for share in plan.replicas]
    return finish(cluster, grounds, pipelines, replicas, plan.score_name, plan.gap)


def keepers(plan: Plan, cluster: Cluster) -> set[str]:
    """The servers whose share is the span that they hold now: they do not move."""
    present = {node.id: node.span for node in cluster.nodes}
    return {share.id for share in plan.shares if present[share.id] == share.span}


def _exchange(nodes: Sequence[Node], places: Mapping[str, Span]) -> dict[str, str]:
    """For each place (named by the server that the plan puts there) the server that takes it."""
    room = _Room(nodes, places.values())
    present = {node.id: node.span for node in nodes}
    free: dict[Span, list[str]] = defaultdict(list)  # taken from the end: first whose server in the plan holds another
    for place in sorted(places, key=lambda place: (present[place] != places[place], place)):
        free[places[place]].append(place)
    taken: dict[str, str] = {}
    staying = [node for node in nodes if node.span is not None and node.span in free]
    for node in sorted(staying, key=lambda node: (node.capacity_layers - len(node.span or ()), node.id)):
        wanted = free[node.span] if node.span is not None else []
        if wanted and room.take(node, places[wanted[0]]):
            own = node.id in wanted
            taken[node.id if own else wanted[-1]] = node.id
            wanted.remove(node.id if own else wanted[-1])
    settled = set(taken.values())
    for node in nodes:
        if node.id not in settled and node.id in places and node.id not in taken and room.take(node, places[node.id]):
            taken[node.id] = node.id
    settled = set(taken.values())
    left = sorted((place for place in places if place not in taken), key=lambda place: (-len(places[place]), place))
    rest = [node.id for node in nodes if node.id not in settled]  # largest first, as the places are
    return taken | dict(zip(left, rest, strict=False))


class _Room:
    """Whether the servers that are not settled can fill the places that are not: the larger ones the larger places.

    They can if for every size there are as many servers of at least that capacity as places of at least that length.
    """

    def __init__(self, nodes: Sequence[Node], places: Iterable[Span]) -> None:
        lengths = [len(span) for span in places]
        self._longest = max(lengths, default=0)
        sizes = np.arange(1, self._longest + 1)
        capacities = np.sort([node.capacity_layers for node in nodes])
        self._spare = (
            len(capacities)
            - np.searchsorted(capacities, sizes)
            - (len(lengths) - np.searchsorted(np.sort(lengths), sizes))
        )

    def take(self, node: Node, place: Span) -> bool:
        """Settle ``node`` at ``place``, unless it is too small for it or is needed for a longer one."""
        longer = self._spare[len(place) : min(node.capacity_layers, self._longest)]
        if node.capacity_layers < len(place) or (longer < 1).any():
            return False
        longer -= 1
        return True
