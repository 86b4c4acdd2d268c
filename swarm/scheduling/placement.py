"""Ring placement: in which order equal stages should stand, and where a gateway should (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import ConfigError
from swarm.scheduling.cluster import Cluster, Node

EXACT_NODES = 16
"""Up to so many stages the best order is exact."""
MAX_RING_NODES = 2048
MAX_PLACES = 256
"""Up to so many nodes ``place_gateway`` looks at every one; of more, at the ``CLOSE_PLACES`` nearest to the rings."""
CLOSE_PLACES = 64
"""Also so many are tried on a ring too long for an exact answer."""
SAMPLE_NODES = 64
"""So many nodes of the rings say how near a place is to them."""
GAIN = 1e-9
"""A 2-opt move must save this share of the loop, or rounding could make it go round for ever."""

Costs: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ring:
    """What links cost in seconds: ``out[i]`` from the depot to i, ``between[i, j]`` from i to j, ``back[i]`` home.

    Not symmetric: a hop is sent over its sender's uplink. ``between`` is (n, n); all costs are finite and not negative,
    the diagonal counts for nothing.
    """

    out: Costs
    between: Costs
    back: Costs


@dataclass(frozen=True, slots=True)
class Loop:
    """An order of the ring's indices, and what one round of it costs. ``exact``: no order costs less."""

    order: tuple[int, ...]
    cost_s: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a gateway should stand: beside ``node``, or at the client's own place (None).

    ``loop_s`` is the mean over the rings of what a token's links cost from there, ``own_loop_s`` from the client's
    place, both in the best order found; ``loops`` holds that order for each ring, as indices of its nodes.
    ``assumed`` of the ``links`` that these loops and the client's own first and last hops use were never measured.
    """

    node: Node | None
    loop_s: float
    own_loop_s: float
    loops: tuple[Loop, ...]
    links: int
    assumed: int

    @property
    def saves_s(self) -> float:
        """Seconds a token."""
        return self.own_loop_s - self.loop_s

    @property
    def exact(self) -> bool:
        return all(loop.exact for loop in self.loops)


def loop_cost(ring: Ring, order: Sequence[int]) -> float:
    """``out[first] + sum of between[a, b] + back[last]`` in seconds; 0 for an empty order."""
    if not order:
        return 0.0
    inner = sum(float(ring.between[a, b]) for a, b in pairwise(order))
    return float(ring.out[order[0]]) + inner + float(ring.back[order[-1]])


def best_loop(ring: Ring) -> Loop:
    """The order of all nodes with the least ``loop_cost``, the depot before the first and after the last.

    Up to ``EXACT_NODES`` it is the optimum, by Held and Karp's dynamic programming (J. SIAM 10, 1962), in O(2^n n^2)
    time and O(2^n n) memory: 0.1 s and 8 MB at 16. Above, nearest neighbour and then 2-opt moves, the best one each
    time, until none helps: O(n^2) a move, about n moves, never worse than nearest neighbour, no bound towards the
    optimum. Ties go to the lower index.

    Wrong where the stages are not equal in what order they may take, and where a stage's time depends on its place:
    only links are counted, as the sum of stage times is the same in every order.
    Raises ``ConfigError`` over ``MAX_RING_NODES``.
    """
    count = len(ring.out)
    if count > MAX_RING_NODES:
        raise ConfigError(f"a ring of {count} nodes, over {MAX_RING_NODES}")
    if count <= EXACT_NODES:
        order = _held_karp(ring)
        return Loop(order, loop_cost(ring, order), exact=True)
    order = two_opt(ring, nearest_neighbour(ring))
    return Loop(order, loop_cost(ring, order), exact=False)


def _held_karp(ring: Ring) -> tuple[int, ...]:
    count = len(ring.out)
    if count == 0:
        return ()
    table = _paths(ring.out, ring.between)
    full = (1 << count) - 1
    last = int(np.argmin(table[full] + ring.back))
    order = [last]
    members = full
    while members != 1 << last:
        members ^= 1 << last
        last = int(np.argmin(table[members] + ring.between[:, last]))
        order.append(last)
    return tuple(reversed(order))


def _paths(start: Costs, between: Costs) -> Costs:
    """``table[set, j]``: the least cost of a path that begins with ``start``, visits the set (bits) and ends at j."""
    count = len(start)
    table = np.full((1 << count, count), np.inf)
    table[1 << np.arange(count), np.arange(count)] = start
    sets = np.arange(1 << count)
    sizes = sum((sets >> bit) & 1 for bit in range(count))
    for size in range(1, count):
        grown = sets[sizes == size]
        for node in range(count):
            before = grown[(grown >> node) & 1 == 0]
            table[before | (1 << node), node] = (table[before] + between[:, node]).min(axis=1)
    return table


def nearest_neighbour(ring: Ring) -> tuple[int, ...]:
    """From the depot always on to the cheapest node not visited yet; ties to the lower index. O(n^2)."""
    left = np.ones(len(ring.out), dtype=bool)
    order: list[int] = []
    costs = ring.out
    for _ in range(len(ring.out)):
        order.append(int(np.argmin(np.where(left, costs, np.inf))))
        left[order[-1]] = False
        costs = ring.between[order[-1]]
    return tuple(order)


def two_opt(ring: Ring, order: Sequence[int]) -> tuple[int, ...]:
    """``order`` with stretches of it turned round, the most saving one first, until no turn saves anything.

    A turn changes the direction of every hop inside it, which costs where uplinks differ; running sums of both
    directions price all turns at once. O(n^2) a turn.
    """
    tour = np.asarray(order, dtype=np.intp)
    count = len(tour)
    rows, columns = np.triu_indices(count, k=1)
    for _ in range(10 * count):
        forth = ring.between[tour[:-1], tour[1:]]
        turned = ring.between[tour[1:], tour[:-1]] - forth
        inside = np.concatenate(([0.0], np.cumsum(turned)))
        entry = np.concatenate(([ring.out[tour[0]]], forth))
        leave = np.concatenate((forth, [ring.back[tour[-1]]]))
        into = np.vstack((ring.out[tour], ring.between[tour[:-1]][:, tour]))  # [i, j]: what enters at i goes to tour[j]
        home = np.hstack((ring.between[tour][:, tour[1:]], ring.back[tour][:, None]))  # [i, j]: tour[i] leaves past j
        change = (
            into[rows, columns] - entry[rows] + home[rows, columns] - leave[columns] + inside[columns] - inside[rows]
        )
        best = int(np.argmin(change)) if len(change) else 0
        if not len(change) or change[best] >= -GAIN * loop_cost(ring, tour.tolist()):
            break
        first, last = rows[best], columns[best]
        tour[first : last + 1] = tour[first : last + 1][::-1].copy()
    return tuple(tour.tolist())


def ring_of(cluster: Cluster, nodes: Sequence[Node], depot: Node | None = None) -> Ring:
    """What the links of ``nodes`` cost by the objective of DESIGN 7; ``depot`` None is the client at its own place.

    A depot beside a node has that node's round trips and none to the node itself. What the depot sends is counted as
    the client's sending is: only if ``client_uplink_mbps`` is known. O(n^2).
    """
    half_rtt = np.array([[_rtt_s(cluster, a, b) for b in nodes] for a in nodes]).reshape(len(nodes), len(nodes)) / 2
    send, away = _send(cluster, nodes), _away(cluster, depot, nodes)
    return Ring(away + _entry_s(cluster), half_rtt + send[:, None], away + send)


def _send(cluster: Cluster, nodes: Sequence[Node]) -> Costs:
    return np.array([cluster.uplink_s(node, cluster.activation_bytes) for node in nodes])


def _away(cluster: Cluster, depot: Node | None, nodes: Sequence[Node]) -> Costs:
    """Half of each node's round trip to the depot."""
    return np.array([cluster.client_rtt(node) if depot is None else _rtt_s(cluster, depot, node) for node in nodes]) / 2


