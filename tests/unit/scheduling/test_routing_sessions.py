"""Which of the fast chains: the fewest sessions among near equals, and none beyond its knee."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.knee import best_rate, full_servers, knee, lone_step_s
from swarm.scheduling.routing import Route, RouteNeeds, RouteOptions, find_route

FREE = Defaults(rtt_s=0.0, client_rtt_s=0.0, uplink_mbps=1e300)
NEEDS = RouteNeeds()
NEVER_FULL = RouteOptions(rounds=0)


def pair(fast_s: float, slow_s: float, sessions: tuple[int, int], rtt_s: float = 0.0) -> Cluster:
    """Two servers of one whole model each; ``rtt_s`` is the client's to both."""
    nodes = tuple(
        Node(id=name, span=Span(0, 10), tau_s=step_s / 10, sessions=count)
        for name, step_s, count in zip(("fast", "slow"), (fast_s, slow_s), sessions, strict=True)
    )
    return Cluster(layers=10, nodes=nodes, defaults=replace(FREE, client_rtt_s=rtt_s))


def peers(cluster: Cluster, options: RouteOptions | None = None, salt: int = 0) -> tuple[str, ...]:
    return find_route(cluster, needs=NEEDS, salt=salt, options=options).peers


def test_within_five_percent_the_fewest_sessions_win() -> None:
    assert peers(pair(1.0, 1.04, (1, 0)), NEVER_FULL) == ("slow",)
    assert peers(pair(1.0, 1.06, (1, 0)), NEVER_FULL) == ("fast",)
    assert peers(pair(1.0, 1.04, (1, 1)), NEVER_FULL) == ("fast",)
    assert peers(pair(1.0, 1.06, (1, 0)), RouteOptions(near=0.1, rounds=0)) == ("slow",)


def test_with_a_spread_near_equals_are_drawn_by_lot() -> None:
    cluster = pair(1.0, 1.01, (0, 0))
    assert {peers(cluster, salt=salt) for salt in range(40)} == {("fast",)}
    assert len({peers(cluster, RouteOptions(spread=0.05), salt=salt) for salt in range(40)}) == 2


@pytest.mark.parametrize("seed", range(15))
def test_the_fewest_sessions_of_all_chains_near_the_best(seed: int) -> None:
    """Two or three servers a third, all cuts at the ends: every chain is a choice of one each."""
    random = Random(seed)
    thirds = [
        [
            Node(
                id=f"{third}{n}",
                span=Span(third, third + 1),
                tau_s=random.uniform(1, 1.1),
                sessions=random.randint(0, 4),
            )
            for n in range(4)
        ]
        for third in range(3)
    ]
    cluster = Cluster(layers=3, nodes=tuple(node for third in thirds for node in third), defaults=FREE)
    route = find_route(cluster, needs=NEEDS, options=NEVER_FULL)
    chains = list(product(*thirds))
    best_s = min(sum(node.tau_s for node in chain) for chain in chains)
    near = [chain for chain in chains if sum(node.tau_s for node in chain) <= 1.05 * best_s]
    fewest = min(max(node.sessions for node in chain) for chain in near)
    fastest_s = min(sum(n.tau_s for n in chain) for chain in near if max(n.sessions for n in chain) == fewest)
    assert busiest(cluster, route) == fewest
    assert route.latency_s == pytest.approx(fastest_s)


def busiest(cluster: Cluster, route: Route) -> int:
    return max(node.sessions for node in cluster.nodes if node.id in route.peers)


