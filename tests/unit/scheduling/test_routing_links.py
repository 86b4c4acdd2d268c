"""Hop times in arrays are the cluster's own, and no bound on them is above the truth."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from swarm.core.announcement import Coordinate
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node, pessimistic_rtt_s
from swarm.scheduling.routing_links import Links, links_of

LAYERS = 16
ROUNDED = 1 + 1e-12


def some_cluster(seed: int) -> Cluster:
    """Measured one way, both ways unequally, by coordinates, by regions named one way round, or not at all."""
    random = Random(seed)
    nodes = []
    for index in range(30):
        start = random.randrange(LAYERS)
        spot = Coordinate(random.random() / 9, random.random() / 9, random.random() / 90, random.random() * 2)
        nodes.append(
            Node(
                id=f"n{index:02}",
                span=Span(start, random.randint(start + 1, LAYERS)),
                region=random.choice(["east", "west", "nowhere"]),
                coordinate=spot if random.random() < 0.6 else None,
                uplink_mbps=random.choice([None, 10.0, 500.0]),
            )
        )
    ids = [node.id for node in nodes] + ["a stranger"]
    return Cluster(
        layers=LAYERS,
        nodes=tuple(nodes),
        rtt_s={a: {b: random.choice([0.0, random.random()]) for b in ids if random.random() < 0.2} for a in ids},
        defaults=Defaults(rtt_s=0.25, region_rtt_s={("west", "east"): 0.1, ("east", "east"): 0.0}),
    )


def links_and_hops(cluster: Cluster, dense_nodes: int) -> tuple[Links, np.ndarray]:
    hops = [
        [
            np.inf if a is b else cluster.rtt_between(a, b) / 2 + cluster.uplink_s(a, cluster.activation_bytes)
            for b in cluster.nodes
        ]
        for a in cluster.nodes
    ]
    return links_of(cluster, cluster.nodes, dense_nodes), np.array(hops)


@pytest.mark.parametrize("dense_nodes", [1000, 0])
@pytest.mark.parametrize("seed", range(8))
def test_blocks_hold_the_clusters_own_hops(seed: int, dense_nodes: int) -> None:
    random = np.random.default_rng(seed)
    links, hops = links_and_hops(some_cluster(seed), dense_nodes)
    everyone = np.arange(len(hops))
    np.testing.assert_allclose(links.block(everyone, everyone), hops, rtol=1e-12)
    for few, many in ((1, 30), (3, 20), (0, 5)):
        senders, receivers = random.permutation(30)[:few], random.permutation(30)[:many]
        np.testing.assert_allclose(links.block(senders, receivers), hops[np.ix_(senders, receivers)], rtol=1e-12)
        np.testing.assert_allclose(links.block(receivers, senders), hops[np.ix_(receivers, senders)], rtol=1e-12)


@pytest.mark.parametrize("dense_nodes", [1000, 0])
@pytest.mark.parametrize("seed", range(8))
def test_no_hop_that_a_chain_may_take_is_below_its_bounds(seed: int, dense_nodes: int) -> None:
    cluster = some_cluster(seed)
    links, hops = links_and_hops(cluster, dense_nodes)
    short = links.shortcuts
    shortcuts = set() if short is None else set(zip(short.sender.tolist(), short.receiver.tolist(), strict=True))
    tight = 0
    for i, a in enumerate(cluster.nodes):
        for j, b in enumerate(cluster.nodes):
            assert a.span is not None
            assert b.span is not None
            if a is b or not (b.span.start <= a.span.end and b.span.end > a.span.start + 1):
                continue
            assert links.least_s[i] <= hops[i, j] * ROUNDED
            if (i, j) not in shortcuts:
                assert links.nearest_s[links.group[j], i] <= hops[i, j] * ROUNDED
                tight += links.nearest_s[links.group[j], i] > hops[i, j] / 2
    assert tight > 50  # a bound of nothing would prune nothing


def test_coordinates_too_far_to_square_overflow_nothing() -> None:
    far, near = Coordinate(1e300, -1e300, 0.0, 1e300), Coordinate(0.0, 0.0, 0.0, 0.0)
    nodes = tuple(Node(id=f"n{index}", span=Span(0, 2), coordinate=at) for index, at in enumerate((far, near, near)))
    cluster = Cluster(layers=2, nodes=nodes)
    assert pessimistic_rtt_s(far, near) > 1e200
    everyone = np.arange(3)
    for dense_nodes in (1000, 0):
        hops = links_of(cluster, nodes, dense_nodes).block(everyone, everyone)
        assert hops[0, 1] > 1e99
        assert hops[1, 2] < 1.0


def test_a_pair_measured_one_way_counts_both_ways_and_what_both_measured_each_its_own() -> None:
    nodes = tuple(Node(id=name, span=Span(0, 2), uplink_mbps=1e300) for name in "abc")
    rtt_s = {"a": {"b": 1.0}, "b": {"a": 3.0, "c": 5.0}}
    cluster = replace(Cluster(layers=2, nodes=nodes, rtt_s=rtt_s), defaults=Defaults(rtt_s=7.0))
    everyone = np.arange(3)
    expected = [[np.inf, 0.5, 3.5], [1.5, np.inf, 2.5], [3.5, 2.5, np.inf]]
    for dense_nodes in (1000, 0):
        np.testing.assert_allclose(links_of(cluster, nodes, dense_nodes).block(everyone, everyone), expected)
