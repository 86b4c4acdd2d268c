"""Which records of others count, remembered so that no signature is checked twice."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict

from swarm.core.accusation import Accusation
from swarm.core.errors import BadRecordError, PeerError
from swarm.core.record_base import Record
from swarm.core.records import CLOCK_SKEW_S, AnyRecord, key_of, read_record
from swarm.dht.merge import Kind
from swarm.verification.signed.equivocation import EquivocationProof

FORGET_EVERY_S = 30.0

_log = logging.getLogger(__name__)


class Judge:
    """``read_record`` with a memory of ``remembered_bytes``, and a count of what did not pass (``dropped``, by reason).

    An accusation of equivocation counts only if its evidence proves it: nobody can store a false one.

    Reading a remembered record takes a microsecond, a new one about a tenth of a millisecond.
    """

    def __init__(self, remembered_bytes: int) -> None:
        self._limit = remembered_bytes
        self._bytes = 0
        self._forgot_s = -FORGET_EVERY_S
        self._known: OrderedDict[tuple[str, bytes], tuple[AnyRecord, str]] = OrderedDict()
        self.dropped: Counter[str] = Counter()

    def read(self, peer: str, value: bytes, *, now_s: float) -> tuple[AnyRecord, str]:
        """``peer``'s record in its signed form ``value``, and the one key it may stand under; raises as that does.

        Also ``BadProofError`` for evidence that proves nothing.
        """
        known = self._known.get((peer, value))
        if known is not None and 0 < known[0].expires_s - now_s <= known[0].LIFETIME_S + CLOCK_SKEW_S:
            self._known.move_to_end((peer, value))
            return known
        record = read_record(value, now_s=now_s, expected_peer=peer)
        if isinstance(record, Accusation) and record.evidence:
            _check_evidence(record)
        found = record, key_of(record)
        if known is None:
            self._known[peer, value] = found
            self._bytes += len(value)
            while self._bytes > self._limit:
                (_, forgotten), _ = self._known.popitem(last=False)
                self._bytes -= len(forgotten)
        return found

    def admit(self, kind: type[Kind], key: str, peer: str, value: bytes, *, now_s: float) -> Kind | None:
        """What a reader makes of ``value`` found under ``key`` and subkey ``peer``; None, counted, if it does not
        count: bad or expired in itself, of another kind, or not what may stand there. ``now_s`` is this node's own."""
        if abs(now_s - self._forgot_s) >= FORGET_EVERY_S:
            self._forget_expired(now_s)
        try:
            record, home = self.read(peer, value, now_s=now_s)
            if home != key or not isinstance(record, kind):
                raise BadRecordError("stands under a key of something else", peer=peer)
        except PeerError as error:  # mostly: expired while it travelled
            self.drop(error)
            return None
        return record

    def longest_s(self, peer: str, value: bytes, *, expires_s: float) -> float:
        """How long a record of this kind may live, 0 if it is none; ``expires_s`` is its own."""
        try:
            record: Record = self.read(peer, value, now_s=expires_s - 1.0)[0]
        except PeerError:
            return 0.0
        return record.LIFETIME_S

    def _forget_expired(self, now_s: float) -> None:
        self._forgot_s = now_s
        for peer, value in [known for known, (record, _) in self._known.items() if record.expires_s <= now_s]:
            del self._known[peer, value]
            self._bytes -= len(value)

    def drop(self, error: PeerError) -> None:
        """Count and note one entry that did not pass."""
        self.dropped[type(error).__name__] += 1
        _log.debug("dropped a directory record: %s", error)


def _check_evidence(record: Accusation) -> None:
    receipt, _ = EquivocationProof.parse(record.evidence).verify()
    if (receipt.signer, receipt.opening.model) != (record.subject, record.model):
        raise BadRecordError("evidence against somebody else, or about another model", peer=record.peer)
