"""From listings to nodes: what a server says of itself, and what is assumed where it says nothing."""

from swarm.core.announcement import Announcement, Coordinate, Intent, Reach, State
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Node
from swarm.scheduling.view import UNKNOWN_POWER, cluster_of, node_of

MODEL = "m@r#0123456789abcdef"


def announcement(name: str, **fields: object) -> Announcement:
    values: dict[str, object] = {
        "peer": name,
        "model": MODEL,
        "layer_count": 8,
        "start": 2,
        "end": 6,
        "numerics": Numerics("float32"),
        "kv_tokens": 1000,
        "instance": 1,
        "sequence": 1,
        "started_s": 0.0,
        "expires_s": 60.0,
    }
    return Announcement(**{**values, **fields})  # type: ignore[arg-type]


def metrics(name: str, **fields: object) -> Metrics:
    values: dict[str, object] = {
        "peer": name,
        "model": MODEL,
        "instance": 1,
        "sequence": 1,
        "expires_s": 10.0,
        "tau_s": 0.002,
        "fixed_s": 0.001,
        "kv_free_tokens": 600,
    }
    return Metrics(**{**values, **fields})  # type: ignore[arg-type]


def test_everything_that_a_server_says_arrives() -> None:
    said = announcement(
        "a",
        head=True,
        embeddings=True,
        reach=Reach.RELAYED,
        state=State.DRAINING,
        intent=Intent(0, 4, 5.0),
        capacity_layers=7,
        power_layers_per_s=250.0,
        region="east",
        coordinate=Coordinate(1.0, 2.0, 3.0, 0.5),
    )
    live = metrics("a", step_s=(1.0, 1.5, 2.5, 4.5), sessions=3, queued_steps=2, uplink_mbps=40.0)
    assert node_of(Listing(said, b"", live)) == Node(
        id="a",
        span=Span(2, 6),
        capacity_layers=7,
        power=250.0,
        region="east",
        tau_s=0.002,
        fixed_s=0.001,
        uplink_mbps=40.0,
        kv_free_tokens=600,
        state=State.DRAINING,
        reach=Reach.RELAYED,
        head=True,
        embeddings=True,
        sessions=3,
        queued_steps=2,
        step_s=(1.0, 1.5, 2.5, 4.5),
        coordinate=Coordinate(1.0, 2.0, 3.0, 0.5),
        intent=Span(0, 4),
        intent_s=5.0,
        started_s=0.0,
    )


def test_without_metrics_a_server_is_not_live_and_takes_what_its_power_says() -> None:
    node = node_of(Listing(announcement("a", power_layers_per_s=50.0), b""))
    assert (node.live, node.tau_s, node.fixed_s, node.uplink_mbps) == (False, 1 / 50, 0.0, None)
    silent = node_of(Listing(announcement("a"), b""))
    assert (silent.tau_s, silent.power, silent.capacity_layers) == (1 / UNKNOWN_POWER, UNKNOWN_POWER, 4)


def test_room_is_the_free_budget_within_the_context() -> None:
    def room(context_tokens: int, live: Metrics | None) -> int | None:
        return node_of(Listing(announcement("a", context_tokens=context_tokens), b"", live)).kv_free_tokens

    assert (room(0, metrics("a")), room(500, metrics("a")), room(900, metrics("a"))) == (600, 500, 600)
    assert (room(0, None), room(500, None)) == (1000, 500)


def test_a_cluster_holds_the_servers_of_its_layer_count_and_what_they_measured() -> None:
    listings = [
        Listing(announcement("a"), b"", metrics("a", rtt_s={"b": 0.05})),
        Listing(announcement("b"), b""),
        Listing(announcement("c", layer_count=9), b"", metrics("c", rtt_s={"a": 0.5})),
    ]
    cluster = cluster_of(listings, 8, activation_bytes=128, client_rtt_s={"b": 0.02})
    assert [node.id for node in cluster.nodes] == ["a", "b"]
    assert (cluster.layers, cluster.activation_bytes, cluster.rtt_s) == (8, 128, {"a": {"b": 0.05}})
    a, b = cluster.nodes
    assert cluster.rtt_between(b, a) == 0.05
    assert cluster.client_rtt(b) == 0.02
    assert cluster.client_rtt(a) == cluster.defaults.client_rtt_s
