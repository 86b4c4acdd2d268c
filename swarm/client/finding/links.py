"""Links between servers that did not come about when this client opened chains: it goes other ways for a while.

A server dials its neighbour by every way there is, relays and dial-back among them, before it says that it does not
reach it. That may be its word alone, so neither end is at fault, and both are welcome beside others.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from swarm.core.ids import PeerId
from swarm.verification.standings.apart import UNREACHED, Apart, Kept, pair_of


class Links:
    """Remembers what failed, as long as the client lives. It has no clock: the caller says what time it is."""

    def __init__(self) -> None:
        self._apart = Apart()

    def note(self, one: PeerId, other: PeerId, now_s: float) -> None:
        """One of the two did not reach the other."""
        self._apart = self._apart.and_also(one, other, now_s, UNREACHED)

    def hold(self, chain: Iterable[PeerId]) -> None:
        """This chain is open: its links hold, whatever was the matter with them."""
        peers = list(chain)
        held = {pair_of(one, other) for one, other in pairwise(peers) if one != other}
        if any(known.pair in held for known in self._apart.pairs):
            self._apart = Apart(tuple(known for known in self._apart.pairs if known.pair not in held))

    def at(self, now_s: float) -> Kept:
        """Whom not to put side by side now."""
        return self._apart.at(now_s, UNREACHED)
