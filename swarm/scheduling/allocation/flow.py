"""Maximum flow between layer boundaries, in whole numbers so that it can be checked exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Edge: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flow:
    """A maximum flow and its certificate.

    ``on`` holds the edges that carry something. ``reached`` are the boundaries still reachable from the source in the
    residual graph: the capacities of the edges that leave this set sum to ``value``, which no flow can exceed.
    """

    value: int
    on: Mapping[Edge, int]
    reached: frozenset[int]

    def crosses(self, edge: Edge) -> bool:
        """True if ``edge`` leads out of the minimum cut: only capacity on such edges can raise the flow."""
        return edge[0] in self.reached and edge[1] not in self.reached


def maximum_flow(capacities: Mapping[Edge, int], source: int, sink: int) -> Flow:
    """The maximum flow from ``source`` to ``sink``; capacities are whole and not negative, edges lead forward.

    Dinic: shortest augmenting paths, a level graph at a time, O(V²·E). Among equal flows the one found by trying
    boundaries in ascending order, whatever the order of ``capacities``.
    """
    residual: dict[int, dict[int, int]] = {source: {}, sink: {}}
    for start, end in sorted(capacities):
        residual.setdefault(start, {})
        residual.setdefault(end, {})
        residual[start][end] = residual[start].get(end, 0) + capacities[start, end]
        residual[end].setdefault(start, 0)
    value = 0
    while sink in (level := _levels(residual, source)):
        unseen = {vertex: deque(sorted(residual[vertex])) for vertex in residual}
        while pushed := _push(residual, level, unseen, source, sink):
            value += pushed
    on = {edge: used for edge in sorted(capacities) if (used := capacities[edge] - residual[edge[0]][edge[1]]) > 0}
    return Flow(value, on, frozenset(level))


def _levels(residual: Mapping[int, Mapping[int, int]], source: int) -> dict[int, int]:
    level = {source: 0}
    queue = deque([source])
    while queue:
        vertex = queue.popleft()
        for following, room in residual[vertex].items():
            if room > 0 and following not in level:
                level[following] = level[vertex] + 1
                queue.append(following)
    return level


def _push(
    residual: Mapping[int, dict[int, int]],
    level: Mapping[int, int],
    unseen: Mapping[int, deque[int]],
    source: int,
    sink: int,
) -> int:
    """Push along one path of the level graph; 0 if there is none left. Dead ends are taken off ``unseen``."""
    path = [source]
    while path and path[-1] != sink:
        vertex = path[-1]
        while unseen[vertex]:
            following = unseen[vertex][0]
            if residual[vertex][following] > 0 and level.get(following) == level[vertex] + 1:
                path.append(following)
                break
            unseen[vertex].popleft()
        else:
            path.pop()
            if path:
                unseen[path[-1]].popleft()
    edges = list(pairwise(path))
    if not edges:
        return 0
    pushed = min(residual[start][end] for start, end in edges)
    for start, end in edges:
        residual[start][end] -= pushed
        residual[end][start] += pushed
    return pushed


def unit_paths(counts: Mapping[Edge, int], source: int, sink: int) -> list[list[Edge]]:
    """As many edge-disjoint paths as there are, where ``counts`` says how often each edge may be used.

    Edges lead forward (start below end), so a flow has no cycles and decomposes greedily.
    """
    left = dict(maximum_flow(counts, source, sink).on)
    following: dict[int, list[int]] = {}
    for start, end in sorted(left):
        following.setdefault(start, []).append(end)
    paths = []
    while following.get(source):
        path, vertex = [], source
        while vertex != sink:
            edge = vertex, following[vertex][0]
            path.append(edge)
            left[edge] -= 1
            if not left[edge]:
                following[vertex].pop(0)
            vertex = edge[1]
        paths.append(path)
    return paths
