"""Asks servers how they are, over a line to each that stays open, so that its end is noticed at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random

from swarm.core.clock import Clock
from swarm.core.ids import PeerId
from swarm.health.networks import first_network
from swarm.health.sight import Heard
from swarm.health.watching.seats import Candidate, guests, seats
from swarm.health.watching.visiting import Desk, Record, Target, Visit
from swarm.runtime.tasks import Tasks
from swarm.transport.protocol import Transport

MAX_ASKED = 1000
"""Servers with a line at a time,"""
GUESTS = 100
"""of which, where that is not enough, so many take turns who have not earned one that lasts."""
TURN_S = 4.0
"""A guest's turn, unless it is found out of reach before: time for one answer, so that many are looked at."""
GIVE_WAY_S = 30.0
"""Where others wait to be asked, a server that has answered may be out of reach for so long and keeps its seat."""
UNTRIED_S = 12.0
"""A server that this page has not come to try for so long does not count on the word of the directory alone."""

_log = logging.getLogger(__name__)


class Asker:
    """Keeps what was heard of the servers it is told to follow. ``changed`` is called when one is reached or lost."""

    def __init__(
        self, transport: Transport, clock: Clock, changed: Callable[[], None], chance: Random | None = None
    ) -> None:
        self._own = transport.peer_id
        self._desk = Desk(transport, clock, changed, chance or Random())
        self._tasks = Tasks(_failed)
        self._visits: dict[PeerId, tuple[Visit, asyncio.Task[None]]] = {}
        self._records: dict[PeerId, Record] = {}

    def follow(self, targets: Mapping[PeerId, Target], audited: Collection[PeerId] = ()) -> None:
        """From now on ask these and no others; of more than ``MAX_ASKED`` those that ``seats`` chooses, and guests in
        turn. ``audited`` are those whose work this machine has checked, and found right.

        A server with a new process or new addresses is tried at once.
        """
        now_s = self._desk.monotonic_s()
        for peer, target in targets.items():
            if peer == self._own:
                continue
            record = self._records.get(peer)
            if record is None:
                self._records[peer] = Record(target, first_network(target.addresses), now_s)
            elif peer in self._visits:
                self._visits[peer][0].update(target)
            else:
                record.target = target
        self._records = {peer: record for peer, record in self._records.items() if peer in targets}
        chosen = self._records.keys() if len(self._records) <= MAX_ASKED else self._chosen(audited, now_s)
        for peer in [peer for peer in self._visits if peer not in chosen]:
            self._visits.pop(peer)[1].cancel()
        for peer in chosen:
            if peer not in self._visits:
                self._records[peer].seat_s = now_s
                visit = Visit(self._desk, peer, self._records[peer])
                self._visits[peer] = visit, self._tasks.spawn(visit.run(), name=f"ask {peer[-8:]}")
        self._desk.lines = len(self._visits)

    def heard(self) -> dict[PeerId, Heard]:
        """What is known of those that are followed; see ``Heard.waiting``."""
        untried_s = self._desk.monotonic_s() - UNTRIED_S
        return {
            peer: replace(record.heard, waiting=True)
            if record.heard.reached is None and record.met_s < untried_s
            else record.heard
            for peer, record in self._records.items()
        }

    async def close(self) -> None:
        """Hang up on everybody. Idempotent."""
        await self._tasks.close()

    def _chosen(self, audited: Collection[PeerId], now_s: float) -> Collection[PeerId]:
        """Who has a line from now on, where not all can."""
        vouched = self._vouched()
        known = {
            peer: self._candidate(peer, record, vouched.get(peer), audited, now_s)
            for peer, record in self._records.items()
        }
        chosen = dict.fromkeys(seats(known.values(), MAX_ASKED - GUESTS))
        staying = [
            peer
            for peer in self._visits
            if peer not in chosen and peer in known and self._is_on_turn(self._records[peer], now_s)
        ][: MAX_ASKED - len(chosen)]
        chosen |= dict.fromkeys(staying)
        waiting = [one for peer, one in known.items() if peer not in chosen]
        return chosen | dict.fromkeys(guests(waiting, MAX_ASKED - len(chosen)))

    def _candidate(
        self, peer: PeerId, record: Record, vouched_s: float | None, audited: Collection[PeerId], now_s: float
    ) -> Candidate:
        if record.lost_s is not None and now_s - record.lost_s >= GIVE_WAY_S:
            record.since_s = None
        tried = record.heard.reached is not None
        return Candidate(
            peer=peer,
            network=record.network,
            met_s=record.met_s,
            audited=peer in audited,
            since_s=record.since_s,
            tried_s=record.seat_s if tried else None,
            vouched_s=vouched_s,
            seated=peer in self._visits,
        )

    @staticmethod
    def _is_on_turn(record: Record, now_s: float) -> bool:
        """Until its turn is over, and until it was tried at all."""
        on_time = record.seat_s is not None and now_s - record.seat_s < TURN_S
        return record.heard.reached is None or (record.heard.reached and on_time)

    def _vouched(self) -> dict[PeerId, float]:
        """Whom servers say to send rows to at present, and since when the one that answers longest of these does."""
        found: dict[PeerId, float] = {}
        for peer, record in self._records.items():
            report = record.heard.report
            if record.since_s is None or report is None:
                continue
            for link in report.links:
                other = PeerId(link.peer)
                if link.noop_age_s is not None and other != peer:
                    found[other] = min(found.get(other, record.since_s), record.since_s)
        return found


def _failed(name: str, error: Exception) -> None:
    _log.error("%s failed: %s", name, error)
