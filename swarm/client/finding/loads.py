"""What a client knows of servers' loads beyond the directory's view: their own word at OPEN, and its own sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec.structs import replace as changed

from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.wire.messages import Accept

TOLD_S = 5.0
"""So long a server's word at OPEN overrides its metrics at most; newer metrics end it before."""

Load = TypeVar("Load", Accept, Metrics)


@dataclass(frozen=True, slots=True)
class Told:
    """A server's load as it told with ACCEPT, at ``at_s`` of the client's clock.

    ``instance`` and ``sequence`` are those of its metrics in the view that the client had then.
    """

    load: Accept
    at_s: float
    instance: int
    sequence: int

    def holds(self, metrics: Metrics, now_s: float) -> bool:
        """True while ``metrics`` are no newer than this, and this is not old itself."""
        newer = metrics.instance != self.instance or metrics.sequence > self.sequence
        return not newer and now_s - self.at_s <= TOLD_S


@dataclass(slots=True)
class Loads:
    """One client's notes on the servers of one model. It has no clock: the caller says what time it is.

    ``opening`` counts OPENs under way, which no server has answered yet, ``reserving`` the KV tokens they ask for.
    """

    told: dict[PeerId, Told] = field(default_factory=dict)
    opening: Counter[PeerId] = field(default_factory=Counter)
    reserving: Counter[PeerId] = field(default_factory=Counter)

    def begin(self, peers: Iterable[PeerId], kv_tokens: int) -> None:
        """OPENs are on their way: whatever is routed from now on counts them. A peer of two stages is named twice."""
        for peer in peers:
            self.opening[peer] += 1
            self.reserving[peer] += kv_tokens

    def end(self, peers: Iterable[PeerId], kv_tokens: int) -> None:
        """Those OPENs have been answered, or given up."""
        for peer in peers:
            self.opening[peer] -= 1
            self.reserving[peer] -= kv_tokens
            if not self.opening[peer]:
                del self.opening[peer], self.reserving[peer]

    def accept(self, loads: Mapping[PeerId, Accept], seen: Iterable[Listing], now_s: float) -> None:
        """Note what the servers of an opened chain said; ``seen`` is the view it was routed on."""
        self.told = {peer: told for peer, told in self.told.items() if now_s - told.at_s <= TOLD_S}
        for listing in seen:
            load, metrics = loads.get(listing.peer), listing.metrics
            if load is not None and metrics is not None:
                self.told[listing.peer] = Told(load, now_s, metrics.instance, metrics.sequence)

    def close(self, peers: Iterable[PeerId], kv_tokens: int, opened_s: float) -> None:
        """A session of ours, open since ``opened_s``, is over: what was told since then counted it."""
        for peer in peers:
            told = self.told.get(peer)
            if told is not None and told.at_s >= opened_s:
                self.told[peer] = replace(told, load=_shifted(told.load, -1, kv_tokens))

    def over(self, listings: Iterable[Listing], now_s: float) -> tuple[Listing, ...]:
        """The directory's view, with each server's metrics as this client knows them better."""
        return tuple(self._present(listing, now_s) for listing in listings)

    def _present(self, listing: Listing, now_s: float) -> Listing:
        metrics, peer = listing.metrics, listing.peer
        told = self.told.get(peer)
        if metrics is not None and told is not None and told.holds(metrics, now_s):
            metrics = _as_told(metrics, told.load)
        if metrics is not None and peer in self.opening:
            metrics = _shifted(metrics, self.opening[peer], -self.reserving[peer])
        return listing if metrics is listing.metrics else replace(listing, metrics=metrics)


def without_own(listings: Iterable[Listing], peers: Iterable[PeerId], kv_tokens: int) -> tuple[Listing, ...]:
    """The view as if a session over ``peers`` had not been opened: to route that session again.

    A peer that serves two of its stages is named twice.
    """
    own = Counter(peers)
    return tuple(
        replace(listing, metrics=_shifted(listing.metrics, -own[listing.peer], own[listing.peer] * kv_tokens))
        if listing.metrics is not None and listing.peer in own
        else listing
        for listing in listings
    )


def with_all_room(listings: Iterable[Listing]) -> tuple[Listing, ...]:
    """The view with every live server's whole KV budget free: what waiting could bring at best."""
    return tuple(
        listing
        if listing.metrics is None
        else replace(listing, metrics=changed(listing.metrics, kv_free_tokens=listing.announcement.kv_tokens))
        for listing in listings
    )


def _as_told(metrics: Metrics, load: Accept) -> Metrics:
    return changed(
        metrics,
        sessions=load.sessions,
        queued_steps=load.queued_steps,
        kv_free_tokens=load.kv_free_tokens,
        tau_s=metrics.tau_s if load.tau_s is None else load.tau_s,
        fixed_s=metrics.fixed_s if load.fixed_s is None else load.fixed_s,
    )


def _shifted(load: Load, sessions: int, kv_tokens: int) -> Load:
    """``load`` with so many more sessions and free KV tokens, none below 0."""
    return changed(
        load, sessions=max(load.sessions + sessions, 0), kv_free_tokens=max(load.kv_free_tokens + kv_tokens, 0)
    )
