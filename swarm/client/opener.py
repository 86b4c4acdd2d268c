"""From the view of the swarm to an open chain: route, open, and when a server says no, route again without it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from swarm.client.avoided import Avoided
from swarm.client.chain import Chain, ChainPlan
from swarm.client.choice import ModelShape, View, priced
from swarm.client.distances import Distances
from swarm.client.ground import Ground
from swarm.client.loads import with_all_room, without_own
from swarm.client.results import Progress, ProgressCallback
from swarm.client.view import SwarmView
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
from swarm.dht.protocol import Directory
from swarm.scheduling.routing import Route, RouteNeeds
from swarm.transport.pinger import Pinger
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.wire.messages import Codec

BUSY_JITTER = (0.5, 1.5)
"""Clients wait a random factor of the asked time, so that they do not come back all at once."""
MAX_REROUTES = 2
REROUTE_TIMEOUT_S = 5.0
"""A better chain that has not opened by then is not better; a server waits twice as long for a session's first step."""


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
    reroute_gain: float = 0.2
    """By how much another chain must be faster, once servers have told their load, to give up the one just opened."""


@dataclass(frozen=True, slots=True)
class OpenChain:
    """A chain, how it was chosen, and what was asked of it. ``ended`` is told when it is closed."""

    chain: Chain
    route: Route
    needs: RouteNeeds
    ended: Callable[[], None]
    noted: set[PeerId] = field(default_factory=set)
    """Who broke it and is avoided for that already."""

    async def close(self) -> None:
        """End the session at every server; see ``Chain.close``."""
        self.ended()
        await self.chain.close()


@dataclass(slots=True)
class _Search:
    """One session's way to an open chain: what it needs, and which servers have said no so far."""

    needs: RouteNeeds
    began_s: float
    avoided: frozenset[PeerId]
    gone: dict[PeerId, SwarmError] = field(default_factory=dict)
    busy: dict[PeerId, BusyError] = field(default_factory=dict)
    looked_again: bool = False

    @property
    def kv_tokens(self) -> int:
        return self.needs.kv_tokens

    def route(self, view: View, salt: int) -> Route:
        """The best chain without those servers.

        Where the room that is free at this moment does not do, servers with room enough when they are empty are asked
        all the same: they know best, and say how long to wait. Raises ``NoRouteError`` if that does not do either.
        """
        needs = replace(self.needs, excluded=frozenset(self.gone) | frozenset(self.busy) | self.avoided)
        try:
            return view.best(needs, salt)
        except NoRouteError:
            return replace(view, listings=with_all_room(view.listings)).best(needs, salt)

    def better(self, view: View, route: Route, gain: float, salt: int) -> Route | None:
        """The chain to take instead of the opened ``route``, as its servers told their load; None to keep it."""
        excluded = (frozenset(self.gone) | frozenset(self.busy) | self.avoided) - set(route.peers)
        before = replace(view, listings=without_own(view.listings, route.peers, self.kv_tokens))
        return before.better(route, replace(self.needs, excluded=excluded), gain=gain, salt=salt)


