"""Which servers share a pipeline: exchanges that let the whole swarm serve more, with the same number of servers."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from swarm.scheduling.cluster import Node

Group: TypeAlias = list[Node]

ROUNDS = 3
EXCHANGES = 1000
"""So many exchanges of two servers are weighed at most for one plan (about 10 µs each)."""
CLEARLY = 1 + 1e-9


def pipeline_rate(group: Sequence[Node], layers: int) -> float:
    """Tokens per second of a pipeline whose layers are shared by water-filling, before rounding: 1 / lambda.

    0 if a server without power is needed. The capacities suffice. O(n log n); see ``waterfill.water_fill``.
    """
    strong = sorted(
        (node.capacity_layers / node.power, node.capacity_layers, node.power) for node in group if node.power
    )
    ahead = [*itertools.accumulate((power for *_, power in reversed(strong)), initial=0.0)]
    slowest = 0.0
    for (ratio, capacity, _), power in zip(strong, reversed(ahead), strict=False):
        if layers > 0 and ratio * power > layers:  # this one is not full, nor is any after it
            return power / layers
        if layers <= 0:
            break
        layers -= capacity
        slowest = ratio
    return 1 / slowest if slowest and layers <= 0 else 0.0


def matched(groups: Sequence[Group], layers: int) -> list[Group]:
    """Servers of one capacity exchanged, so that the strong stand with the strong: the pipelines' rates sum to more.

    A pipeline is as fast as its servers together where no capacity binds, but its small servers do not get faster by
    large ones beside them; so the best pipeline takes the most powerful server of each capacity it has, and so on.
    A heuristic, repeated up to ``ROUNDS`` times while the sum grows. Sizes and sums of capacities stay as they are.
    O(n log n).
    """
    best, total = [list(group) for group in groups], sum(pipeline_rate(group, layers) for group in groups)
    for _ in range(ROUNDS):
        stock: dict[int, Group] = defaultdict(list)
        for node in sorted(itertools.chain.from_iterable(best), key=lambda node: (node.power, node.id)):
            stock[node.capacity_layers].append(node)
        fastest = sorted(range(len(best)), key=lambda index: (-pipeline_rate(best[index], layers), index))
        trial: list[Group] = [[] for _ in best]
        for index in fastest:
            trial[index] = [stock[node.capacity_layers].pop() for node in best[index]]
        grown = sum(pipeline_rate(group, layers) for group in trial)
        if grown <= total * CLEARLY:
            break
        best, total = trial, grown
    return best


def exchanged(groups: Sequence[Group], spare: Sequence[Node], layers: int, effort: int = EXCHANGES) -> list[Group]:
    """Single servers exchanged between two pipelines, or with a spare, wherever the two rates sum to more for it.

    Each pipeline can still hold the model afterwards. First improvement, pair by pair in order, until none is left (a
    local optimum) or ``effort`` were weighed. Sizes stay as they are.
    """
    lines = [*(list(group) for group in groups), list(spare)]
    rates = [*(pipeline_rate(group, layers) for group in groups), 0.0]
    room = [sum(node.capacity_layers for node in line) - layers for line in lines]
    room[-1] = sum(node.capacity_layers for node in itertools.chain.from_iterable(lines))  # spares need to hold nothing
    weighed, improved = 0, True
    while improved:
        improved = False
        for a, b in itertools.combinations(range(len(lines)), 2):
            for i, j in itertools.product(range(len(lines[a])), range(len(lines[b]))):
                x, y = lines[a][i], lines[b][j]
                less = x.capacity_layers - y.capacity_layers
                if less > room[a] or -less > room[b] or (less == 0 and x.power == y.power):
                    continue
                if weighed >= effort:
                    return lines[:-1]
                weighed += 1
                trial = _with(lines[a], i, y), _with(lines[b], j, x)
                rate = pipeline_rate(trial[0], layers), 0.0 if b == len(groups) else pipeline_rate(trial[1], layers)
                if sum(rate) > (rates[a] + rates[b]) * CLEARLY:
                    lines[a], lines[b] = trial
                    rates[a], rates[b] = rate
                    room[a], room[b] = room[a] - less, room[b] + less
                    improved = True
    return lines[:-1]


def _with(group: Group, index: int, node: Node) -> Group:
    return [*group[:index], node, *group[index + 1 :]]
