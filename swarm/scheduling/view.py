"""From the directory's listings to the scheduler's cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from swarm.core.announcement import Coordinate
from swarm.core.listing import Listing
from swarm.scheduling.cluster import Cluster, Defaults, Node

UNKNOWN_POWER = 1.0
"""Layers per second of a server that does not say: slow enough to be nobody's first choice."""

MAX_PLACE_ERROR = 0.5
"""Relative, of a network coordinate: whoever is less sure of his place counts as having none yet."""


def node_of(listing: Listing) -> Node:
    """One server as the scheduler sees it; without live metrics it is not ``live`` and its times are its power's."""
    announced, metrics = listing.announcement, listing.metrics
    power = announced.power_layers_per_s or UNKNOWN_POWER
    room = announced.kv_tokens if metrics is None else metrics.kv_free_tokens
    return Node(
        id=announced.peer,
        span=announced.span,
        capacity_layers=max(announced.capacity_layers, len(announced.span)),
        power=power,
        region=announced.region,
        tau_s=1.0 / power if metrics is None else metrics.tau_s,
        fixed_s=0.0 if metrics is None else metrics.fixed_s,
        uplink_mbps=None if metrics is None else metrics.uplink_mbps,
        kv_free_tokens=min(room, announced.context_tokens or room),
        state=announced.state,
        reach=announced.reach,
        numerics=announced.numerics,
        head=announced.head,
        embeddings=announced.embeddings,
        live=metrics is not None,
        sessions=0 if metrics is None else metrics.sessions,
        queued_steps=0 if metrics is None else metrics.queued_steps,
        step_s=() if metrics is None else metrics.step_s,
        coordinate=_sure(announced.coordinate),
        intent=None if announced.intent is None else announced.intent.span,
        intent_s=0.0 if announced.intent is None else announced.intent.time_s,
        started_s=announced.started_s,
    )


def cluster_of(
    listings: Iterable[Listing],
    layers: int,
    *,
    activation_bytes: int,
    client_rtt_s: Mapping[str, float] | None = None,
    defaults: Defaults | None = None,
    apart: Iterable[tuple[str, str]] = (),
) -> Cluster:
    """The servers that announce ``layers`` layers, with every round trip they measured, and who is kept ``apart``."""
    usable = [listing for listing in listings if listing.announcement.layer_count == layers]
    return Cluster(
        layers=layers,
        nodes=tuple(node_of(listing) for listing in usable),
        activation_bytes=activation_bytes,
        rtt_s={listing.peer: listing.metrics.rtt_s for listing in usable if listing.metrics is not None},
        client_rtt_s=client_rtt_s or {},
        defaults=defaults or Defaults(),
        apart=frozenset((min(pair), max(pair)) for pair in apart),
    )


def _sure(place: Coordinate | None) -> Coordinate | None:
    return place if place is not None and place.error <= MAX_PLACE_ERROR else None
