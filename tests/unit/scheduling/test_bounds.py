"""What is expected of a chain some of whose links were never measured."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.announcement import Coordinate
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.scheduling.bounds import CLIENT, MIN_STEP_S, VAGUE, Bounds, bounds_of, likely
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.routing import RouteNeeds, Stage, price

NEEDS = RouteNeeds(head="remote", entry_bytes=64, exit_bytes=64)
NAMES = ("a", "b", "c")
TAU_S = 0.001


def node(name: str, uplink_mbps: float | None = 100.0, place: Coordinate | None = None) -> Node:
    start = 10 * NAMES.index(name) if name in NAMES else 0
    span = Span(start, start + 10)
    return Node(id=name, span=span, tau_s=TAU_S, uplink_mbps=uplink_mbps, coordinate=place)


def cluster(rtt_s: dict[str, dict[str, float]], client_rtt_s: dict[str, float], *nodes: Node) -> Cluster:
    return Cluster(layers=30, nodes=nodes or tuple(map(node, NAMES)), rtt_s=rtt_s, client_rtt_s=client_rtt_s)


def bounds(swarm: Cluster, *names: str) -> Bounds:
    nodes = {one.id: one for one in swarm.nodes}
    return bounds_of(swarm, [(nodes[name], 10) for name in names or NAMES], NEEDS)


def priced(swarm: Cluster) -> float:
    return price(swarm, [Stage(PeerId(one.id), one.span) for one in swarm.nodes if one.span], NEEDS)


def test_what_was_measured_counts_as_it_is() -> None:
    swarm = cluster({"a": {"b": 0.01}, "c": {"b": 0.05}}, {"a": 0.03, "c": 0.07})
    found = bounds(swarm)
    assert found.least_s == found.most_s == pytest.approx(priced(swarm))
    assert (found.links, found.guessed, found.vague, found.doubts) == (4, 0, False, "")


def test_of_two_words_about_a_link_the_senders_counts_as_in_routing() -> None:
    swarm = cluster({"a": {"b": 0.01}, "b": {"a": 0.2, "c": 0.05}}, {"a": 0.03, "c": 0.07})
    assert bounds(swarm).most_s == pytest.approx(priced(swarm))


coordinates = st.tuples(st.floats(0, 0.1), st.floats(0, 0.1))


@given(
    st.tuples(*[coordinates] * 4),
    st.sets(st.sampled_from(list(combinations((CLIENT, *NAMES), 2)))),
    st.tuples(*[st.one_of(st.none(), st.floats(5.0, 1000.0))] * 3),
)
def test_the_truth_lies_within(
    places: tuple[tuple[float, float], ...], measured: set[tuple[str, str]], uplinks: tuple[float | None, ...]
) -> None:
    """Where round trips are distances, none above what routing assumes, no uplink below that, whatever is measured."""
    at = dict(zip((CLIENT, *NAMES), places, strict=True))
    true_s = {(a, b): math.dist(at[a], at[b]) for a, b in combinations(at, 2)}

    def told(pairs: set[tuple[str, str]], nodes: list[Node]) -> Cluster:
        rtt_s: dict[str, dict[str, float]] = {}
        for a, b in pairs:
            rtt_s.setdefault(a, {})[b] = true_s[a, b]
        return cluster(rtt_s, rtt_s.pop(CLIENT, {}), *nodes)

    known = told(measured, [node(name, uplink) for name, uplink in zip(NAMES, uplinks, strict=True)])
    truth = told(set(true_s), [node(name, uplink or 50.0) for name, uplink in zip(NAMES, uplinks, strict=True)])
    found, true_step_s = bounds(known), priced(truth)
    assert found.least_s * (1 - 1e-9) <= true_step_s <= found.most_s * (1 + 1e-9)
    assert found.unmeasured == len({("", "a"), ("", "c"), ("a", "b"), ("b", "c")} - measured)
    assert found.uplinks == sum(uplink is None for uplink in uplinks[:2])


def test_the_clients_own_round_trips_narrow_what_nobody_measured() -> None:
    """The case of a swarm that has just come together."""
    swarm = cluster({}, dict.fromkeys(NAMES, 0.004))
    found = bounds(swarm)
    assert found.least_s == pytest.approx(0.03 + 0.004, rel=0.1)
    assert found.most_s == pytest.approx(0.03 + 3 * 0.004, rel=0.1)
    assert priced(swarm) > 5 * found.most_s, "routing takes such links for slow"
    assert found.doubts == "2 of 4 links not measured yet"
    blind = bounds(cluster({}, {}))
    assert blind.most_s == pytest.approx(priced(cluster({}, {})))
    assert blind.least_s == pytest.approx(0.03, rel=0.1)
    assert blind.vague


def test_the_likely_cluster_prices_the_chain_in_between() -> None:
    for swarm in (cluster({}, dict.fromkeys(NAMES, 0.004)), cluster({"a": {"b": 0.2}}, {}), cluster({}, {})):
        found = bounds(swarm)
        assert priced(likely(swarm, [(one, 10) for one in swarm.nodes])) == pytest.approx(
            (found.least_s + found.most_s) / 2
        )


def test_two_far_apart_from_the_client_are_known_to_be_far_from_each_other() -> None:
    found = bounds(cluster({"b": {"c": 0.01}}, {"a": 0.4, "b": 0.02, "c": 0.03}))
    assert found.least_s == pytest.approx(0.03 + 0.2 + 0.19 + 0.005 + 0.015, rel=0.02)
    assert found.most_s == pytest.approx(0.03 + 0.2 + 0.21 + 0.005 + 0.015, rel=0.02)


def test_places_narrow_it_by_their_error() -> None:
    near, far = Coordinate(0.0, 0.0, 0.005, 0.1), Coordinate(0.04, 0.0, 0.005, 0.2)
    nodes = [node("a", place=near), node("b", place=far), node("c")]
    found = bounds(cluster({"b": {"c": 0.0}}, {}, *nodes))
    client_s, rest_s = Defaults().client_rtt_s, 0.03 + 2 * 8 * 16384 / 100e6
    assert found.least_s == pytest.approx(rest_s + 0.05 * 0.8 / 2, abs=1e-4)
    assert found.most_s == pytest.approx(rest_s + client_s + 0.05 * 1.45 / 2, abs=1e-4)


def test_a_stranger_moves_no_bound() -> None:
    swarm = cluster({}, dict.fromkeys(NAMES, 0.05))
    liar = replace(swarm, nodes=(*swarm.nodes, node("z")), rtt_s={"z": dict.fromkeys(NAMES, 0.0)})
    assert bounds(liar) == bounds(swarm)


def test_unmeasured_uplinks_are_told_apart() -> None:
    ways: dict[str, dict[str, float]] = {"a": {"b": 0.0}, "b": {"c": 0.0}}
    found = bounds(cluster(ways, dict.fromkeys(NAMES, 0.0), node("a", None), node("b", None), node("c", None)))
    assert found.most_s - found.least_s == pytest.approx(2 * 8 * 16384 / 5e6, rel=0.01)
    assert found.doubts == "2 uplinks not measured yet"
    both = bounds(cluster({}, {}, node("a", None), node("b"), node("c")))
    assert both.doubts == "4 of 4 links and 1 uplink not measured yet"


def test_one_server_has_one_link() -> None:
    whole = Node(id="a", span=Span(0, 30), tau_s=0.0, uplink_mbps=100.0)
    found = bounds_of(cluster({}, {"a": 0.0}, whole), [(whole, 30)], replace(NEEDS, exit_bytes=0))
    assert (found.least_s, found.most_s, found.links) == (MIN_STEP_S, MIN_STEP_S, 1)


def test_the_middle_is_as_far_from_either_end() -> None:
    wide = Bounds(0.1, 0.4)
    assert wide.middle_s == pytest.approx(0.2)
    assert wide.vague
    assert not Bounds(0.1, 0.1 * VAGUE).vague
