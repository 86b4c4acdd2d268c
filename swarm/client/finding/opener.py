"""From the view of the swarm to an open chain: route, open, and when a server says no, route again without it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from swarm.client.chains.chain import Chain, ChainPlan, LastWords
from swarm.client.evidence.witness import Witness
from swarm.client.finding.avoided import Avoided
from swarm.client.finding.choice import ModelShape, View, priced
from swarm.client.finding.distances import Distances
from swarm.client.finding.ground import Ground
from swarm.client.finding.hedge import HEDGE_S, first_open
from swarm.client.finding.search import ORDINARY, Search, Wish, explain
from swarm.client.finding.turned_away import Told, TurnedAway
from swarm.client.finding.view import SwarmView
from swarm.client.plan import draw_secret
from swarm.client.results import Progress, ProgressCallback
from swarm.client.traced import of_stages
from swarm.core.clock import Clock
from swarm.core.errors import (
    BusyError,
    ChainOpenError,
    NoRouteError,
    PeerUnreachableError,
    PromptTooLongError,
    RefusedError,
)
from swarm.core.ids import ModelId, PeerId
from swarm.dht.protocol import Directory
from swarm.runtime.reputation import ReputationStore
from swarm.runtime.tracing import span
from swarm.scheduling.routing import Route, RouteNeeds
from swarm.transport.pinger import Pinger
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper
from swarm.wire.fields import Codec, Priority

BUSY_JITTER = (0.5, 1.5)
"""Clients wait a random factor of the asked time, so that they do not come back all at once."""
LEAST_WAIT_S = 0.05
SPREAD_S = 0.5
"""Sessions that wait for a server another of this client's was turned away from come back within so long."""
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
    witness: Witness | None = None
    """Hears how servers answer, and keeps what they sign."""


