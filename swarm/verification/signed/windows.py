"""A stage's rows as they come, cut into windows, and what is to be signed of them and when. Signs nothing itself.

A server appends the leaves of every row it computes and says with ``commit`` which rows can no longer be rejected: a
window is signed once all of it is committed, so drafts that are turned down never enter. A row that was committed and
is taken back after all (a rollback, a heal) takes its window's receipt with it: that window is signed again, and the
later counter counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.verification.signed.leaves import RECEIVED, SENT, Leaf
from swarm.verification.signed.merkle import leaf_hash, merkle_root
from swarm.verification.signed.receipts import NO_HASH, RECEIPT_VERSION, WINDOW_ROWS, Opening, Receipt

COUNTERS_PER_STAGE = 2**20
"""Receipts a server signs for one stage of one session at most: eight times the windows of the longest context."""


def counter_base(now_s: float, last_base: int) -> int:
    """The first counter of a newly opened stage; ``last_base`` is what this gave last, 0 at first.

    No two stages of one server share a counter, whatever nonces clients choose, nor do they over restarts while its
    clock does not go back by more than it was down. Else a client that opens twice with one nonce could make an honest
    server equivocate.
    """
    return max(int(now_s * 1000) * COUNTERS_PER_STAGE, last_base + COUNTERS_PER_STAGE)


class WindowBuilder:
    """The leaves of one stage, from position 0, and its chain of receipts.

    ``first_counter`` is ``counter_base``'s. Leaves are kept, 150 to 190 bytes a row, until the builder is dropped: a
    rollback may reach back to any of them, and audits ask for them.
    """

    def __init__(self, opening: Opening, first_counter: int) -> None:
        self.opening = opening
        self._counters = iter(range(first_counter, first_counter + COUNTERS_PER_STAGE))
        self._previous = NO_HASH
        self._leaves: list[bytes] = []
        self._committed = 0
        self._next_window = 0
        self._receipts: dict[int, Receipt] = {}

    @property
    def length(self) -> int:
        """Rows held, committed or not."""
        return len(self._leaves)

    @property
    def signed_rows(self) -> int:
        """Rows below this are in windows that were signed, by this server or by the one it took over from."""
        return min(self._next_window * WINDOW_ROWS, self.length)

    def append(self, leaves: Sequence[Leaf]) -> None:
        """Add the next rows. ``MisuseError`` if they do not begin where the last ones ended, or a leaf cannot be."""
        for place, leaf in enumerate(leaves, self.length):
            if leaf.position != place:
                raise MisuseError(f"a leaf of row {leaf.position} where row {place} comes next")
        self._leaves += [leaf.canonical() for leaf in leaves]

    def truncate(self, keep: int) -> None:
        """Forget the rows from ``keep`` on. Windows they were in will be signed again when they are full again.

        ``MisuseError`` for more rows than are held.
        """
        if not 0 <= keep <= self.length:
            raise MisuseError(f"cannot keep {keep} of {self.length} rows")
        del self._leaves[keep:]
        self._committed = min(self._committed, keep)
        self._next_window = min(self._next_window, keep // WINDOW_ROWS)
        self._forget_receipts()

    def resume(self, signed_rows: int) -> None:
        """After a heal: the windows below ``signed_rows`` are signed for good, by this server or the one before it.

        The window in which that row stands and those after are signed by this server, again if it had signed them.
        All stages of a chain do so from the same row on, whether they are newcomers, compute again or only wait: so
        every window is signed by all in one state.
        """
        self._next_window = signed_rows // WINDOW_ROWS
        self._committed = min(self._committed, signed_rows)
        self._forget_receipts()

    def replayed(self, leaves: Sequence[Leaf]) -> None:
        """Add rows that were computed again after a heal, in any chunks, from any row on; ``resume`` comes first.

        What is held of signed windows stays as it was signed; the rest replaces what was held from there on. A newcomer
        takes all. ``MisuseError`` if rows between are missing.
        """
        held = min(self.length, self._next_window * WINDOW_ROWS)
        fresh = [leaf for leaf in leaves if leaf.position >= held]
        if fresh:
            del self._leaves[fresh[0].position :]
            self._committed = min(self._committed, self.length)
            self.append(fresh)

    def commit(self, length: int, expires_s: int) -> list[Receipt]:
        """Rows below ``length`` are accepted: the receipts to be signed now, in order, often none.

        Call it with the ``keep`` of every step that goes on from what the client has accepted. They must be signed and
        sent in this order, or the chain does not hold. ``ProtocolViolation`` once a client has rolled back so often
        that the stage's counters are used up.
        """
        self._committed = max(self._committed, min(length, self.length))
        due: list[Receipt] = []
        while (self._next_window + 1) * WINDOW_ROWS <= self._committed:
            due.append(self._receipt(expires_s))
        return due

    def close(self, keep: int, expires_s: int) -> list[Receipt]:
        """The session ends with ``keep`` rows accepted: the last receipts, the last of a shorter window perhaps."""
        if keep < self.length:
            self.truncate(keep)
        due = self.commit(keep, expires_s)
        if self._next_window * WINDOW_ROWS < self.length:
            due.append(self._receipt(expires_s))
        return due

    def leaves(self, first: int, last: int) -> list[bytes]:
        """The leaves of rows ``[first, last)``, signed or not, in canonical form; fewer if fewer are held."""
        return self._leaves[first:last]

    def signed_window(self, window: int) -> tuple[Receipt, list[bytes]] | None:
        """The receipt that counts for a window and the leaves it was made over; None if there is none of ours."""
        receipt = self._receipts.get(window)
        return None if receipt is None else (receipt, self._leaves[receipt.first : receipt.last])

    def _forget_receipts(self) -> None:
        for window in [signed for signed in self._receipts if signed >= self._next_window]:
            del self._receipts[window]

    def _receipt(self, expires_s: int) -> Receipt:
        window = self._next_window
        first = window * WINDOW_ROWS
        leaves = self._leaves[first : first + WINDOW_ROWS]
        counter = next(self._counters, None)
        if counter is None:
            raise ProtocolViolation("rolled back too often: no counter is left to sign with")
        receipt = Receipt(
            version=RECEIPT_VERSION,
            opening=self.opening,
            first=first,
            last=first + len(leaves),
            leaf_root=merkle_root([leaf_hash(leaf) for leaf in leaves]),
            in_root=merkle_root([leaf[RECEIVED] for leaf in leaves]),
            out_root=merkle_root([leaf[SENT] for leaf in leaves]),
            previous=self._previous,
            counter=counter,
            expires_s=expires_s,
        )
        self._previous = receipt.digest()
        self._receipts[window] = receipt
        self._next_window = window + 1
        return receipt
