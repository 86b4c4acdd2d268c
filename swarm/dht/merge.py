"""From the records that were read to what a reader is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from swarm.core.announcement import Announcement, State
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.record_base import Record

Kind = TypeVar("Kind", bound=Record)


def listings(announced: Iterable[tuple[Announcement, bytes]], metrics: Iterable[Metrics]) -> list[Listing]:
    """Each server once, in order of peer id, with the metrics of the announced instance; none that is offline.

    Of two announcements of one peer (in shards of two depths, say) the one that expires last counts, of two metrics
    the one of the higher sequence number.
    """
    fresh: dict[tuple[str, int], Metrics] = {}
    for found in metrics:
        known = fresh.get((found.peer, found.instance))
        if known is None or known.sequence < found.sequence:
            fresh[found.peer, found.instance] = found
    servers: dict[str, tuple[Announcement, bytes]] = {}
    for announcement, signed in announced:
        held = servers.get(announcement.peer)
        if held is None or held[0].expires_s < announcement.expires_s:
            servers[announcement.peer] = (announcement, signed)
    return [
        Listing(announcement, signed, fresh.get((peer, announcement.instance)))
        for peer, (announcement, signed) in sorted(servers.items())
        if announcement.state is not State.OFFLINE
    ]


def sorted_entries(entries: Iterable[tuple[ModelEntry, bytes]]) -> list[tuple[ModelEntry, bytes]]:
    """Entries in order of model and peer, so that every reader keeps the same one of several."""
    return sorted(entries, key=lambda item: (item[0].model, item[0].peer))
