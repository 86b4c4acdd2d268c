"""Ring placement against brute force, and where a gateway should stand."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.placement import (
    EXACT_NODES,
    MAX_RING_NODES,
    Ring,
    best_loop,
    loop_cost,
    nearest_neighbour,
    place_gateway,
    ring_of,
    two_opt,
)

COST = st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e9))


@st.composite
def rings(draw: st.DrawFn, smallest: int, largest: int) -> Ring:
    count = draw(st.integers(smallest, largest))
    if draw(st.booleans()):
        dice = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        return Ring(dice.random(count), dice.random((count, count)), dice.random(count))
    values = draw(st.lists(COST, min_size=count * (count + 2), max_size=count * (count + 2)))
    table = np.array(values).reshape(count, count + 2)
    return Ring(table[:, 0], table[:, 2:], table[:, 1])


def brute_force(ring: Ring) -> float:
    return min(loop_cost(ring, order) for order in permutations(range(len(ring.out))))


def close(cost: float, other: float) -> bool:
    return cost == pytest.approx(other, rel=1e-9, abs=1e-12)


@given(rings(0, 6))
def test_a_short_ring_is_the_best_of_all_orders(ring: Ring) -> None:
    loop = best_loop(ring)
    assert loop.exact
    assert sorted(loop.order) == list(range(len(ring.out)))
    assert loop.cost_s == loop_cost(ring, loop.order)
    assert close(loop.cost_s, brute_force(ring))


@settings(max_examples=5)
@given(rings(8, EXACT_NODES))
def test_no_change_of_a_long_exact_ring_makes_it_better(ring: Ring) -> None:
    loop = best_loop(ring)
    assert loop.exact
    order = list(loop.order)
    least = loop.cost_s * (1 - 1e-9)
    for first in range(len(order)):
        for last in range(first + 1, len(order)):
            turned = order[:first] + order[first : last + 1][::-1] + order[last + 1 :]
            moved = order[:first] + order[first + 1 : last + 1] + [order[first]] + order[last + 1 :]
            assert loop_cost(ring, turned) >= least
            assert loop_cost(ring, moved) >= least
    assert loop.cost_s <= loop_cost(ring, two_opt(ring, nearest_neighbour(ring))) * (1 + 1e-9)


@settings(max_examples=50)
@given(rings(1, 24))
def test_turns_never_make_a_ring_worse(ring: Ring) -> None:
    greedy = nearest_neighbour(ring)
    turned = two_opt(ring, greedy)
    assert sorted(greedy) == sorted(turned) == list(range(len(ring.out)))
    assert loop_cost(ring, turned) <= loop_cost(ring, greedy) * (1 + 1e-12)
    least = loop_cost(ring, turned) * (1 - 1e-6) - 1e-9
    for first in range(len(turned)):
        for last in range(first + 1, len(turned)):
            again = turned[:first] + turned[first : last + 1][::-1] + turned[last + 1 :]
            assert loop_cost(ring, again) >= least


def test_a_crossing_of_nearest_neighbour_is_undone() -> None:
    at = np.array([0.0, 1.0, -1.2, 4.0, -8.0])  # from 0 the nearest one lies now right, now left
    between = np.abs(at[:, None] - at[None, :])
    ring = Ring(np.abs(at), between, np.zeros(len(at)))
    greedy = nearest_neighbour(ring)
    assert greedy == (0, 1, 2, 3, 4)
    assert loop_cost(ring, two_opt(ring, greedy)) < loop_cost(ring, greedy)


def test_the_slow_uplink_goes_last_where_the_way_home_is_short() -> None:
    nodes = [Node(id="a", uplink_mbps=1.0), Node(id="b", uplink_mbps=100.0), Node(id="c", uplink_mbps=100.0)]
    rtt_s = {"a": {"b": 0.01, "c": 0.01}, "b": {"c": 0.01}}
    cluster = Cluster(
        layers=3, nodes=tuple(nodes), rtt_s=rtt_s, client_rtt_s={"a": 0.01, "b": 0.01, "c": 0.01}, activation_bytes=1000
    )
    ring = ring_of(cluster, nodes)
    assert ring.between[0, 1] == pytest.approx(0.005 + 0.008)
    assert ring.between[1, 0] == pytest.approx(0.005 + 0.00008)
    assert ring.out.tolist() == [0.005] * 3
    assert ring.back.tolist() == pytest.approx([0.005 + 0.008, 0.005 + 0.00008, 0.005 + 0.00008])


def test_a_ring_above_the_exact_size_says_so_and_one_far_above_is_refused() -> None:
    dice = np.random.default_rng(1)
    count = EXACT_NODES + 1
    loop = best_loop(Ring(dice.random(count), dice.random((count, count)), dice.random(count)))
    assert not loop.exact
    assert sorted(loop.order) == list(range(count))
    many = MAX_RING_NODES + 1
    with pytest.raises(ConfigError, match="over 2048"):
        best_loop(Ring(np.zeros(many), np.zeros((many, many)), np.zeros(many)))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[list[Node]]]:
    count = draw(st.integers(1, 6))
    seconds = st.floats(0, 1)
    names = [f"n{index}" for index in range(count)]
    nodes = [Node(id=name, uplink_mbps=draw(st.sampled_from([None, 1.0, 50.0]))) for name in names]
    rtt_s = {a: {b: draw(seconds) for b in names if b != a and draw(st.booleans())} for a in names}
    client_rtt_s = {name: draw(seconds) for name in names if draw(st.booleans())}
    uplink_mbps = draw(st.sampled_from([None, 10.0]))
    cluster = Cluster(
        layers=8, nodes=tuple(nodes), rtt_s=rtt_s, client_rtt_s=client_rtt_s, client_uplink_mbps=uplink_mbps
    )
    cut = draw(st.integers(0, count - 1))
    return cluster, [ring for ring in (nodes[:cut], nodes[cut:]) if ring]


def round_s(cluster: Cluster, order: tuple[Node, ...], depot: Node | None) -> float:
    """One token's links by the objective, written out."""

    def half_s(node: Node) -> float:
        if depot is None:
            return cluster.client_rtt(node) / 2
        return 0.0 if depot.id == node.id else cluster.rtt_between(depot, node) / 2

    total_s = half_s(order[0]) + half_s(order[-1]) + sum(cluster.uplink_s(node, 16384) for node in order)
    if cluster.client_uplink_mbps is not None:
        total_s += 8 * 16384 / (cluster.client_uplink_mbps * 1e6)
    return total_s + sum(cluster.rtt_between(a, b) / 2 for a, b in pairwise(order))


