"""From the records that were read to what a reader is told: the newest of every peer, once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar, cast

from swarm.core.accusation import Accusation
from swarm.core.announcement import Announcement, State
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.record_base import Record
from swarm.core.records import AnyRecord
from swarm.dht.sharding import longest_metrics_life_s

Kind = TypeVar("Kind", Announcement, Metrics, ModelEntry, Accusation)

MAX_REMEMBERED = 32_768
"""Records of one kind and model. What comes above is shown while it is found, but not remembered."""
MAX_GROUPS = 64
"""Kinds and models whose records are remembered; the least recently read is forgotten."""


def supersedes(new: Record, old: Record) -> bool:
    """Whether ``new`` replaces ``old``, both live and of one kind, model and peer.

    Within an instance the sequence number decides. Of two instances the one that expires last counts, as it does in
    the DHT: no two clocks are compared, and a replayed record of a process that has ended expires before its
    successor's.
    """
    if new.instance == old.instance:
        return (new.sequence, new.expires_s) > (old.sequence, old.expires_s)
    return new.expires_s > old.expires_s


@dataclass(frozen=True, slots=True)
class _Held:
    """A record, its signed bytes, and until when (wall time) it counts."""

    record: AnyRecord
    signed: bytes
    until_s: float


class Newest:
    """The newest record of every peer, by kind and model, until it expires.

    So a replay of an older one changes nothing, and neither does a lookup that missed some nodes: what was read and
    signed stays true until the time its signer set. Metrics count no longer than they may live from when they were
    first seen: a dead server whose clock was ahead is not live for longer than others.
    """

    def __init__(self, *, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._groups: OrderedDict[tuple[type[Record], str], dict[str, _Held]] = OrderedDict()

    def take(
        self, kind: type[Kind], model: str, found: Iterable[tuple[Kind, bytes]], now_s: float
    ) -> list[tuple[Kind, bytes]]:
        """Remember what was ``found``; return all live records of this kind and model, in order of peer id.

        ``now_s`` is wall time. The model index is one group for all models (""), as it is one key.
        """
        group = self._groups.setdefault((kind, model), {})
        self._groups.move_to_end((kind, model))
        if len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)
        for peer in [peer for peer, held in group.items() if held.record.expires_s <= now_s]:
            del group[peer]
        for record, signed in found:
            known = group.get(record.peer)
            if known is None or supersedes(record, known.record):
                group[record.peer] = _Held(record, signed, _until_s(record, now_s))
        live = [(cast(Kind, held.record), held.signed) for _, held in sorted(group.items()) if held.until_s > now_s]
        while len(group) > self._limit:
            group.popitem()  # the newcomers
        return live


def _until_s(record: AnyRecord, now_s: float) -> float:
    if isinstance(record, Metrics):
        return min(record.expires_s, now_s + longest_metrics_life_s(record.shard_depth))
    return record.expires_s


def listings(announced: Iterable[tuple[Announcement, bytes]], metrics: Iterable[Metrics]) -> list[Listing]:
    """The servers that are not offline, in the order given, each with the metrics of the announced instance."""
    fresh = {(found.peer, found.instance): found for found in metrics}
    return [
        Listing(announcement, signed, fresh.get((announcement.peer, announcement.instance)))
        for announcement, signed in announced
        if announcement.state is not State.OFFLINE
    ]
