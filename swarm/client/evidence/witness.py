"""Who hears of what a client saw of servers: whether they answered when asked, and what a session left behind."""

from __future__ import annotations

import logging
from collections.abc import Callable

from swarm.client.evidence.records import SessionRecord
from swarm.core.clock import Clock
from swarm.core.ids import PeerId
from swarm.core.keys import Identity

Settled = Callable[[SessionRecord], None]
"""Told of every session that is settled."""
Asked = Callable[[PeerId, bool], None]
"""Told of every OPEN: to whom it went, and whether ACCEPT came back (not: busy, refused, unreachable)."""

_log = logging.getLogger(__name__)


class Witness:
    """One client's. ``identity`` counter-signs receipts; without one they stay without.

    Callbacks run in the client's event loop and must not block it. One that raises is logged, and the others hear.
    """

    def __init__(self, clock: Clock, identity: Identity | None = None) -> None:
        self.clock = clock
        self.identity = identity
        self.on_settled: list[Settled] = []
        self.on_asked: list[Asked] = []

    def settled(self, record: SessionRecord) -> None:
        """A session is over, and its servers have signed what they would."""
        for told in self.on_settled:
            try:
                told(record)
            except Exception:
                _log.exception("a settled session was not taken")

    def asked(self, peer: PeerId, answered: bool) -> None:
        """An OPEN has got its answer, or none."""
        for told in self.on_asked:
            try:
                told(peer, answered)
            except Exception:
                _log.exception("an answer to OPEN was not taken")
