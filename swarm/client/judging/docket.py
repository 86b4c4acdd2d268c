"""Which accusations wait to be checked, in which order, and whose word has counted for how much. Pure: no clock.

Anybody may accuse anybody, and identities are free. So an unchecked accusation never does more than have its subject
avoided for a while, one that turned out false costs whoever made it all belief, and while a server has lately been
accused in vain, strangers' accusations of it are looked into but have no effect before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from swarm.core.accusation import Accusation
from swarm.core.ids import PeerId

MAX_CASES = 256
MAX_CASES_OF_ONE = 4
"""Open cases against one server, by strangers; those who were right before are always heard."""
MAX_HOLDERS = 8
"""Of one proof, to be asked for it; those who were right before come in addition."""
MAX_TRIES = 2
"""To get a proof from one who says to have it."""
RETRY_S = 30.0
CASE_S = 900.0
"""So long a case stays open after it was last heard of."""
CLEARED_S = 3600.0
"""So long a stranger's word alone has no effect on a server that was accused in vain."""
MAX_REMEMBERED = 4096
"""Holders whose word is weighed, servers that were accused in vain, proofs that were set aside."""
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class Case:
    """One proof that somebody says to have against ``subject``. ``holders`` are they, with their addresses."""

    subject: PeerId
    digest: bytes
    size: int
    heard_s: float
    due_s: float
    holders: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    tried: dict[PeerId, int] = field(default_factory=dict)


class Docket:
    """The open cases of one reader. Times are of any clock that never goes back."""

    def __init__(self) -> None:
        self._cases: OrderedDict[bytes, Case] = OrderedDict()
        self._belief: OrderedDict[PeerId, int] = OrderedDict()
        self._cleared_s: OrderedDict[PeerId, float] = OrderedDict()
        self._aside_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cases)

    def believes(self, holder: PeerId) -> int:
        """Above 0: it was right before. Below: it was wrong, and is not listened to."""
        return self._belief.get(holder, 0)

    # -- hearing --------------------------------------------------------------------------------------------

    def hear(self, record: Accusation, now_s: float) -> list[Case]:
        """Take an accusation that points to proofs; the cases it opens and that its subject is to be avoided for."""
        holder, subject = record.peer_id, record.subject_id
        if self.believes(holder) < 0:
            return []
        opened = []
        for proof in record.proofs:
            case = self._cases.get(proof.digest)
            if case is None:
                if self._aside_s.get(proof.digest, now_s) > now_s or not self._has_room(subject, holder):
                    continue
                case = self._cases[proof.digest] = Case(subject, proof.digest, proof.size, now_s, now_s)
                if self.believes(holder) > 0 or self._cleared_s.get(subject, now_s) <= now_s:
                    opened.append(case)
            if (case.subject, case.size) == (subject, proof.size):
                case.heard_s = now_s
                if holder in case.holders or len(case.holders) < MAX_HOLDERS or self.believes(holder) > 0:
                    case.holders[holder] = record.addresses
        return opened

    def _has_room(self, subject: PeerId, holder: PeerId) -> bool:
        if len(self._cases) >= MAX_CASES:
            return False
        theirs = sum(case.subject == subject for case in self._cases.values())
        return theirs < MAX_CASES_OF_ONE or self.believes(holder) > 0

    # -- checking -------------------------------------------------------------------------------------------

    def take(self, now_s: float) -> Case | None:
        """What to check now, not to be taken again until ``later`` or ``failed`` gives it back; None if nothing waits.

        First what one vouches for whom one believes most, of those the smallest proof, then the oldest.
        """
        due = [case for case in self._cases.values() if case.due_s <= now_s and case.holders]
        case = min(due, key=lambda case: (-self._best(case), case.size, case.heard_s), default=None)
        if case is not None:
            case.due_s = float("inf")
        return case

    def _best(self, case: Case) -> int:
        return max(map(self.believes, case.holders))

    def holder(self, case: Case) -> PeerId:
        """Whom to ask for the proof: who was tried least, of those the one believed most."""
        return min(case.holders, key=lambda holder: (case.tried.get(holder, 0), -self.believes(holder)))

    def later(self, case: Case, now_s: float, wait_s: float = RETRY_S) -> None:
        """It could not be had this time, through nobody's fault: its holder is busy."""
        case.due_s = now_s + wait_s

    def failed(self, case: Case, holder: PeerId, now_s: float) -> None:
        """``holder`` did not give it: another is asked. Who fails ``MAX_TRIES`` times is not listened to any more."""
        case.tried[holder] = case.tried.get(holder, 0) + 1
        if case.tried[holder] >= MAX_TRIES:
            self.distrust(holder)
        untried = any(other not in case.tried for other in case.holders)
        case.due_s = now_s if untried else now_s + RETRY_S

    def set_aside(self, case: Case, now_s: float) -> None:
        """It cannot be judged here: not heard again for ``CLEARED_S``. Nobody's word counts less for it."""
        self._remember(self._aside_s, case.digest, now_s + CLEARED_S)
        self._close(case, now_s)

    def distrust(self, holder: PeerId) -> None:
        """It accused wrongly, or did not give what it says to have: nothing it says counts any more."""
        self._remember(self._belief, holder, -1)
        for case in self._cases.values():
            case.holders.pop(holder, None)
            case.tried.pop(holder, None)

    def proven(self, case: Case) -> None:
        """The proof holds: whoever had it is believed more."""
        for holder in case.holders:
            self._remember(self._belief, holder, self.believes(holder) + 1)
        self._cases.pop(case.digest, None)

    def false(self, case: Case, now_s: float) -> None:
        """The proof proves nothing: whoever vouched for it is not listened to any more."""
        for holder in tuple(case.holders):
            self.distrust(holder)
        self._close(case, now_s)

    # -- closing --------------------------------------------------------------------------------------------

    def expire(self, now_s: float) -> None:
        """Close the cases that nobody speaks of any more, or that nobody is left to prove."""
        for case in [case for case in self._cases.values() if not case.holders or case.heard_s + CASE_S <= now_s]:
            self._close(case, now_s)

    def drop(self, subjects: Iterable[PeerId]) -> None:
        """No more of those: they are ejected, or gone."""
        gone = set(subjects)
        for digest in [digest for digest, case in self._cases.items() if case.subject in gone]:
            del self._cases[digest]

    def _close(self, case: Case, now_s: float) -> None:
        self._cases.pop(case.digest, None)
        self._remember(self._cleared_s, case.subject, now_s + CLEARED_S)

    @staticmethod
    def _remember(memory: OrderedDict[Key, Value], key: Key, value: Value) -> None:
        memory[key] = value
        memory.move_to_end(key)
        if len(memory) > MAX_REMEMBERED:
            memory.popitem(last=False)
