"""A server's part in who holds what: it says what it means to hold, looks twice at what the others mean, and yields.

There is no coordinator. Two intents that were said within one write and one read of each other both wait two looks, and
a look is longer than a write takes to be seen: so each sees the other before either begins to load, and both know by
the same rule who goes first (``scheduling.intents``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from swarm.core.announcement import Announcement, Intent, State
from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.intents import Choice, choose_span
from swarm.scheduling.rebalance import choose_move, is_wanted
from swarm.scheduling.view import cluster_of, node_of
from swarm.server.placing_config import PlacingConfig
from swarm.server.reports.announcer import Announcer

log = logging.getLogger(__name__)

CALM_LOOKS = 2
"""Looks in a row that must bear an intent out before it is acted on."""
MOST_LOOKS = 40
"""A newcomer that was made to choose anew for so long loads what it has: better a poor place than none."""
MOST_HELD_UP = 20
"""So many looks in a row a server leaves a hole to others who are about to move, and then fills it: anybody may say
that it moves, and never do."""


class Placement:
    """Chooses and changes the span of the server that ``announcer`` announces.

    ``uniform`` gives random numbers from 0 to 1.
    """

    def __init__(self, announcer: Announcer, clock: Clock, config: PlacingConfig, uniform: Callable[[], float]) -> None:
        self._announcer = announcer
        self._clock = clock
        self._config = config
        self._uniform = uniform
        self._wanted_looks = 0
        self._held_up_looks = 0

    # -- joining --------------------------------------------------------------------------------------------

    async def join(self, remembered: Span | None = None, *, alone: bool = False) -> Choice:
        """Choose a span beside everybody else's, and announce that this server loads it.

        ``alone`` says that nobody else can know of this swarm yet. Raises ``NetworkError`` if the directory fails,
        ``ConfigError`` if no layer fits.
        """
        choice = self._choose(await self._view(), remembered)
        returns = choice.span == remembered and await self._still_ours(choice.span)
        calm = CALM_LOOKS if alone or returns else 0
        if not alone:
            await self._claim(choice.span, self._clock.wall_s())
        for _ in range(MOST_LOOKS):
            if calm >= CALM_LOOKS:
                break
            await self.pause(self._config.look_s)
            try:
                again = self._choose(await self._view(), remembered)
                calm = calm + 1 if again.span == choice.span else 0
                if calm == 0:
                    await self._claim(again.span, self._said_s)
                choice = again
            except NetworkError as error:
                log.warning("could not look at the others' intents, trying again: %s", error)
                calm = 0
        await self._announcer.publish(state=State.JOINING, start=choice.span.start, end=choice.span.end, intent=None)
        return choice

    def _choose(self, cluster: Cluster, remembered: Span | None) -> Choice:
        own, options = self._announcer.current.peer, self._config.options
        return choose_span(cluster, own, options, now_s=self._clock.wall_s(), remembered=remembered)

    async def _still_ours(self, span: Span) -> bool:
        """True if ``span`` is where an earlier process of this server is announced to be: whoever looks for a place
        counts with it there, and waits for longer than this server needs to say that it comes."""
        own = self._announcer.current
        left = await self._announcer.directory.server(ModelId.parse(own.model), own.peer)
        return left is not None and left.announcement.state is State.ONLINE and left.announcement.span == span

    async def _claim(self, span: Span, said_s: float) -> None:
        await self._announcer.publish(
            state=State.JOINING, start=span.start, end=span.end, intent=Intent(span.start, span.end, said_s)
        )

    @property
    def _said_s(self) -> float:
        """When this server's intent was first said: it keeps its turn when it has to choose anew."""
        intent = self._announcer.current.intent
        return self._clock.wall_s() if intent is None else intent.time_s

    # -- moving ---------------------------------------------------------------------------------------------

    async def look(self) -> Choice | None:
        """Look whether this server should move; where to, if it should and nobody else goes first.

        Then it is announced as draining with that intent, and must go through with it (``arrive``) or say that it does
        not (``stay``). Raises ``NetworkError`` if the directory fails; then, and when cancelled, nothing is meant any
        more.
        """
        cluster = await self._view()
        held_up = self._held_up(cluster)
        choice = self._move(cluster, self._wanted_looks, held_up)
        if choice is None:
            wanted = is_wanted(cluster, self._own, self._config.options, now_s=self._clock.wall_s())
            self._wanted_looks = self._wanted_looks + 1 if wanted else 0
            return None
        self._wanted_looks = self._held_up_looks = 0
        intent = Intent(choice.span.start, choice.span.end, self._clock.wall_s())
        try:
            await self._announcer.publish(intent=intent)
            for _ in range(CALM_LOOKS):
                await self.pause(self._config.look_s)
                again = self._move(await self._view(), self._config.options.patience, held_up)
                if again is None or again.span != choice.span:
                    await self._announcer.publish(intent=None)
                    return None
            await self._announcer.publish(state=State.DRAINING, intent=intent)
        except BaseException:
            self._announcer.amend(state=State.ONLINE, intent=None)
            raise
        return choice

    async def stay(self) -> None:
        """Call off a move that ``look`` announced."""
        await self._announcer.publish(state=State.ONLINE, intent=None)

    async def pause(self, seconds: float) -> None:
        """Sleep ``seconds`` and a random part of them more."""
        await self._clock.sleep(seconds * (1 + self._config.jitter * self._uniform()))

    def _move(self, cluster: Cluster, waited_looks: int, held_up: bool) -> Choice | None:
        options, now_s = self._config.options, self._clock.wall_s()
        return choose_move(cluster, self._own, options, now_s=now_s, waited_looks=waited_looks, held_up=held_up)

    def _held_up(self, cluster: Cluster) -> bool:
        """True once a hole that this server could fill has been left to others for too long."""
        patience = self._config.options.patience
        could = self._move(cluster, patience, True) is not None and self._move(cluster, patience, False) is None
        self._held_up_looks = self._held_up_looks + 1 if could else 0
        return self._held_up_looks > MOST_HELD_UP

    # -- seeing ---------------------------------------------------------------------------------------------

    @property
    def _own(self) -> str:
        return self._announcer.current.peer

    async def _view(self) -> Cluster:
        """The servers of this one's numerics, which alone it can share a chain with, and itself as it is now."""
        own = self._announcer.current
        listings = await self._announcer.directory.servers(ModelId.parse(own.model))
        return view_of(own, listings)


def view_of(own: Announcement, listings: Iterable[Listing]) -> Cluster:
    """What a server that announces ``own`` should plan with: servers of its numerics, itself as it says it is."""
    seen = {listing.peer: listing for listing in listings if listing.announcement.numerics == own.numerics}
    earlier = seen.pop(own.peer_id, None)
    metrics = None if earlier is None or earlier.announcement.instance != own.instance else earlier.metrics
    cluster = cluster_of(seen.values(), own.layer_count, activation_bytes=0)
    return replace(cluster, nodes=(*cluster.nodes, replace(node_of(Listing(own, b"", metrics)), live=True)))
