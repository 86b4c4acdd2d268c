"""Whom a verifier can check, whom it cannot and why, and whose turn it is: pure functions of one view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.coverage import holders, usable
from swarm.verification.standings.strikes import Policy, Standing, audit_rate

MIN_IDENTITIES = 3
"""Arbitration takes the suspect and two others."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A server that can be challenged over ``span``, the part of its layers that the replica holds too."""

    peer: PeerId
    span: Span
    holds: Span
    name: str


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A server that this verifier cannot check, and why.

    ``spot_checkable`` is False if nobody else can either: no two other servers hold its layers in its quantization.
    """

    peer: PeerId
    holds: Span
    name: str
    reason: str
    spot_checkable: bool


def sort_servers(
    listings: Sequence[Listing], replica: Span, numerics: Numerics
) -> tuple[tuple[Suspect, ...], tuple[Unchecked, ...]]:
    """All servers that sessions use, in order of peer id: those to challenge, and the others.

    ``replica`` and ``numerics`` are what the verifier holds weights of. O(servers x layers).
    """
    suspects, unchecked = [], []
    live = sorted((listing for listing in listings if usable(listing)), key=lambda listing: listing.peer)
    for listing in live:
        told, holds = listing.announcement, listing.announcement.span
        span = overlap(holds, replica)
        reason = _objection(span, told.numerics, replica, numerics)
        if reason or span is None:
            checkable = _others(listing, live) + 1 >= MIN_IDENTITIES
            unchecked.append(Unchecked(listing.peer, holds, told.public_name, reason, checkable))
        else:
            suspects.append(Suspect(listing.peer, span, holds, told.public_name))
    return tuple(suspects), tuple(unchecked)


def overlap(one: Span, other: Span) -> Span | None:
    """The layers that both have; None if there are none."""
    start, end = max(one.start, other.start), min(one.end, other.end)
    return Span(start, end) if start < end else None


def next_suspect(
    suspects: Iterable[Suspect],
    standings: Mapping[PeerId, Standing],
    waited_s: Mapping[PeerId, float],
    policy: Policy,
) -> Suspect | None:
    """Whose turn it is: the longest wait counted at the rate at which it is to be audited; None if all are ejected.

    ``waited_s`` is for how long nobody has challenged it, infinite or missing for never. So a server that failed, or is
    new, comes ``1 / q`` times as often as one that has been good for long. Ties go to the order of ``suspects``.
    """
    left = [suspect for suspect in suspects if not standings.get(suspect.peer, Standing()).ejected]

    def due(suspect: Suspect) -> float:
        rate = audit_rate(standings.get(suspect.peer, Standing()), policy)
        return rate * waited_s.get(suspect.peer, float("inf")) if rate else 0.0

    return max(left, key=due, default=None)


def _objection(span: Span | None, declared: Numerics, replica: Span, numerics: Numerics) -> str:
    if span is None:
        return f"this verifier holds layers {replica} only"
    if declared.quantization != numerics.quantization:
        return f"it declares {declared}, and this verifier's weights are {numerics}"
    return ""


def _others(listing: Listing, live: Sequence[Listing]) -> int:
    """How many other servers hold each of its layers in its quantization, where they are fewest."""
    told = listing.announcement
    spans = [
        other.announcement.span
        for other in live
        if other.peer != listing.peer and other.announcement.numerics.quantization == told.numerics.quantization
    ]
    return min(holders(spans, told.layer_count)[told.start : told.end])