@given(clusters())
def test_a_gateway_stands_where_the_mean_loop_is_least(given_: tuple[Cluster, list[list[Node]]]) -> None:
    cluster, pipelines = given_

    def mean_s(depot: Node | None) -> float:
        best = [min(round_s(cluster, order, depot) for order in permutations(nodes)) for nodes in pipelines]
        return sum(best) / len(best)

    gateway = place_gateway(cluster, pipelines)
    assert gateway.exact
    assert close(gateway.own_loop_s, mean_s(None))
    assert close(gateway.loop_s, min(map(mean_s, (None, *cluster.nodes))))
    assert close(gateway.loop_s, mean_s(gateway.node))
    assert gateway.saves_s >= 0
    for nodes, loop in zip(pipelines, gateway.loops, strict=True):
        order = tuple(nodes[index] for index in loop.order)
        assert close(loop.cost_s, round_s(cluster, order, gateway.node))


def test_a_far_client_is_told_to_move_and_a_near_one_to_stay() -> None:
    nodes = [Node(id=name, region="eu", uplink_mbps=100.0) for name in "abc"]
    rtt_s = {"a": {"b": 0.02, "c": 0.02}, "b": {"c": 0.02}}
    far = Cluster(layers=3, nodes=tuple(nodes), rtt_s=rtt_s, client_rtt_s=dict.fromkeys("abc", 0.2))
    gateway = place_gateway(far, [nodes])
    assert gateway.node is not None
    assert gateway.node.region == "eu"
    assert gateway.saves_s == pytest.approx(0.2 - 0.01)
    assert (gateway.links, gateway.assumed) == (3 + 3, 0)  # there and back without the own machine, and the client
    near = Cluster(layers=3, nodes=tuple(nodes), rtt_s=rtt_s, client_rtt_s=dict.fromkeys("abc", 0.001))
    assert place_gateway(near, [nodes]).node is None
    assert place_gateway(near, [nodes]).saves_s == 0.0


def test_a_ring_too_long_for_an_exact_answer_still_gets_a_place() -> None:
    dice = np.random.default_rng(7)
    nodes = [Node(id=f"n{index:02}", uplink_mbps=10.0) for index in range(40)]
    rtt_s = {a.id: {b.id: float(dice.uniform(0.01, 0.1)) for b in nodes if a.id < b.id} for a in nodes}
    cluster = Cluster(layers=80, nodes=tuple(nodes), rtt_s=rtt_s, defaults=Defaults(client_rtt_s=0.5))
    gateway = place_gateway(cluster, [nodes[:20], nodes[20:]])
    assert gateway.node is not None
    assert not gateway.exact
    assert gateway.loop_s == pytest.approx(sum(loop.cost_s for loop in gateway.loops) / 2)
    assert gateway.saves_s > 0.3
    assert gateway.assumed == len(nodes)  # the client's own round trips


def test_without_a_pipeline_there_is_no_place() -> None:
    cluster = Cluster(layers=3, nodes=(Node(id="a"),))
    with pytest.raises(ConfigError, match="no pipeline"):
        place_gateway(cluster, [])
    with pytest.raises(ConfigError, match="no pipeline"):
        place_gateway(cluster, [[]])


def test_in_a_large_cluster_the_hub_is_found() -> None:
    nodes = [Node(id=f"n{index:03}", uplink_mbps=10.0) for index in range(400)]
    hub = Node(id="zz")
    rtt_s = {"zz": {node.id: 0.001 for node in nodes}}
    cluster = Cluster(layers=80, nodes=(hub, *nodes), rtt_s=rtt_s)
    gateway = place_gateway(cluster, [nodes[start : start + 4] for start in range(0, 80, 4)])
    assert gateway.node == hub
    assert gateway.saves_s == pytest.approx(Defaults().client_rtt_s - 0.001)