def _entry_s(cluster: Cluster) -> float:
    uplink_mbps = cluster.client_uplink_mbps
    return 0.0 if uplink_mbps is None else 8.0 * cluster.activation_bytes / (uplink_mbps * 1e6)


def _rtt_s(cluster: Cluster, a: Node, b: Node) -> float:
    return 0.0 if a.id == b.id else cluster.rtt_between(a, b)


def place_gateway(cluster: Cluster, rings: Sequence[Sequence[Node]]) -> Gateway:
    """The place with the least mean loop over ``rings``: beside one of the cluster's nodes, or where the client is.

    Exact for rings of up to ``EXACT_NODES`` nodes and clusters of up to ``MAX_PLACES``: a ring of n costs O(2^n n^3)
    once (1.3 s at 16), a place O(n^2). In larger clusters, and for longer rings (ordered as ``best_loop`` does), only
    the ``CLOSE_PLACES`` nearest places are tried. Ties go to the client's own place, then to the lower id.

    It says what a *token* saves: a person farther from the gateway than from the swarm waits the extra way once an
    answer, not once a token. Wrong where a ring's stages may not change their order, where sessions do not spread
    evenly over the rings, and where a round trip is a default and not a measurement.
    Raises ``ConfigError`` without rings, or for a ring over ``MAX_RING_NODES``.
    """
    if not rings or not all(rings):
        raise ConfigError("no pipeline that a gateway could stand before")
    places = _places(cluster, rings)
    means = np.mean([_loops_from(cluster, nodes, places) for nodes in rings], axis=0)
    best = int(np.argmin(means))
    depot = places[best]
    loops = tuple(best_loop(ring_of(cluster, nodes, depot)) for nodes in rings)
    links = [link for ring, loop in zip(rings, loops, strict=True) for link in _links(cluster, ring, loop, depot)]
    return Gateway(
        node=depot,
        loop_s=float(means[best]),
        own_loop_s=float(means[0]),
        loops=loops,
        links=len(links),
        assumed=links.count(False),
    )