class ChainOpener:
    """Finds and opens chains for one model."""

    def __init__(
        self,
        directory: Directory,
        transport: Transport,
        clock: Clock,
        model: ModelId,
        shape: ModelShape,
        options: OpenerOptions,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._model = model
        self._options = options
        self._random = random.Random()
        self._avoided = Avoided()
        self._pulse = PulseKeeper(transport, clock)
        distances = Distances(Pinger(transport, clock).rtt_s, clock, salt=self._random.getrandbits(64))
        self._view = SwarmView(directory, clock, model, shape, distances)
        self.ground = Ground(transport, clock, self._view, self._avoided, self._pulse, self._random)

    async def close(self) -> None:
        """End the beats to servers and whatever else runs in the background. Idempotent."""
        await self._view.close()
        await self._pulse.close()

    async def open(self, kv_tokens: int, report: ProgressCallback) -> OpenChain:
        """An open chain with room for ``kv_tokens``.

        A server that refuses or cannot be reached is left out and the rest routed again. A busy one is left out too,
        but when nothing else is left the client waits as long as it was asked to, up to ``busy_timeout_s``. A chain
        whose servers turn out slower than the view had it gives way to a better one, ``MAX_REROUTES`` times at most.
        Raises ``NoRouteError`` that names the missing layers, the last server's own error if that says more, or
        ``PeerUnreachableError`` after ``open_timeout_s`` of failures.
        """
        began_s = self._clock.monotonic_s()
        search = _Search(self._needs(kv_tokens), began_s, self._avoided.at(began_s))
        while True:
            report(Progress("routing"))
            view = await self._view.look()
            try:
                route = search.route(view, self._random.getrandbits(64))
            except NoRouteError as error:
                await self._stuck(error, search, view, report)
                continue
            try:
                opened = await self._try(route, view, search, report)
            except ChainOpenError as error:
                self._give_up_late(error, search)
                continue
            return await self._improve(opened, view, search, report)

    async def _stuck(self, error: NoRouteError, search: _Search, view: View, report: ProgressCallback) -> None:
        """No chain: do what may bring one about, or raise why there is none."""
        listed = {listing.peer for listing in view.listings}
        search.busy = {peer: failure for peer, failure in search.busy.items() if peer in listed}
        if not search.looked_again:
            search.looked_again = True
            await self._view.look(fresh=True)  # the view may be older than what the caller knows
        elif search.avoided:
            search.avoided = frozenset()
        elif search.busy:
            await self._wait(search, report)
        else:
            raise _explain(error, search, view) from error

    async def _try(self, route: Route, view: View, search: _Search, report: ProgressCallback) -> OpenChain:
        """Open the chain of ``route``; raises ``ChainOpenError``, having noted who did not accept."""
        report(Progress("opening", detail=_described(route)))
        loads, peers, kv_tokens = self._view.loads, route.peers, search.kv_tokens
        loads.begin(peers, kv_tokens)
        try:
            chain = await Chain.open(self._plan(route, view, kv_tokens), self._transport, self._pulse)
        except ChainOpenError as error:
            self._note(error, search)
            raise
        finally:
            loads.end(peers, kv_tokens)
        now_s = self._clock.monotonic_s()
        loads.accept(chain.loads, view.listings, now_s)
        noted: set[PeerId] = set()
        return OpenChain(chain, route, search.needs, lambda: self._ended(chain, noted, kv_tokens, now_s), noted)

    def _ended(self, chain: Chain, noted: set[PeerId], kv_tokens: int, opened_s: float) -> None:
        """A session is over: its servers have room again, and who broke it is avoided."""
        self._view.loads.close([stage.peer for stage in chain.stages], kv_tokens, opened_s)
        for peer in chain.suspects - noted:
            self._avoided.note(peer, self._clock.monotonic_s())

    async def _improve(self, opened: OpenChain, view: View, search: _Search, report: ProgressCallback) -> OpenChain:
        """``opened``, or a chain that is better now that its servers have told their load.

        The first is kept until the second is open, so that there is always one.
        """
        try:
            for _ in range(MAX_REROUTES):
                salt, gain = self._random.getrandbits(64), self._options.reroute_gain
                now = replace(view, listings=self._view.loads.over(view.listings, self._clock.monotonic_s()))
                route = search.better(now, opened.route, gain, salt)
                if route is None:
                    break
                try:
                    async with asyncio.timeout(REROUTE_TIMEOUT_S):
                        other = await self._try(route, now, search, report)
                except (ChainOpenError, TimeoutError):
                    continue
                slow, opened = opened, other
                await slow.close()
        except BaseException:
            await opened.close()
            raise
        return opened

    def _give_up_late(self, error: ChainOpenError, search: _Search) -> None:
        """Raise ``PeerUnreachableError`` once servers have failed for too long."""
        if search.gone and self._clock.monotonic_s() - search.began_s > self._options.open_timeout_s:
            raise PeerUnreachableError(
                f"{len(search.gone)} servers failed in {self._options.open_timeout_s:g} s; last: {error.message}",
                hint="try again, or ask through other initial peers",
            ) from error

    def _note(self, error: ChainOpenError, search: _Search) -> None:
        """Sort the servers that did not accept, and remember those that were not there."""
        for name, failure in error.failures.items():
            peer = PeerId(name)
            if isinstance(failure, BusyError):
                search.busy[peer] = failure
                continue
            search.gone[peer] = failure
            if not isinstance(failure, RefusedError):
                self._avoided.note(peer, self._clock.monotonic_s())

    def _needs(self, kv_tokens: int) -> RouteNeeds:
        return priced(
            RouteNeeds(
                kv_tokens=kv_tokens,
                head="remote" if self._options.remote_head else "local",
                numerics="any" if self._options.mixed_numerics else "same",
            )
        )

    def _plan(self, route: Route, view: View, kv_tokens: int) -> ChainPlan:
        stages = view.plans(route.stages)
        classes = {str(stage.announcement.numerics) for stage in stages}
        return ChainPlan(
            model=self._model,
            stages=stages,
            kv_tokens=kv_tokens,
            embed=self._options.remote_head,
            head=self._options.remote_head,
            codec=self._options.codec,
            numerics=classes.pop() if len(classes) == 1 and not self._options.mixed_numerics else "",
        )

    async def _wait(self, search: _Search, report: ProgressCallback) -> None:
        """Let busy servers be for as long as they asked; ``BusyError`` if that is over ``busy_timeout_s``."""
        asked_s = min(error.retry_after_s for error in search.busy.values())
        wait_s = max(asked_s, 0.05) * self._random.uniform(*BUSY_JITTER)
        worst = next(iter(search.busy.values()))
        if self._clock.monotonic_s() + wait_s > search.began_s + self._options.busy_timeout_s:
            raise BusyError(
                f"the swarm stayed busy for {self._options.busy_timeout_s:g} s; last: {worst.message}",
                retry_after_s=asked_s,
                hint="try again later, or add a server",
            )
        report(Progress("waiting", detail=worst.message))
        await self._clock.sleep(wait_s)
        search.busy.clear()


def _described(route: Route) -> str:
    chain = ", ".join(f"{stage.peer[-8:]}[{stage.span}]" for stage in route.stages)
    return f"{chain}, {route.latency_s * 1e3:.0f} ms a token expected"


def _explain(error: NoRouteError, search: _Search, view: View) -> SwarmError:
    """The route's reason, unless servers that were tried and failed say more, and have not left meanwhile."""
    listed = {listing.peer for listing in view.listings}
    gone = {peer: failure for peer, failure in search.gone.items() if peer in listed}
    if not gone and not _possible(search.needs, view):
        return error
    if not gone:
        return PromptTooLongError(
            f"prompt and answer may take {search.kv_tokens} tokens, and no chain of servers has KV room for so many",
            hint="shorten the prompt, lower max_new_tokens or the session's max_tokens, or add a larger server",
        )
    tried = "; ".join(failure.message for failure in gone.values())
    if all(isinstance(failure, RefusedError) for failure in gone.values()):
        return RefusedError(tried, hint=next(iter(gone.values())).hint)
    return PeerUnreachableError(f"{error.message}: {tried}", hint=error.hint)


def _possible(needs: RouteNeeds, view: View) -> bool:
    """True if a session of one token could be served by empty servers."""
    try:
        replace(view, listings=with_all_room(view.listings)).best(replace(needs, kv_tokens=1))
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
