"""One session's way to an open chain: whom it has asked, what they said, and why in the end there is none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarm.client.finding.choice import View
from swarm.client.finding.loads import with_all_room, without_own
from swarm.client.finding.turned_away import Told
from swarm.client.plan import draw_secret
from swarm.core.errors import (
    NoRouteError,
    PeerLostError,
    PeerUnreachableError,
    PromptTooLongError,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import PeerId
from swarm.scheduling.routing import Route, RouteNeeds, Stage
from swarm.verification.standings.apart import NOBODY_APART
from swarm.wire.fields import Priority

MAX_CUTS = 4
"""Links that one search finds broken, after each of which whoever was lost is asked again."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one session wants beyond the client's options: a stage that its chain must have, its audit secret."""

    through: Stage | None = None
    audit_secret: bytes | None = None


ORDINARY = Wish()


@dataclass(slots=True)
class Search:
    """One session's way to an open chain: what it needs, and which servers have said no so far.

    However many chains are tried, all commit to one ``audit_secret``: whoever is asked twice learns nothing by it.
    """

    needs: RouteNeeds
    began_s: float
    avoided: frozenset[PeerId]
    priority: Priority = "interactive"
    audit_secret: bytes = field(default_factory=draw_secret, repr=False)
    gone: dict[PeerId, SwarmError] = field(default_factory=dict)
    busy: dict[PeerId, Told] = field(default_factory=dict)
    pardoned: dict[PeerId, SwarmError] = field(default_factory=dict)
    looked_again: bool = False
    asked_again: bool = False
    resort: bool = False
    """Links that broke may be tried again: there is no other chain."""
    cuts: int = 0

    def cut(self) -> None:
        """A link did not come about, and is left out from now on: its ends may do beside others, a few times over."""
        self.cuts += 1
        self.asked_again &= self.cuts > MAX_CUTS

    def pardon(self) -> bool:
        """Let those be asked once more that were there and fell silent or left: they may be back. False if nobody is.

        Whoever could not be reached at all, or refused, is not.
        """
        lost = [peer for peer, failure in self.gone.items() if isinstance(failure, PeerLostError)]
        if self.asked_again or not lost:
            return False
        self.asked_again = True
        for peer in lost:
            self.pardoned[peer] = self.gone.pop(peer)
        return True

    def over(self, view: View) -> View:
        """``view``, with links that broke where they are the last resort."""
        return (self.resort and view.last_resort) or view

    @property
    def kv_tokens(self) -> int:
        return self.needs.kv_tokens

    def route(self, view: View, salt: int, silent: frozenset[PeerId] = frozenset()) -> Route:
        """The best chain without those servers, and without the ``silent``.

        Where the room that is free at this moment does not do, servers with room enough when they are empty are asked
        all the same: they know best, and say how long to wait. Raises ``NoRouteError`` if that does not do either.
        """
        needs = replace(self.needs, excluded=frozenset(self.gone) | frozenset(self.busy) | self.avoided | silent)
        view = self.over(view)
        try:
            return view.best(needs, salt)
        except NoRouteError:
            return replace(view, listings=with_all_room(view.listings)).best(needs, salt)

    def better(self, view: View, route: Route, gain: float, salt: int) -> Route | None:
        """The chain to take instead of the opened ``route``, as its servers told their load; None to keep it."""
        excluded = (frozenset(self.gone) | frozenset(self.busy) | self.avoided) - set(route.peers)
        before = replace(self.over(view), listings=without_own(view.listings, route.peers, self.kv_tokens))
        return before.better(route, replace(self.needs, excluded=excluded), gain=gain, salt=salt)


def explain(error: NoRouteError, search: Search, view: View) -> SwarmError:
    """The route's reason, unless servers that were tried and failed say more, and have not left meanwhile."""
    listed = {listing.peer for listing in view.listings}
    gone = {peer: failure for peer, failure in {**search.pardoned, **search.gone}.items() if peer in listed}
    view = search.over(view)
    if not gone and not _possible(search.needs, view):
        error = _while_apart(error, search.needs, view)
        return _without_ejected(error, view.ejected) if view.ejected else error
    if not gone:
        return PromptTooLongError(
            f"prompt and answer may take {search.kv_tokens} tokens, and no chain of servers has KV room for so many",
            hint="shorten the prompt, lower max_new_tokens or the session's max_tokens, or add a larger server",
        )
    tried = "; ".join(failure.message for failure in gone.values())
    if all(isinstance(failure, RefusedError) for failure in gone.values()):
        return RefusedError(tried, hint=next(iter(gone.values())).hint)
    return PeerUnreachableError(f"{error.message}: {tried}", hint=error.hint)


def _without_ejected(error: NoRouteError, ejected: int) -> NoRouteError:
    servers = f"{ejected} servers were" if ejected > 1 else "one server was"
    return NoRouteError(
        f"{error.message}; {servers} left out, ejected for what they did",
        hint="start another server; `python -m swarm reputation` says who is ejected, why, and until when",
    )


def _while_apart(error: NoRouteError, needs: RouteNeeds, view: View) -> NoRouteError:
    """With when a link that broke is tried again, if that is what is missing."""
    if not view.apart.shut or not _possible(needs, replace(view, apart=NOBODY_APART)):
        return error
    return NoRouteError(f"{error.message}; one is tried again in {view.apart.opens_in_s:.0f} s", hint=error.hint)


def _possible(needs: RouteNeeds, view: View) -> bool:
    """True if a session of one token could be served by empty servers."""
    try:
        replace(view, listings=with_all_room(view.listings)).best(replace(needs, kv_tokens=1))
    except NoRouteError:
        return False
    return True
