"""The cluster file: what is written is read back, and whatever else is refused by the name of its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.core.announcement import Coordinate, Reach, State
from swarm.core.errors import ConfigError
from swarm.core.numerics import DTYPE_BYTES, QUANTIZATIONS, Numerics
from swarm.core.spans import Span
from swarm.scheduling import cluster_file
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.cluster_file import MAX_FIGURE, read_cluster, write_cluster

NAMES = st.text(min_size=1, max_size=8).filter(str.isprintable)
SECONDS = st.floats(0, MAX_FIGURE)
RATES = st.floats(1 / MAX_FIGURE, MAX_FIGURE)
NUMERICS = st.builds(
    Numerics, st.sampled_from(sorted(DTYPE_BYTES)), st.sampled_from(QUANTIZATIONS), st.sampled_from(["", "float16"])
).map(lambda numerics: Numerics.parse(str(numerics)))


@st.composite
def nodes(draw: st.DrawFn, name: str, layers: int) -> Node:
    start = draw(st.integers(0, layers - 1))
    return Node(
        id=name,
        span=draw(st.none() | st.builds(Span, st.just(start), st.integers(start + 1, layers))),
        capacity_layers=draw(st.integers(0, 100)),
        power=draw(RATES),
        region=draw(st.just("") | NAMES),
        tau_s=draw(SECONDS),
        fixed_s=draw(SECONDS),
        uplink_mbps=draw(st.none() | RATES),
        kv_free_tokens=draw(st.none() | st.integers(0, 2**20)),
        state=draw(st.sampled_from(State)),
        reach=draw(st.sampled_from(Reach)),
        numerics=draw(NUMERICS),
        head=draw(st.booleans()),
        embeddings=draw(st.booleans()),
        live=draw(st.booleans()),
        sessions=draw(st.integers(0, 50)),
        queued_steps=draw(st.integers(0, 50)),
        step_s=draw(st.just(()) | st.tuples(SECONDS, SECONDS, SECONDS, SECONDS)),
        coordinate=draw(st.none() | st.builds(Coordinate, SECONDS, SECONDS, SECONDS, SECONDS)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    layers = draw(st.integers(1, 80))
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    held = tuple(draw(nodes(name, layers)) for name in names)
    row = st.dictionaries(st.sampled_from(names), SECONDS) if names else st.just({})
    return Cluster(
        layers=layers,
        nodes=held,
        activation_bytes=draw(st.integers(1, 2**30)),
        rtt_s=draw(st.dictionaries(st.sampled_from(names), row) if names else st.just({})),
        client_rtt_s=draw(row),
        client_uplink_mbps=draw(st.none() | RATES),
        defaults=Defaults(
            rtt_s=draw(SECONDS),
            client_rtt_s=draw(SECONDS),
            uplink_mbps=draw(RATES),
            region_rtt_s=draw(st.dictionaries(st.tuples(NAMES, NAMES), SECONDS, max_size=3)),
        ),
    )


@given(clusters())
def test_what_is_written_is_read_back(cluster: Cluster) -> None:
    assert read_cluster(write_cluster(cluster)) == cluster


def described(**changes: Any) -> dict[str, Any]:
    """A file of two nodes, the second one with ``changes``."""
    second = {"id": "b", "span": [32, 64], "tau_s": 0.001, **changes}
    return {"layers": 64, "nodes": [{"id": "a", "span": [0, 32], "tau_s": 0.001}, second], "rtt_s": {"a": {"b": 0.01}}}


def read(content: dict[str, Any]) -> Cluster:
    return read_cluster(json.dumps(content).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (*described(), "activation_bytes", "client_rtt_s", "client_uplink_mbps", "defaults")
NODE_FIELDS = (*(field for field in cluster_file._Entry.__struct_fields__), "other")


@given(st.binary(max_size=60))
@example(b"[" * 100_000)
@example(b'{"layers": ' + b"9" * 5000 + b', "nodes": []}')
@example(b'\xef\xbb\xbf{"layers": 3, "nodes": []}')
def test_any_bytes_are_a_cluster_or_a_told_mistake(data: bytes) -> None:
    said = ""
    try:
        assert isinstance(read_cluster(data), Cluster)
    except ConfigError as error:
        said = str(error)
    assert said.isprintable()


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2), st.dictionaries(st.sampled_from(NODE_FIELDS), JSON))
def test_any_json_is_a_cluster_or_a_mistake_with_its_field(
    changes: dict[str, Any], node_changes: dict[str, Any]
) -> None:
    content = {**described(**node_changes), **changes}
    try:
        cluster = read(content)
    except ConfigError as error:
        named = error.message.partition(":")[0]
        assert named.startswith((*changes, "nodes[", "rtt_s.a", "cluster file"))
        return
    assert all(node.span is None or node.span.end <= cluster.layers for node in cluster.nodes)
    assert len({node.id for node in cluster.nodes}) == len(cluster.nodes)
    assert read_cluster(write_cluster(cluster)) == cluster


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tau_s": float("nan")}, "nodes[1].tau_s: expected a number"),
        ({"tau_s": float("inf")}, "nodes[1].tau_s: expected a number <="),
        ({"tau_s": -0.1}, "nodes[1].tau_s: expected a number >= 0"),
        ({"fixed_s": "0.1"}, "nodes[1].fixed_s: expected a number, got text"),
        ({"tau_s": 10**400}, "nodes[1].tau_s: number out of range"),
        ({"power": 0}, "nodes[1].power: expected a number >="),
        ({"uplink_mbps": 0}, "nodes[1].uplink_mbps: expected a number >="),
        ({"capacity_layers": 1.5}, "nodes[1].capacity_layers: expected a whole number"),
        ({"capacity_layers": True}, "nodes[1].capacity_layers: expected a whole number"),
        ({"kv_free_tokens": -1}, "nodes[1].kv_free_tokens: expected a whole number >= 0"),
        ({"span": [32, 65]}, "nodes[1].span: expected [a, b] with 0 <= a < b <= 64"),
        ({"span": [32, 32]}, "nodes[1].span: expected [a, b]"),
        ({"span": [32]}, "nodes[1].span: expected a list of length 2"),
        ({"span": ["0", 2]}, "nodes[1].span[0]: expected a whole number, got text"),
        ({"id": "a"}, "nodes[1].id: 'a' is the id of nodes[0] too"),
        ({"id": ""}, "nodes[1].id: expected text of length >= 1"),
        ({"id": "b\x1b[2J"}, "nodes[1].id: 'b\\x1b[2J' holds unprintable characters"),
        ({"region": "\ud800"}, "nodes[1].region: '\\ud800' holds unprintable characters"),
        ({"state": "up"}, "nodes[1].state: expected joining or online or draining or offline, got 'up'"),
        ({"numerics": "f32"}, "nodes[1].numerics: unknown numerics 'f32'"),
        ({"step_s": [1.0]}, "nodes[1].step_s: expected 4 times"),
        ({"coordinate": [0, 0, -1, 0]}, "nodes[1].coordinate[2]: expected a number >= 0"),
        ({"speed": 3}, "nodes[1].speed: is no field of a cluster file"),
    ],
)
def test_a_wrong_node_is_told_by_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(described(**change))
    assert caught.value.message.startswith(said)
    assert "docs/cluster-format.md" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 0}, "layers: expected a whole number >= 1"),
        ({"layers": 31}, "nodes[0].span: expected [a, b] with 0 <= a < b <= 31"),
        ({"layers": 5000}, "layers: expected a whole number <= 4096"),
        ({"activation_bytes": 0}, "activation_bytes: expected a whole number >= 1"),
        ({"nodes": {}}, "nodes: expected a list, got an object"),
        ({"nodes": [{}]}, "nodes[0].id: is required"),
        ({"rtt_s": {"a": {"c": 1}}}, "rtt_s.a.c: no node has this id"),
        ({"rtt_s": {"c": {}}}, "rtt_s.c: no node has this id"),
        ({"rtt_s": {"a": {"b": -1}}}, "rtt_s.a.b: expected seconds, from 0"),
        ({"rtt_s": {"a": {"b": float("nan")}}}, "rtt_s.a.b: expected seconds"),
        ({"rtt_s": {"a": {"b": True}}}, "rtt_s.a.b: expected seconds"),
        ({"rtt_s": {"a": 0.1}}, "rtt_s.a: expected an object of seconds by id"),
        ({"client_rtt_s": {"c": 0.1}}, "client_rtt_s.c: no node has this id"),
        ({"client_rtt_s": 0.1}, "client_rtt_s: expected an object, got a number"),
        ({"client_uplink_mbps": 0}, "client_uplink_mbps: expected a number >="),
        ({"defaults": {"rtt": 1}}, "defaults.rtt: is no field"),
        ({"defaults": {"uplink_mbps": 0}}, "defaults.uplink_mbps: expected a number >="),
        ({"defaults": {"region_rtt_s": {"eu": {"us": "x"}}}}, "defaults.region_rtt_s.eu.us: expected seconds"),
        ({"latency": 1}, "latency: is no field of a cluster file"),
    ],
)
def test_a_wrong_file_is_told_by_its_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({**described(), **change})
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "cluster file: is no JSON: Expecting value: line 1 column 1"),
        (b"[]", "cluster file: expected an object, got a list"),
        (b"{}", "layers: is required"),
        (b'{"layers": 1, "layers": 2, "nodes": []}', "layers: is written twice in one object"),
        (b'{"layers": 1, "nodes": [{"id": "a", "id": "b"}]}', "id: is written twice in one object"),
        (b"\xff", "cluster file: is no JSON"),
    ],
)
def test_a_file_that_is_none_is_told_as_such(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster(data)
    assert caught.value.message.startswith(said)


def test_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {"layers": 1, "nodes": [{"id": str(index)} for index in range(cluster_file.MAX_NODES + 1)]}
    with pytest.raises(ConfigError, match=r"^nodes: expected a list of length <= 20000"):
        read(many)
    monkeypatch.setattr(cluster_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(ConfigError, match=r"^cluster file: 11 bytes, over 10"):
        read_cluster(b" " * 11)


def test_what_is_left_out_is_pessimistic() -> None:
    cluster = read({"layers": 8, "nodes": [{"id": "a"}, {"id": "b"}]})
    a, b = cluster.nodes
    assert (a.power, a.tau_s, a.fixed_s, a.capacity_layers, a.span) == (1.0, 1.0, 0.0, 0, None)
    assert a.state is State.ONLINE
    assert a.live
    assert (a.uplink_mbps, a.kv_free_tokens) == (None, None)
    assert cluster.activation_bytes == 16384
    assert cluster.defaults == Defaults()
    assert cluster.rtt_between(a, b) == Defaults().rtt_s
    assert cluster.client_rtt(a) == Defaults().client_rtt_s
    assert cluster.uplink_s(a, 1000) == pytest.approx(8000 / (Defaults().uplink_mbps * 1e6))
    nulls = dict.fromkeys(("power", "tau_s", "capacity_layers", "uplink_mbps", "span", "kv_free_tokens", "numerics"))
    assert read({"layers": 8, "nodes": [{"id": "a", **nulls}, {"id": "b"}]}) == cluster


def test_defaults_of_the_file_count() -> None:
    content = {"layers": 8, "nodes": [{"id": "a", "region": "eu"}, {"id": "b", "region": "us"}, {"id": "c"}]}
    defaults = {"rtt_s": 0.5, "uplink_mbps": 2.0, "region_rtt_s": {"us": {"eu": 0.09}}}
    cluster = read({**content, "defaults": defaults})
    a, b, c = cluster.nodes
    assert cluster.rtt_between(a, b) == 0.09
    assert cluster.rtt_between(a, c) == 0.5
    assert cluster.client_rtt(a) == 0.5  # a round trip like any other, unless it has a default of its own
    assert cluster.uplink_s(a, 1000) == pytest.approx(8000 / 2e6)
    own = read({**content, "defaults": {**defaults, "client_rtt_s": 0.1}})
    assert own.client_rtt(a) == 0.1


def test_power_and_tau_stand_in_for_each_other() -> None:
    content = {"layers": 8, "nodes": [{"id": "a", "power": 50}, {"id": "b", "tau_s": 0.05}, {"id": "c", "tau_s": 0}]}
    a, b, c = read(content).nodes
    assert a.tau_s == pytest.approx(0.02)
    assert b.power == pytest.approx(20)
    assert c.power == MAX_FIGURE


def test_capacity_is_as_long_as_the_span_unless_it_is_given() -> None:
    a, b = read(described(capacity_layers=10)).nodes
    assert (a.capacity_layers, b.capacity_layers) == (32, 10)
