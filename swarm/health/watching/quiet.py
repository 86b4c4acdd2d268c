"""What counts as a change: a page that only grew a little older is the same page. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from swarm.health.state import ModelState, ObserverState, ServerState, StatsState, SwarmState

AGE_S = 30.0
"""Figures and sightings that are newer but say the same are shown as new so late at the latest."""


def carried(before: ModelState | None, after: ModelState) -> ModelState:
    """``after``, with what the time before tells: since when a server is what it is; and what did not change as it was.

    So a server that only was heard of again is the very same object, unless it is ``AGE_S`` later.
    """
    if before is None:
        return after
    known = {server.peer: server for server in before.servers}
    servers = [_server(known.get(server.peer), server) for server in after.servers]
    after = replace(after, servers=servers)
    return before if after == before else after


def changed(before: SwarmState, models: Sequence[ModelState], observer: ObserverState, events: int) -> bool:
    """True if readers of ``before`` do not know these models, this observer, or so many events."""
    return (
        events != (before.events[-1].number if before.events else 0)
        or _aged(before.observer, observer) != before.observer
        or len(models) != len(before.models)
        or any(one is not other and one != other for one, other in zip(models, before.models, strict=True))
    )


def _server(before: ServerState | None, after: ServerState) -> ServerState:
    if before is None:
        return after
    if before.condition == after.condition:
        after = replace(after, since_at=before.since_at)
    same = replace(after, seen_at=before.seen_at, stats=_with_ages_of(before, after))
    fresh = after.seen_at - before.seen_at < AGE_S and _figures_at(after) - _figures_at(before) < AGE_S
    return before if fresh and same == before else after


def _figures_at(server: ServerState) -> float:
    return server.stats.figures_at if server.stats is not None else 0.0


def _with_ages_of(before: ServerState, after: ServerState) -> StatsState | None:
    old, new = before.stats, after.stats
    return new if old is None or new is None else replace(new, figures_at=old.figures_at, uptime_s=old.uptime_s)


def _aged(before: ObserverState, after: ObserverState) -> ObserverState:
    """``after`` with the old time of the directory's last answer, if that is not long before."""
    then, now = before.directory_at, after.directory_at
    return replace(after, directory_at=then) if then is not None and now is not None and now - then < AGE_S else after
