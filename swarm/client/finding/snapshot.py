"""One model's servers at one moment, as ``status`` and the health page show them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from swarm.client.finding.choice import ModelShape, View, priced
from swarm.core.errors import NoRouteError
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.numerics import DTYPE_BYTES
from swarm.core.spans import Span
from swarm.scheduling.bounds import Bounds, bounds_of
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.coverage import holders, runs, usable
from swarm.scheduling.routing import Route, RouteNeeds
from swarm.scheduling.view import cluster_of

UNKNOWN_HIDDEN_SIZE = 4096
"""Assumed where the model's configuration is not at hand."""
NEEDS = priced(RouteNeeds(head="remote", kv_tokens=1))
"""What a new session asks of its chain."""


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
    def view(self) -> View:
        """The same as a client sees it."""
        shape = ModelShape(self.layers, self.hidden_size or UNKNOWN_HIDDEN_SIZE)
        return View(shape, self.shown, self.client_rtt_s)

    @cached_property
    def route(self) -> Route | NoRouteError:
        """The chain a client with a remote head would take now, or why there is none."""
        try:
            return self.view.best(NEEDS)
        except NoRouteError as error:
            return error

    @cached_property
    def expected(self) -> Bounds | None:
        """What a step over that chain may take, None if there is none.

        Routing takes what was never measured for slow, so its own latency may be far above both ends.
        """
        route = self.route
        if isinstance(route, NoRouteError):
            return None
        kinds = {one.peer: one.announcement.numerics for one in self.shown}
        cluster = self.view.cluster(kinds[route.stages[0].peer].dtype)  # all stages have one numerics class
        nodes = {node.id: node for node in cluster.nodes}
        return bounds_of(cluster, [(nodes[stage.peer], len(stage.span)) for stage in route.stages], NEEDS)


def layer_count_of(listings: Sequence[Listing], entry: ModelEntry | None) -> int:
    """What most servers say; without any, what the index says; 0 if nobody says anything."""
    said = Counter(one.announcement.layer_count for one in listings)
    if said:
        return max(said, key=lambda count: (said[count], -count))
    return 0 if entry is None else entry.layer_count
