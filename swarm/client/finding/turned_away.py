"""What servers said when they turned this client away: until when they are busy, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.core.errors import BusyError
from swarm.core.ids import PeerId

REFUSED_S = 30.0
"""What a server refused it is not asked again for so long: reasons last, but an announcement may change."""


@dataclass(frozen=True, slots=True)
class Told:
    """BUSY, and when to come back, the jitter included."""

    error: BusyError
    until_s: float


class TurnedAway:
    """All sessions of a client share it. It has no clock: the caller says what time it is."""

    def __init__(self) -> None:
        self._busy: dict[PeerId, Told] = {}
        self._refused: dict[PeerId, tuple[int, float]] = {}  # KV tokens asked for, and until when

    def note_busy(self, peer: PeerId, told: Told) -> None:
        """``peer`` said BUSY; of several times to come back the first counts."""
        known = self._busy.get(peer)
        if known is None or known.until_s > told.until_s:
            self._busy[peer] = told

    def note_refused(self, peer: PeerId, kv_tokens: int, now_s: float) -> None:
        """``peer`` refused a session of ``kv_tokens``: it would refuse a larger one too."""
        known = self._refused.get(peer)
        least = kv_tokens if known is None or known[1] <= now_s else min(kv_tokens, known[0])
        self._refused[peer] = least, now_s + REFUSED_S

    def forget(self, peers: Iterable[PeerId]) -> None:
        """They have accepted a session."""
        for peer in peers:
            self._busy.pop(peer, None)

    def busy(self, now_s: float) -> dict[PeerId, Told]:
        """Whom not to ask yet."""
        self._busy = {peer: told for peer, told in self._busy.items() if told.until_s > now_s}
        return dict(self._busy)

    def refusing(self, kv_tokens: int, now_s: float) -> frozenset[PeerId]:
        """Who would refuse a session of ``kv_tokens``."""
        self._refused = {peer: refused for peer, refused in self._refused.items() if refused[1] > now_s}
        return frozenset(peer for peer, (least, _) in self._refused.items() if kv_tokens >= least)