@dataclass(frozen=True, slots=True)
class OpenChain:
    """A chain, how it was chosen, and what was asked of it. ``ended`` is told when it is closed."""

    chain: Chain
    route: Route
    needs: RouteNeeds
    ended: Callable[[], None]
    noted: set[PeerId] = field(default_factory=set)
    """Who broke it and is avoided for that already."""

    async def close(self, settle: LastWords | None = None) -> None:
        """End the session at every server; see ``Chain.close``."""
        try:
            await self.chain.close(settle)
        finally:
            self.ended()


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
        reputation: ReputationStore,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._model = model
        self._options = options
        self._random = random.Random()
        self._avoided = Avoided(reputation.accused)
        self._turned_away = TurnedAway()
        self._losers: set[asyncio.Task[None]] = set()
        self._pulse = PulseKeeper(transport, clock)
        distances = Distances(Pinger(transport, clock).rtt_s, clock, salt=self._random.getrandbits(64))
        self._view = SwarmView(directory, clock, model, shape, distances, reputation)
        self.ground = Ground(transport, clock, self._view, self._avoided, self._pulse, self._random, reputation)

    async def close(self) -> None:
        """End the beats to servers and whatever else runs in the background. Idempotent."""
        await asyncio.gather(*self._losers, return_exceptions=True)
        await self._view.close()
        await self._pulse.close()

    async def open(
        self, kv_tokens: int, report: ProgressCallback, priority: Priority = "interactive", wish: Wish = ORDINARY
    ) -> OpenChain:
        """An open chain with room for ``kv_tokens``.

        A server that refuses or cannot be reached is left out and the rest routed again. A busy one is left out too,
        by the client's next sessions as well, but when nothing else is left the client waits as long as it was asked
        to, up to ``busy_timeout_s``. Links that broke lately are the last resort. Where somebody does not answer a
        second chain is tried beside the first. A chain whose servers turn out slower than the view had it gives way to
        a better one, ``MAX_REROUTES`` times at most. Raises ``NoRouteError`` that names the missing layers, the last
        server's own error if that says more, or ``PeerUnreachableError`` after ``open_timeout_s`` of failures.
        """
        with span("swarm.open", {"swarm.kv_tokens": kv_tokens, "swarm.priority": priority}) as seen:

            def tell(progress: Progress) -> None:
                seen.event(progress.phase)
                report(progress)

            opened = await self._open(self._search(kv_tokens, self._clock.monotonic_s(), priority, wish), tell)
            seen.set(of_stages(opened.chain.stages))
            return opened

    async def _open(self, search: Search, report: ProgressCallback) -> OpenChain:
        """See ``open``."""
        while True:
            report(Progress("routing"))
            view = await self._view.look()
            try:
                route = search.route(view, self._random.getrandbits(64))
            except NoRouteError as error:
                await self._stuck(error, search, view, report)
                continue
            try:
                with self._asking(route, search):
                    opened = await self._hedged(route, view, search, report)
            except ChainOpenError as error:
                self._give_up_late(error, search)
                continue
            return await self._improve(opened, view, search, report)

    async def _stuck(self, error: NoRouteError, search: Search, view: View, report: ProgressCallback) -> None:
        """No chain: do what may bring one about, or raise why there is none."""
        listed = {listing.peer for listing in view.listings}
        search.busy = {peer: told for peer, told in search.busy.items() if peer in listed}
        if not search.looked_again:
            search.looked_again = True
            await self._view.look(fresh=True)  # the view may be older than what the caller knows
        elif search.avoided:
            search.avoided = frozenset()
        elif search.busy:
            await self._wait(search, report)
        elif not search.resort and view.last_resort is not None:
            search.resort = True
        elif search.pardon():
            await self._view.look(fresh=True)
        else:
            raise explain(error, search, view) from error

    def _search(self, kv_tokens: int, now_s: float, priority: Priority, wish: Wish) -> Search:
        """A session's search, which knows what this client's others were told lately."""
        avoided = self._avoided.at(now_s) | self._turned_away.refusing(kv_tokens, now_s)
        if wish.through is not None:
            avoided -= {wish.through.peer}
        needs = replace(self._needs(kv_tokens), through=wish.through)
        search = Search(needs, now_s, avoided, priority, wish.audit_secret or draw_secret())
        for peer, told in self._turned_away.busy(now_s).items():
            search.busy[peer] = replace(told, until_s=told.until_s + self._random.uniform(0.0, SPREAD_S))
        return search

    async def _hedged(self, route: Route, view: View, search: Search, report: ProgressCallback) -> OpenChain:
        """Like ``_try``, but after ``HEDGE_S`` a chain without the servers that are silent is tried beside it.

        If that one wins they are avoided from then on.
        """
        asked: list[tuple[Chain, float]] = []

        def silent() -> frozenset[PeerId]:
            before_s = self._clock.monotonic_s() - HEDGE_S / 2  # not who was asked a moment ago
            return frozenset(peer for chain, began_s in asked if began_s <= before_s for peer in chain.silent)

        def note(chain: Chain) -> None:
            asked.append((chain, self._clock.monotonic_s()))

        def another() -> Coroutine[Any, Any, OpenChain] | None:
            try:
                route = search.route(view, self._random.getrandbits(64), silent())
            except NoRouteError:
                return None
            return counted(route)

        async def counted(route: Route) -> OpenChain:
            with self._asking(route, search):
                return await self._try(route, view, search, report, note)

        def won() -> None:
            search.avoided |= silent()
            for peer in silent():
                self._avoided.note(peer, self._clock.monotonic_s())

        return await first_open(self._try(route, view, search, report, note), another, won, self._losers)

    @contextmanager
    def _asking(self, route: Route, search: Search) -> Iterator[None]:
        """OPENs are on their way: whoever routes meanwhile counts them. To be entered right after routing."""
        loads, peers, kv_tokens = self._view.loads, route.peers, search.kv_tokens
        loads.begin(peers, kv_tokens)
        try:
            yield
        finally:
            loads.end(peers, kv_tokens)

    async def _try(
        self,
        route: Route,
        view: View,
        search: Search,
        report: ProgressCallback,
        begun: Callable[[Chain], None] = lambda chain: None,
    ) -> OpenChain:
        """Open the chain of ``route``; raises ``ChainOpenError``, having noted who did not accept."""
        report(Progress("opening", detail=_described(route)))
        kv_tokens = search.kv_tokens
        chain = Chain(self._plan(route, view, search), self._transport, self._pulse, self._options.witness)
        begun(chain)
        try:
            await chain.start()
        except ChainOpenError as error:
            self._note(error, search)
            raise
        now_s = self._clock.monotonic_s()
        self._view.loads.accept(chain.loads, view.listings, now_s)
        self._turned_away.forget(route.peers)
        noted: set[PeerId] = set()
        return OpenChain(chain, route, search.needs, lambda: self._ended(chain, noted, kv_tokens, now_s), noted)

    def _ended(self, chain: Chain, noted: set[PeerId], kv_tokens: int, opened_s: float) -> None:
        """A session is over: its servers have room again, and who broke it is avoided."""
        self._view.loads.close([stage.peer for stage in chain.stages], kv_tokens, opened_s)
        for peer in chain.suspects - noted:
            self._avoided.note(peer, self._clock.monotonic_s())

    async def _improve(self, opened: OpenChain, view: View, search: Search, report: ProgressCallback) -> OpenChain:
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
                    with self._asking(route, search):
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

    def _give_up_late(self, error: ChainOpenError, search: Search) -> None:
        """Raise ``PeerUnreachableError`` once servers have failed for too long."""
        if search.gone and self._clock.monotonic_s() - search.began_s > self._options.open_timeout_s:
            raise PeerUnreachableError(
                f"{len(search.gone)} servers failed in {self._options.open_timeout_s:g} s; last: {error.message}",
                hint="try again, or ask through other initial peers",
            ) from error

    def _note(self, error: ChainOpenError, search: Search) -> None:
        """Sort the servers that did not accept, and remember those that were not there."""
        now_s = self._clock.monotonic_s()
        for one, other in error.links:
            self._view.links.note(PeerId(one), PeerId(other), now_s)
            search.cut()
        for name, failure in error.failures.items():
            peer = PeerId(name)
            if isinstance(failure, BusyError):
                wait_s = max(failure.retry_after_s, LEAST_WAIT_S) * self._random.uniform(*BUSY_JITTER)
                search.busy[peer] = told = Told(failure, now_s + wait_s)
                self._turned_away.note_busy(peer, told)
                continue
            search.gone[peer] = failure
            if isinstance(failure, RefusedError):
                self._turned_away.note_refused(peer, search.kv_tokens, now_s)
            else:
                self._avoided.note(peer, now_s)

    def _needs(self, kv_tokens: int) -> RouteNeeds:
        return priced(
            RouteNeeds(
                kv_tokens=kv_tokens,
                head="remote" if self._options.remote_head else "local",
                numerics="any" if self._options.mixed_numerics else "same",
            )
        )

    def _plan(self, route: Route, view: View, search: Search) -> ChainPlan:
        stages = view.plans(route.stages)
        classes = {str(stage.announcement.numerics) for stage in stages}
        return ChainPlan(
            model=self._model,
            stages=stages,
            kv_tokens=search.kv_tokens,
            embed=self._options.remote_head,
            head=self._options.remote_head,
            codec=self._options.codec,
            numerics=classes.pop() if len(classes) == 1 and not self._options.mixed_numerics else "",
            priority=search.priority,
            audit_secret=search.audit_secret,
        )

    async def _wait(self, search: Search, report: ProgressCallback) -> None:
        """Let busy servers be for as long as they asked; ``BusyError`` if that is over ``busy_timeout_s``."""
        first = min(search.busy.values(), key=lambda told: told.until_s)
        now_s, limit_s = self._clock.monotonic_s(), self._options.busy_timeout_s
        if first.until_s > search.began_s + limit_s:
            raise BusyError(
                f"the swarm stayed busy for {limit_s:g} s; last: {first.error.message}",
                retry_after_s=max(first.until_s - now_s, 0.0),
                hint="try again later, or add a server",
            )
        report(Progress("waiting", detail=first.error.message))
        await self._clock.sleep(max(first.until_s - now_s, 0.0))
        search.busy = {peer: told for peer, told in search.busy.items() if told.until_s > first.until_s}


def _described(route: Route) -> str:
    chain = ", ".join(f"{stage.peer[-8:]}[{stage.span}]" for stage in route.stages)
    return f"{chain}, {route.latency_s * 1e3:.0f} ms a token expected"


def check_room(prompt_tokens: int, max_new_tokens: int, room: int, *, whose: str) -> None:
    """Raise ``PromptTooLongError`` with the figures if prompt and answer do not fit the ``room`` tokens there are."""
    if prompt_tokens + max_new_tokens > room:
        raise PromptTooLongError(
            f"{prompt_tokens} prompt tokens and {max_new_tokens} new ones do not fit the {whose} of {room}",
            hint="shorten the prompt or lower max_new_tokens",
        )
