"""Notices that this machine's clock is wrong: records live for seconds, so a wrong clock makes a server invisible or a
client blind, and neither can see why.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from random import Random
from typing import NoReturn, Protocol

from swarm.core.clock import Clock

LOOK_EVERY_S = 60.0
ASKED = 5
"""Nodes that are asked for their time at each look."""
MOST_S = 5.0
"""Apart by so much, some records of live servers look expired already."""

_log = logging.getLogger(__name__)


def shared_offset_s(offsets_s: Sequence[float]) -> float:
    """The largest offset, in size, that at least half of the nodes have or exceed: a few liars do not move it far.

    ``offsets_s`` must not be empty. O(n log n).
    """
    return sorted(offsets_s, key=abs)[(len(offsets_s) - 1) // 2]


class Times(Protocol):
    """What the watch needs of a node."""

    def known(self) -> frozenset[str]:
        """The peers that this node would ask now."""
        ...

    async def offset_s(self, peer: str) -> float | None:
        """How far the clock of ``peer`` is ahead of ours, as it says itself; None without an answer. Never raises."""
        ...


class ClockWatch:
    """Warns, once, when most of the nodes asked have another time than this machine, and once more when that is over.

    It changes nothing: strangers may say any time, and must not be able to set ours.
    """

    def __init__(self, times: Times, clock: Clock, chance: Random) -> None:
        self._times = times
        self._clock = clock
        self._chance = chance
        self._told = False

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_EVERY_S)

    async def ask(self) -> list[float]:
        """How far the clocks of some nodes are ahead of this machine's, in seconds, as they say themselves."""
        known = sorted(self._times.known())
        asked = self._chance.sample(known, min(ASKED, len(known)))
        answers = await asyncio.gather(*(self._times.offset_s(peer) for peer in asked))
        return [answer for answer in answers if answer is not None and math.isfinite(answer)]

    async def look(self) -> None:
        """Ask some nodes for their time, and tell if most of them disagree with this machine."""
        offsets_s = await self.ask()
        if not offsets_s:
            return
        offset_s = shared_offset_s(offsets_s)
        wrong = abs(offset_s) > MOST_S
        if wrong and not self._told:
            way = "behind" if offset_s > 0 else "ahead of"
            how = f"{abs(offset_s):.0f} s {way} other nodes' ({len(offsets_s)} asked)"
            _log.warning("this machine's clock is %s: set it, or servers and clients will not find each other", how)
        elif self._told and not wrong:
            _log.warning("this machine's clock agrees with other nodes' again")
        self._told = wrong