@given(stages=st.integers(1, 6), step_s=st.floats(1e-4, 10.0), client_s=st.floats(0.0, 10.0), hop_s=st.floats(0.0, 1.0))
def test_the_knee_of_equal_unbatched_stages_is_p_plus_r_over_t(
    stages: int, step_s: float, client_s: float, hop_s: float
) -> None:
    """With t(b) = b·t, and with t(b) unknown."""
    for known in ((), tuple(batch * step_s for batch in (1, 2, 4, 8))):
        nodes = [
            Node(id=f"n{n}", span=Span(4 * n, 4 * n + 4), tau_s=step_s / 4, step_s=known, uplink_mbps=1e300)
            for n in range(stages)
        ]
        defaults = Defaults(rtt_s=2 * hop_s, client_rtt_s=client_s)
        cluster = Cluster(layers=4 * stages, nodes=tuple(nodes), defaults=defaults)
        network_s = client_s + (stages - 1) * hop_s
        assert knee(cluster, [(node, 4) for node in nodes], NEEDS) == pytest.approx(stages + network_s / step_s)


def test_batching_moves_the_knee_and_a_part_of_a_span_takes_its_share() -> None:
    node = Node(id="n", span=Span(0, 10), tau_s=9.0, step_s=(1.0, 1.25, 2.0, 4.5))
    assert lone_step_s(node, 10) == pytest.approx(1.0)  # not at the present load
    assert lone_step_s(node, 5) == pytest.approx(0.5)
    assert best_rate(node, 10) == pytest.approx(4 / 2.0)
    assert best_rate(node, 5) == pytest.approx(4.0)
    cluster = Cluster(layers=10, nodes=(node,), defaults=replace(FREE, client_rtt_s=3.0))
    assert knee(cluster, [(node, 10)], NEEDS) == pytest.approx((1.0 + 3.0) * 2)


def test_a_free_chain_has_no_knee() -> None:
    node = Node(id="n", span=Span(0, 10), sessions=1000)
    cluster = Cluster(layers=10, nodes=(node,), defaults=FREE)
    assert full_servers(cluster, [(node, 10)], NEEDS) == []


@given(sessions=st.integers(0, 12), rtt_s=st.floats(0.0, 8.0))
def test_a_server_is_full_when_one_more_would_pass_the_knee(sessions: int, rtt_s: float) -> None:
    cluster = pair(1.0, 9.0, (sessions, 0), rtt_s)
    chain = [(cluster.nodes[0], 10)]
    assert bool(full_servers(cluster, chain, NEEDS)) == (sessions + 1 > knee(cluster, chain, NEEDS) * (1 + 1e-9))


def test_a_chain_is_filled_to_its_knee_and_then_the_next_until_all_are_full() -> None:
    """Knee (1 + 3)/1 = 4 of the fast one and (2 + 3)/2 = 2.5 of the slow one, which is 1.25 times slower."""
    counts = {"fast": 0, "slow": 0}
    order = []
    for _ in range(8):
        (peer,) = peers(pair(1.0, 2.0, (counts["fast"], counts["slow"]), rtt_s=3.0))
        counts[peer] += 1
        order.append(peer)
    assert order[:6] == ["fast"] * 4 + ["slow"] * 2
    assert order[6:] == ["fast"] * 2  # all full: the fastest after all


def test_a_detour_has_its_limit() -> None:
    assert peers(pair(1.0, 3.9, (9, 0))) == ("slow",)
    assert peers(pair(1.0, 4.1, (9, 0))) == ("fast",)
    assert peers(pair(1.0, 4.1, (9, 0)), RouteOptions(detour=5.0)) == ("slow",)


def test_only_the_full_servers_of_a_chain_are_passed_over() -> None:
    halves = [
        Node(id=name, span=span, tau_s=tau_s, sessions=sessions)
        for name, span, tau_s, sessions in (
            ("head", Span(0, 1), 0.1, 9),
            ("full", Span(1, 2), 1.0, 9),
            ("spare", Span(1, 2), 1.5, 0),
        )
    ]
    cluster = Cluster(layers=2, nodes=tuple(halves), defaults=FREE)
    assert peers(cluster) == ("head", "spare")


def test_twenty_clients_one_after_another_split_between_two_equal_chains() -> None:
    counts = {"fast": 0, "slow": 0}
    for salt in range(20):
        (peer,) = peers(pair(1.0, 1.03, (counts["fast"], counts["slow"]), rtt_s=0.5), salt=salt)
        counts[peer] += 1
    assert counts == {"fast": 10, "slow": 10}
