"""One model's servers at one moment, as ``status`` and the health page show them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from swarm.client.finding.choice import ModelShape, View, priced
from swarm.core.errors import NoRouteError
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.numerics import DTYPE_BYTES
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.coverage import holders, runs, usable
from swarm.scheduling.routing import Route, RouteNeeds
from swarm.scheduling.view import cluster_of

UNKNOWN_HIDDEN_SIZE = 4096
"""Assumed where the model's configuration is not at hand."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One model's servers at one moment. ``client_rtt_s`` is what was measured from here, by peer id.

    ``hidden_size`` None: unknown, so the prediction assumes ``UNKNOWN_HIDDEN_SIZE``.
    """

    model: str
    layers: int
    listings: Sequence[Listing]
    client_rtt_s: Mapping[str, float] = field(default_factory=dict)
    hidden_size: int | None = None

    @cached_property
    def shown(self) -> list[Listing]:
        """In order of layers. Announcements of another layer count are about no model we could route."""
        fitting = [one for one in self.listings if one.announcement.layer_count == self.layers]
        return sorted(fitting, key=lambda one: (one.announcement.start, one.announcement.end, one.peer))

    @cached_property
    def counts(self) -> list[int]:
        """How many servers hold each layer, of those that a session could use."""
        return holders((one.announcement.span for one in self.shown if usable(one)), self.layers)

    @property
    def holes(self) -> list[Span]:
        return [span for span, count in runs(self.counts) if count == 0]

    @cached_property
    def cluster(self) -> Cluster:
        """What `route --cluster` would be asked about this swarm."""
        widest = max((DTYPE_BYTES.get(one.announcement.numerics.dtype, 4) for one in self.shown), default=4)
        activation_bytes = widest * (self.hidden_size or UNKNOWN_HIDDEN_SIZE)
        return cluster_of(self.shown, self.layers, activation_bytes=activation_bytes, client_rtt_s=self._measured())

    def _measured(self) -> dict[str, float]:
        known = {one.peer for one in self.shown}
        return {peer: rtt_s for peer, rtt_s in self.client_rtt_s.items() if peer in known}

    @cached_property
    def route(self) -> Route | NoRouteError:
        """The chain a client with a remote head would take now, or why there is none."""
        try:
            shape = ModelShape(self.layers, self.hidden_size or UNKNOWN_HIDDEN_SIZE)
            return View(shape, self.shown, self.client_rtt_s).best(priced(RouteNeeds(head="remote", kv_tokens=1)))
        except NoRouteError as error:
            return error

    @property
    def guessed(self) -> int:
        """How many figures of the route are assumptions: round trips to, from and between its servers, and uplinks."""
        route, cluster = self.route, self.cluster
        if isinstance(route, NoRouteError):
            return 0
        nodes = {node.id: node for node in cluster.nodes}
        links = sum(_unmeasured(cluster, a.peer, b.peer) for a, b in pairwise(route.stages))
        ends = sum(peer not in cluster.client_rtt_s for peer in {route.stages[0].peer, route.stages[-1].peer})
        return links + ends + sum(nodes[stage.peer].uplink_mbps is None for stage in route.stages[:-1])


def _unmeasured(cluster: Cluster, a: str, b: str) -> bool:
    return a != b and b not in cluster.rtt_s.get(a, {}) and a not in cluster.rtt_s.get(b, {})


def layer_count_of(listings: Sequence[Listing], entry: ModelEntry | None) -> int:
    """What most servers say; without any, what the index says; 0 if nobody says anything."""
    said = Counter(one.announcement.layer_count for one in listings)
    if said:
        return max(said, key=lambda count: (said[count], -count))
    return 0 if entry is None else entry.layer_count
