"""Which chain a client takes, and whether to change its mind: pure functions of one moment's view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swarm.client.plan import StagePlan
from swarm.core.errors import NoRouteError
from swarm.core.listing import Listing
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.routing import Route, RouteNeeds, Stage, find_route, price
from swarm.scheduling.view import cluster_of
from swarm.verification.standings.apart import NOBODY_APART, Kept
from swarm.wire.fields import Codec
from swarm.wire.tensors import tensor_bytes

IDS_FRAME_BYTES = 64
"""A step of one token id into the chain, or its result with a remote head: a frame with hardly anything in it."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides how many bytes travel between two servers."""

    layers: int
    hidden_size: int
    codec: Codec = "raw"


@dataclass(frozen=True, slots=True)
class View:
    """What a client knows of the swarm at one moment. ``client_rtt_s`` is its own round trip to servers, by peer id.

    ``apart`` are pairs that may not be neighbours in a chain, as long as there is another. ``ejected`` servers were
    left out of ``listings``.
    """

    shape: ModelShape
    listings: Sequence[Listing]
    client_rtt_s: Mapping[str, float]
    apart: Kept = NOBODY_APART
    ejected: int = 0

    @property
    def last_resort(self) -> View | None:
        """Where only the pairs that are shut are kept apart; None if these are all."""
        left = self.apart.shut
        return replace(self, apart=replace(self.apart, pairs=left)) if left < self.apart.pairs else None

    def best(self, needs: RouteNeeds, salt: int = 0) -> Route:
        """The fastest chain for ``needs``; raises ``NoRouteError`` with the reason if there is none.

        Chains of one numerics class are compared at the bytes that their own dtype sends, mixed ones at the widest's.
        """
        routes = []
        for cluster in self._clusters(mixed=needs.numerics == "any"):
            try:
                routes.append(find_route(cluster, needs=needs, salt=salt))
            except NoRouteError:
                continue
        if not routes:
            return find_route(self._cluster(self.listings), needs=needs, salt=salt)  # raises, over all servers
        return min(routes, key=lambda route: route.latency_s)

    def price(self, stages: Sequence[Stage], needs: RouteNeeds) -> float:
        """Predicted seconds of one decode step over a chain whose servers are all in this view."""
        peers = {stage.peer for stage in stages}
        widest = self._cluster([listing for listing in self.listings if listing.peer in peers])
        return price(widest, stages, needs)

    def better(self, route: Route, needs: RouteNeeds, *, gain: float, salt: int = 0) -> Route | None:
        """The chain to change to from ``route``, chosen on an earlier view; None to keep it.

        Changed is only a chain that takes longer now than it was chosen for, by more than ``gain``, and only to one
        that is faster by more than that: ``gain`` 0.2 asks that a step over ``route`` takes over 1.2 times as long.
        """
        now_s = self.price(route.stages, needs)
        if now_s <= (1.0 + gain) * route.latency_s:
            return None
        try:
            best = self.best(needs, salt)
        except NoRouteError:
            return None
        return best if now_s > (1.0 + gain) * best.latency_s else None

    def plans(self, stages: Sequence[Stage]) -> tuple[StagePlan, ...]:
        """The stages with their servers' announcements, those left out whose servers are not in this view."""
        listings = {listing.peer: listing for listing in self.listings}
        found = [(listings[stage.peer], stage.span) for stage in stages if stage.peer in listings]
        return tuple(StagePlan(listing.announcement, listing.record, span) for listing, span in found)

    def cluster(self, dtype: str | None) -> Cluster:
        """Everybody; rows travel as those of ``dtype``, None: as the widest there are."""
        if dtype is None:
            return self._cluster(self.listings)
        return self._cluster(self.listings, tensor_bytes(self.shape.codec, dtype, 1, self.shape.hidden_size))

    def _clusters(self, *, mixed: bool) -> Iterator[Cluster]:
        """One cluster per width of rows on the wire, or one of all if chains may mix them."""
        widths = sorted({self._row_bytes(listing) for listing in self.listings})
        if mixed or len(widths) < 2:
            yield self._cluster(self.listings)
            return
        for width in widths:
            yield self._cluster([listing for listing in self.listings if self._row_bytes(listing) == width])

    def _cluster(self, listings: Sequence[Listing], row_bytes: int | None = None) -> Cluster:
        if row_bytes is None:
            row_bytes = max(map(self._row_bytes, listings), default=0)
        return cluster_of(
            listings,
            self.shape.layers,
            activation_bytes=row_bytes,
            client_rtt_s=self.client_rtt_s,
            apart=self.apart.pairs,
        )

    def _row_bytes(self, listing: Listing) -> int:
        return tensor_bytes(self.shape.codec, listing.announcement.numerics.dtype, 1, self.shape.hidden_size)


def priced(needs: RouteNeeds) -> RouteNeeds:
    """``needs`` with what one step carries in and out: ids with a remote head, rows with a local one."""
    if needs.head == "local":
        return needs
    return replace(needs, entry_bytes=IDS_FRAME_BYTES, exit_bytes=IDS_FRAME_BYTES)
