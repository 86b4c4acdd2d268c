"""What follows from a client's own sessions for what it makes of their servers."""

from __future__ import annotations

import logging

from swarm.client.evidence.records import SessionRecord
from swarm.client.judging.jury import Jury
from swarm.core.errors import ConfigError
from swarm.core.ids import PeerId
from swarm.runtime.reputation import ReputationStore
from swarm.verification.signed.coverage import CoveredWindow
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.standings.ledger import Ledger
from swarm.verification.standings.strikes import Policy, Standing, on_probation, struck

_log = logging.getLogger(__name__)


class Consequences:
    """Of every settled session: ejection for equivocation, a strike for a lie, broken links kept apart, credit.

    Nobody else can check a lie: it is this client's books against the server's word, and the books may be wrong. So
    such strikes expire, and what they eject for is a term.
    """

    def __init__(self, store: ReputationStore, jury: Jury, me: PeerId, policy: Policy | None = None) -> None:
        self._store = store
        self._jury = jury
        self._me = me
        self._policy = policy or Policy()

    async def of(self, record: SessionRecord) -> None:
        """Those that others can check are told to others; the rest is between this node and its servers."""
        for problem in record.problems:
            if problem.kind == "equivocation":
                await self._jury.hold("equivocation", problem.proof)

    def enter(self, record: SessionRecord) -> None:
        """What is this node's own to know. Waits for the disk."""
        for problem in record.problems:
            if problem.kind == "lie":
                for peer in problem.peers:
                    self._struck(peer, record.session)
                    _log.warning("server %s lied in a receipt: %s", peer[-8:], problem.what)
            elif problem.kind == "broken link" and len(set(problem.peers) - {self._me}) == 2:
                self._store.keep_apart(*problem.peers)
        self._credit(record)

    def _struck(self, peer: PeerId, occasion: bytes) -> None:
        def transition(standing: Standing) -> Standing:
            return struck(standing, self._policy, occasion, proven=False)

        self._store.change(peer, transition)

    def _credit(self, record: SessionRecord) -> None:
        windows = covered_windows(record)
        if not windows:
            return
        peers = {PeerId(signed.receipt.signer) for window in windows for signed in window.receipts}
        new = frozenset(peer for peer in peers if on_probation(self._store.standing(peer), self._policy))
        expires_s = float(max(signed.receipt.expires_s for window in windows for signed in window.receipts))

        def settle(ledger: Ledger) -> None:
            for window in windows:
                ledger.record(window)
            ledger.settle(windows[0].receipts[0].receipt.opening, expires_s=expires_s, on_probation=new)

        try:
            self._store.change_ledger(settle)
        except ConfigError as error:
            _log.debug("a session was not credited: %s", error)


def covered_windows(record: SessionRecord) -> list[CoveredWindow]:
    """The windows of ``record`` that its receipts cover, each with those of all layers in their order."""
    windows = []
    for window in range(-(-record.covered_rows // WINDOW_ROWS)):
        signed = [one for stage in record.stages for one in stage.receipts if one.receipt.window == window]
        signed.sort(key=lambda one: one.receipt.opening.start)
        ends = [0, *(one.receipt.opening.end for one in signed)]
        starts = [*(one.receipt.opening.start for one in signed), record.layer_count]
        if ends == starts and len({one.receipt.last for one in signed}) == 1:
            windows.append(CoveredWindow(tuple(signed)))
    return windows