def _links(cluster: Cluster, nodes: Sequence[Node], loop: Loop, depot: Node | None) -> list[bool]:
    """For each link of the loop, and each of the client's to the ring, whether it was measured."""
    order = [nodes[index] for index in loop.order]
    pairs = [*pairwise(order)] if depot is None else [*pairwise([depot, *order, depot])]
    measured = [b.id in cluster.rtt_s.get(a.id, {}) or a.id in cluster.rtt_s.get(b.id, {}) for a, b in pairs if a != b]
    return measured + [node.id in cluster.client_rtt_s for node in nodes]


def _places(cluster: Cluster, rings: Sequence[Sequence[Node]]) -> list[Node | None]:
    """Nobody, which is the client's own place, and nodes in order of id."""
    places = sorted(cluster.nodes, key=lambda node: node.id)
    if len(places) > MAX_PLACES:
        inside = sorted({node.id: node for nodes in rings for node in nodes}.items())
        sample = [node for _, node in inside[:: -(-len(inside) // SAMPLE_NODES)]]
        away = {place.id: float(_away(cluster, place, sample).sum()) for place in places}
        places = sorted(sorted(places, key=lambda node: away[node.id])[:CLOSE_PLACES], key=lambda node: node.id)
    return [None, *places]


def _loops_from(cluster: Cluster, nodes: Sequence[Node], places: Sequence[Node | None]) -> Costs:
    """For each place the cost of its best loop over ``nodes``; infinite where that was not looked at."""
    between = ring_of(cluster, nodes).between
    away = np.stack([_away(cluster, depot, nodes) for depot in places])
    out, back = away + _entry_s(cluster), away + _send(cluster, nodes)
    if len(nodes) <= EXACT_NODES:
        through = _through(between)
        return np.asarray((out[:, :, None] + through + back[:, None, :]).min(axis=(1, 2)), dtype=np.float64)
    costs = np.full(len(places), np.inf)
    order = np.argsort(out.min(axis=1) + back.min(axis=1), kind="stable")
    for index in {0, *order[:CLOSE_PLACES].tolist()}:
        costs[index] = best_loop(Ring(out[index], between, back[index])).cost_s
    return costs


def _through(between: Costs) -> Costs:
    """``through[a, b]``: the least cost of a path over all nodes from a to b."""
    starts = np.full((len(between), len(between)), np.inf)
    np.fill_diagonal(starts, 0.0)
    return np.stack([_paths(start, between)[-1] for start in starts])
