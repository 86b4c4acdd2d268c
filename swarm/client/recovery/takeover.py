"""Who takes over what a chain has lost: one choice after the other, as views and mercy allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from swarm.client.chains.chain import Chain, Patch
from swarm.client.finding.ground import Ground
from swarm.client.recovery.casualties import Casualties, Mercy
from swarm.client.recovery.outlook import Outlook
from swarm.client.recovery.standbys import Reserve, StandbyKeeper, stages_of
from swarm.client.recovery.targets import Damage, Find, finder, patches_for, wide_patches
from swarm.core.errors import NetworkError, NoRouteError
from swarm.scheduling.routing import RouteNeeds

FRESH_S = 0.5
"""How long a heal waits for the directory while somebody who failed before could be asked."""


class Takeover:
    """Chooses newcomers for one chain, and knows who has failed it. ``needs`` are tried in order."""

    def __init__(
        self, chain: Chain, ground: Ground, keeper: StandbyKeeper, reserve: Reserve, needs: Sequence[RouteNeeds]
    ) -> None:
        self.casualties = Casualties()
        self._chain = chain
        self._ground = ground
        self._keeper = keeper
        self._reserve = reserve
        self._needs = needs
        self._counted: set[int] = set()

    def mended(self) -> None:
        """The chain is whole again: places are lost anew."""
        self._counted.clear()

    async def choose(self) -> tuple[Outlook, list[Patch]]:
        """Who takes over: on the last view, on a fresh one, then with ever more mercy for those who failed before.

        A fresh view that comes late, since nodes of the directory itself may be lost, is waited for only where there is
        no mercy left on the last one. Raises ``NoRouteError`` if nobody can.
        """
        last = None
        with suppress(NetworkError):
            last = await self._keeper.outlook()
            damage = self.damage()
            with suppress(NoRouteError):
                return last, patches_for(damage, self._find(last, damage, Mercy.NONE))
        limit_s = None if last is None else FRESH_S
        while True:
            fresh = await self._look_again(limit_s)
            outlook = fresh or last
            if outlook is None:
                raise NoRouteError("the directory does not answer")
            damage = self.damage()
            for mercy in Mercy:
                with suppress(NoRouteError):
                    return outlook, patches_for(damage, self._find(outlook, damage, mercy))
            if fresh is not None or limit_s is None:
                return self._last_ways(outlook, damage)
            limit_s = None

    def _last_ways(self, outlook: Outlook, damage: Damage) -> tuple[Outlook, list[Patch]]:
        """Over more places than are lost, then over links that broke before."""
        try:
            return outlook, wide_patches(damage, self._find(outlook, damage, Mercy.RETURNED))
        except NoRouteError:
            if (view := outlook.view.last_resort) is None:
                raise
        outlook = Outlook(view)
        return outlook, patches_for(damage, self._find(outlook, damage, Mercy.RETURNED))

    async def _look_again(self, limit_s: float | None) -> Outlook | None:
        """A fresh view; None if the directory does not answer, or not within ``limit_s``."""
        with suppress(NetworkError, TimeoutError):
            async with asyncio.timeout(limit_s):
                fresh = await self._keeper.outlook(fresh=True)
            self.casualties.looked(fresh.view.listings)
            return fresh
        return None

    def damage(self) -> Damage:
        """What is broken at this moment; who is lost is asked again only when nobody else is left."""
        chain = self._chain
        damage = Damage(chain.stages, dict(chain.lost), chain.cuts)
        for place in damage.lost.keys() - self._counted:
            self.casualties.note(chain.stages[place].peer, damage.lost[place].kind)
        self._counted |= damage.lost.keys()
        return damage

    def _find(self, outlook: Outlook, damage: Damage, mercy: Mercy) -> Find:
        now_s = self._ground.clock.monotonic_s()
        excluded = self.casualties.excluded(mercy, self._ground.avoided.at(now_s), now_s)
        needs = [replace(needs, excluded=excluded) for needs in self._needs]
        return finder(outlook, stages_of(damage.stages), needs, self._reserve.at)
