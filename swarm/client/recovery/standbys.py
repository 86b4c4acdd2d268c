"""Who would take over each stage of the sessions that run: chosen ahead, kept current, and their connections warm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from swarm.client.finding.ground import Ground
from swarm.client.plan import StagePlan
from swarm.client.recovery.outlook import Outlook, Spare
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.scheduling.routing import RouteNeeds, Stage
from swarm.transport.pulse import Hold

REFRESH_S = 5.0
"""While anybody generates, standbys are chosen anew so often: about as often as servers' metrics change."""
AT_LEAST_S = 1.0
"""And no more often than this, whatever happens: so long a reading of the directory is shared anyway."""
STALE_S = 15.0
"""Standbys chosen longer ago than this are no use: an announcement lives for a minute, a dead server's metrics for 10
seconds."""


def stages_of(plans: Sequence[StagePlan]) -> tuple[Stage, ...]:
    """A running chain as the scheduler sees it."""
    return tuple(Stage(plan.peer, plan.span) for plan in plans)


class Reserve:
    """One session's standbys, one per stage, and the beats that keep their connections warm while it runs.

    ``needs`` are those of the session's newcomers at this moment, whoever has failed it excluded.
    """

    def __init__(self, ground: Ground, needs: Callable[[], RouteNeeds]) -> None:
        self.needs = needs
        self.wake: Callable[[], None] = lambda: None
        self.chain: tuple[Stage, ...] = ()
        self.chosen_s = -STALE_S
        self._ground = ground
        self._spares: tuple[Spare | None, ...] = ()
        self._silent: set[PeerId] = set()
        self._warm = False
        self._holds: dict[PeerId, Hold] = {}

    def serve(self, chain: Sequence[StagePlan]) -> None:
        """These serve now: whoever stood by for others is of no use any more."""
        self.chain = stages_of(chain)
        self.chosen_s = -STALE_S
        self._set((None,) * len(chain))
        self.wake()

    def choose(self, spares: tuple[Spare | None, ...]) -> None:
        """Take the standbys of ``chain`` as chosen at this moment."""
        self.chosen_s = self._ground.clock.monotonic_s()
        self._silent.clear()
        self._set(spares)

    def at(self, place: int) -> Spare | None:
        """Who stands by for the stage at ``place``, as far as is known."""
        if self._ground.clock.monotonic_s() - self.chosen_s > STALE_S or place >= len(self._spares):
            return None
        spare = self._spares[place]
        return None if spare is None or spare.peers & self._silent or not self._welcome(place, spare) else spare

    def _welcome(self, place: int, spare: Spare) -> bool:
        """Whether what was learnt since ``spare`` was chosen leaves it where it would stand."""
        reputation = self._ground.reputation
        if spare.peers & reputation.ejected():
            return False
        apart, chain = reputation.apart(), [stage.peer for stage in self.chain]
        peers = [*chain[:place][-1:], *(stage.peer for stage in spare.stages), *chain[place + 1 :][:1]]
        return all(apart.allow(one, other) for one, other in pairwise(peers))

    def warm(self) -> None:
        """The session runs: keep a beat to every standby."""
        self._warm = True
        self._set(self._spares)

    def cool(self) -> None:
        """It rests. Idempotent."""
        self._warm = False
        self._set(self._spares)

    def _set(self, spares: tuple[Spare | None, ...]) -> None:
        self._spares = spares
        wanted = {stage.peer: stage for spare in spares if spare is not None for stage in spare.stages}
        if not self._warm:
            wanted = {}
        for peer in set(self._holds) - set(wanted):
            self._ground.pulse.release(self._holds.pop(peer))
        for peer in set(wanted) - set(self._holds):
            addresses = wanted[peer].announcement.addresses

            def silent(_: str, peer: PeerId = peer) -> None:
                self._fell_silent(peer)

            self._holds[peer] = self._ground.pulse.hold(peer, addresses, silent)

    def _fell_silent(self, peer: PeerId) -> None:
        self._silent.add(peer)
        if peer in self._holds:
            self._ground.pulse.release(self._holds.pop(peer))  # a new hold hears of its next silence
        self._ground.avoided.note(peer, self._ground.clock.monotonic_s())
        self.wake()


class StandbyKeeper:
    """Keeps the standbys of all of a client's running sessions current: one view and one table for all, in a thread."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._watched: set[Reserve] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._salt = ground.salt

    def watch(self, reserve: Reserve) -> None:
        """A session runs from now on, until ``unwatch``."""
        reserve.wake = self._wake.set
        reserve.warm()
        self._watched.add(reserve)
        if self._ground.clock.monotonic_s() - reserve.chosen_s > REFRESH_S:
            self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name="standbys")

    def unwatch(self, reserve: Reserve) -> None:
        """It rests, or has ended. Idempotent."""
        self._watched.discard(reserve)
        reserve.cool()
        if not self._watched and self._task is not None:
            self._task.cancel()
            self._task = None

    async def outlook(self, *, fresh: bool = False) -> Outlook:
        """The swarm as last read, or read anew if that was long ago or ``fresh`` asks for it.

        Raises ``NetworkError`` if it has to be read and the directory does not answer.
        """
        view, now_s = self._ground.view, self._ground.clock.monotonic_s()
        if not fresh and view.read_s is not None and now_s - view.read_s <= STALE_S:
            return Outlook(view.now())
        return Outlook(await view.look(fresh=fresh))

    async def close(self) -> None:
        """End what runs in the background. Idempotent."""
        for reserve in tuple(self._watched):
            self.unwatch(reserve)
        await asyncio.gather(*([self._task] if self._task is not None else []), return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_S):
                    await self._wake.wait()
            self._wake.clear()
            with suppress(NetworkError):  # the directory does not answer: those chosen last stand until they are stale
                await self._refresh()
            await asyncio.sleep(AT_LEAST_S)

    async def _refresh(self) -> None:
        outlook = Outlook(await self._ground.view.look())
        avoided = self._ground.avoided.at(self._ground.clock.monotonic_s())
        asked: dict[Reserve, tuple[tuple[Stage, ...], RouteNeeds]] = {}
        for reserve in self._watched:
            needs = reserve.needs()
            asked[reserve] = reserve.chain, replace(needs, excluded=needs.excluded | avoided)
        found = await asyncio.to_thread(self._choose, outlook, set(asked.values()))
        for reserve, question in asked.items():
            if reserve in self._watched and reserve.chain == question[0]:
                reserve.choose(found[question])

    def _choose(
        self, outlook: Outlook, questions: set[tuple[tuple[Stage, ...], RouteNeeds]]
    ) -> dict[tuple[tuple[Stage, ...], RouteNeeds], tuple[Spare | None, ...]]:
        """Runs in a thread. Sessions over one chain share an answer."""
        return {(chain, needs): outlook.spares(chain, needs, self._salt) for chain, needs in questions}
