"""From the directory's view to an open chain: route, open, and when a server says no, route again without it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from swarm.client.chain import Chain, ChainPlan, StagePlan
from swarm.client.results import Progress, ProgressCallback
from swarm.core.announcement import Announcement
from swarm.core.clock import Clock
from swarm.core.errors import (
    BusyError,
    ChainOpenError,
    NoRouteError,
    PeerUnreachableError,
    PromptTooLongError,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.dht.protocol import Directory
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.routing import Route, RouteNeeds, find_route
from swarm.scheduling.view import node_of
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.wire.messages import Codec

AVOID_S = 60.0
"""For so long a server that could not be reached is tried only where no other will do: an announcement outlives its
server by a minute, and to dial a dead machine takes seconds."""
BUSY_JITTER = (0.5, 1.5)
"""Clients wait a random factor of the asked time, so that they do not come back all at once."""


@dataclass(frozen=True, slots=True)
class OpenerOptions:
    """How a client chooses and waits. Times in seconds."""

    remote_head: bool
    codec: Codec = "raw"
    mixed_numerics: bool = False
    busy_timeout_s: float = 60.0
    """How long to wait for room when every chain is full."""
    open_timeout_s: float = 120.0
    """How long to go from one failing server to the next; anybody may announce any number of servers."""


@dataclass(frozen=True, slots=True)
class OpenChain:
    """A chain and how it was chosen."""

    chain: Chain
    route: Route

    @property
    def exact(self) -> bool:
        return self.route.exact and self.chain.plan.codec == "raw"


class ChainOpener:
    """Finds and opens chains for one model."""

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        clock: Clock,
        model: ModelId,
        layer_count: int,
        options: OpenerOptions,
    ) -> None:
        self._directory = directory
        self._transport = transport
        self._clock = clock
        self._model = model
        self._layer_count = layer_count
        self._options = options
        self._random = random.Random()
        self._avoid_until_s: dict[PeerId, float] = {}
        self._pulse = PulseKeeper(transport, clock)

    async def close(self) -> None:
        """End the beats to servers. Idempotent."""
        await self._pulse.close()

    async def open(self, kv_tokens: int, report: ProgressCallback) -> OpenChain:
        """An open chain with room for ``kv_tokens``.

        A server that refuses or cannot be reached is left out and the rest routed again. A busy one is left out too,
        but when nothing else is left the client waits as long as it was asked to, up to ``busy_timeout_s``. Raises
        ``NoRouteError`` that names the missing layers, the last server's own error if that says more, or
        ``PeerUnreachableError`` after ``open_timeout_s`` of failures.
        """
        gone: dict[PeerId, SwarmError] = {}
        busy: dict[PeerId, BusyError] = {}
        began_s = self._clock.monotonic_s()
        deadline_s = began_s + self._options.busy_timeout_s
        avoided = self._avoided(began_s)
        while True:
            report(Progress("routing"))
            records = {announcement.peer_id: (announcement, record) for announcement, record in await self._servers()}
            try:
                route = self._route(records, kv_tokens, frozenset(gone) | frozenset(busy) | avoided)
            except NoRouteError as error:
                if avoided:
                    avoided = frozenset()
                    continue
                if not busy:
                    raise self._explain(error, records, kv_tokens, gone) from error
                await self._wait(busy, deadline_s, report)
                busy.clear()
                continue
            report(Progress("opening", detail=", ".join(f"{s.peer[-8:]}[{s.span}]" for s in route.stages)))
            plan = self._plan(route, records, kv_tokens)
            try:
                return OpenChain(await Chain.open(plan, self._transport, self._pulse), route)
            except ChainOpenError as error:
                self._note(error, gone, busy)
                if gone and self._clock.monotonic_s() - began_s > self._options.open_timeout_s:
                    raise PeerUnreachableError(
                        f"{len(gone)} servers failed in {self._options.open_timeout_s:g} s; last: {error.message}",
                        hint="try again, or ask through other initial peers",
                    ) from error

    def _note(self, error: ChainOpenError, gone: dict[PeerId, SwarmError], busy: dict[PeerId, BusyError]) -> None:
        """Sort the servers that did not accept, and remember those that were not there."""
        for name, failure in error.failures.items():
            peer = PeerId(name)
            if isinstance(failure, BusyError):
                busy[peer] = failure
                continue
            gone[peer] = failure
            if not isinstance(failure, RefusedError):
                self._avoid_until_s[peer] = self._clock.monotonic_s() + AVOID_S

    def _avoided(self, now_s: float) -> frozenset[PeerId]:
        """Servers that failed a short while ago."""
        self._avoid_until_s = {peer: until_s for peer, until_s in self._avoid_until_s.items() if until_s > now_s}
        return frozenset(self._avoid_until_s)

    async def _servers(self) -> list[tuple[Announcement, bytes]]:
        found = await self._directory.servers(self._model)
        return [(listing.announcement, listing.record) for listing in found]

    def _route(
        self, records: dict[PeerId, tuple[Announcement, bytes]], kv_tokens: int, excluded: frozenset[PeerId]
    ) -> Route:
        needs = RouteNeeds(
            kv_tokens=kv_tokens,
            head="remote" if self._options.remote_head else "local",
            numerics="any" if self._options.mixed_numerics else "same",
            excluded=excluded,
        )
        nodes = tuple(
            replace(node_of(Listing(announcement, record)), live=True)
            for announcement, record in records.values()
            if announcement.layer_count == self._layer_count
        )
        cluster = Cluster(layers=self._layer_count, nodes=nodes)
        return find_route(cluster, needs=needs, salt=self._random.getrandbits(64))

    def _plan(self, route: Route, records: dict[PeerId, tuple[Announcement, bytes]], kv_tokens: int) -> ChainPlan:
        classes: set[Numerics] = {records[stage.peer][0].numerics for stage in route.stages}
        return ChainPlan(
            model=self._model,
            stages=[StagePlan(*records[stage.peer], stage.span) for stage in route.stages],
            kv_tokens=kv_tokens,
            embed=self._options.remote_head,
            head=self._options.remote_head,
            codec=self._options.codec,
            numerics=str(classes.pop()) if len(classes) == 1 else "",
        )

    async def _wait(self, busy: dict[PeerId, BusyError], deadline_s: float, report: ProgressCallback) -> None:
        asked_s = min(error.retry_after_s for error in busy.values())
        wait_s = max(asked_s, 0.05) * self._random.uniform(*BUSY_JITTER)
        if self._clock.monotonic_s() + wait_s > deadline_s:
            worst = next(iter(busy.values()))
            raise BusyError(
                f"the swarm stayed busy for {self._options.busy_timeout_s:g} s; last: {worst.message}",
                retry_after_s=asked_s,
                hint="try again later, or add a server",
            )
        report(Progress("waiting", detail=next(iter(busy.values())).message))
        await self._clock.sleep(wait_s)

    def _explain(
        self,
        error: NoRouteError,
        records: dict[PeerId, tuple[Announcement, bytes]],
        kv_tokens: int,
        gone: dict[PeerId, SwarmError],
    ) -> SwarmError:
        """The route's reason, unless servers that were tried and failed say more."""
        if not gone and not self._possible(records):
            return error
        if not gone:
            return PromptTooLongError(
                f"prompt and answer may take {kv_tokens} tokens, and no chain of servers has KV room for so many",
                hint="shorten the prompt, lower max_new_tokens or the session's max_tokens, or add a larger server",
            )
        tried = "; ".join(failure.message for failure in gone.values())
        if all(isinstance(failure, RefusedError) for failure in gone.values()):
            return RefusedError(tried, hint=next(iter(gone.values())).hint)
        return PeerUnreachableError(f"{error.message}: {tried}", hint=error.hint)

    def _possible(self, records: dict[PeerId, tuple[Announcement, bytes]]) -> bool:
        """True if a session of one token could be served."""
        try:
            self._route(records, 1, frozenset())
        except NoRouteError:
            return False
        return True


def check_room(prompt_tokens: int, max_new_tokens: int, room: int, *, whose: str) -> None:
    """Raise ``PromptTooLongError`` with the figures if prompt and answer do not fit the ``room`` tokens there are."""
    if prompt_tokens + max_new_tokens > room:
        raise PromptTooLongError(
            f"{prompt_tokens} prompt tokens and {max_new_tokens} new ones do not fit the {whose} of {room}",
            hint="shorten the prompt or lower max_new_tokens",
        )
