"""Who has failed one session, and when such a server may be asked again. Pure: no clock, no stream."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swarm.client.chains.diagnosis import FAULTS, LossKind
from swarm.core.errors import BusyError
from swarm.core.ids import PeerId
from swarm.core.listing import Listing


class Mercy(enum.IntEnum):
    """How far a search goes: each step asks servers that the ones before leave out."""

    NONE = 0
    """Only who has failed neither this session nor, lately, this client."""
    AVOIDED = 1
    """Also who failed the client in another session."""
    BLAMELESS = 2
    """Also who left this session through no fault: slow, draining, at the end of a cut link."""
    RETURNED = 3
    """Also who was cut off, or stood beside such, and has published metrics since; who failed and was started again."""


CUT_OFF = frozenset[LossKind]({"gone", "silent", "beside"})
"""Losses that an outage of the network looks like, one's own or a neighbour's that comes and goes: whoever comes back
from one is as good as before."""


@dataclass(slots=True)
class _Casualty:
    kind: LossKind
    blameless: bool
    mark: tuple[int, int] | None = None
    """Instance and sequence of its metrics as first read after it failed."""
    returned: bool = False


@dataclass(frozen=True, slots=True)
class _Busy:
    error: BusyError
    until_s: float


@dataclass(slots=True)
class Casualties:
    """The servers that one session has lost, or that would not join it."""

    _busy: dict[PeerId, _Busy] = field(default_factory=dict)
    _known: dict[PeerId, _Casualty] = field(default_factory=dict)

    def note(self, peer: PeerId, kind: LossKind) -> None:
        """``peer`` serves no more. Whoever only found the session ``idle`` is welcome again at once."""
        if kind != "idle":
            before = self._known.get(peer)
            blameless = kind not in FAULTS and (before is None or before.blameless)
            self._known[peer] = _Casualty(kind, blameless)

    def note_busy(self, peer: PeerId, error: BusyError, until_s: float) -> None:
        """It has no room, and is not asked again before ``until_s``."""
        self._busy[peer] = _Busy(error, until_s)

    def busy(self, now_s: float) -> tuple[float, str]:
        """When the first of those that are full may be asked again (infinite if none is), and what one of them said."""
        waiting = [busy for busy in self._busy.values() if busy.until_s > now_s]
        if not waiting:
            return math.inf, ""
        return min(busy.until_s for busy in waiting), waiting[-1].error.message

    def knows(self, peer: PeerId) -> bool:
        return peer in self._known

    def looked(self, listings: Iterable[Listing]) -> None:
        """Take a view whose reading began after the last ``note``: who publishes still, or again?"""
        marks: Mapping[PeerId, tuple[int, int]] = {
            listing.peer: (listing.metrics.instance, listing.metrics.sequence)
            for listing in listings
            if listing.metrics is not None
        }
        for peer, casualty in self._known.items():
            mark = marks.get(peer, (0, 0))
            if casualty.mark is None:
                casualty.mark = mark
            again = mark != casualty.mark if casualty.kind in CUT_OFF else mark[0] != casualty.mark[0]
            casualty.returned = peer in marks and again

    def excluded(self, mercy: Mercy, avoided: frozenset[PeerId], now_s: float) -> frozenset[PeerId]:
        """Whom not to ask now. ``avoided`` are those that failed this client lately."""
        out = frozenset(peer for peer, busy in self._busy.items() if busy.until_s > now_s) | frozenset(
            peer
            for peer, casualty in self._known.items()
            if not (mercy >= Mercy.BLAMELESS and casualty.blameless)
            and not (mercy >= Mercy.RETURNED and casualty.returned)
        )
        return out | avoided if mercy < Mercy.AVOIDED else out
