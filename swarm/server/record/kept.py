"""What a session's rows leave behind at a server: as sent, as computed, and what is signed of them."""

from __future__ import annotations

from swarm.server.record.notary import Notary
from swarm.server.record.notes import Note
from swarm.server.record.replay_log import Encoding, ReplayBudget, ReplayLog
from swarm.wire.messages import Replay, Step
from swarm.wire.tensors import Buffer


class Kept:
    """The rows of one stage of one session, from row 0 on.

    ``sent`` are those that went to the next server, for whoever takes over from it and for audits; a tail has none.
    ``notary`` makes the receipts, or is None where none are signed; then outputs are not kept either. What a stage
    sent as it computed it is kept once. ``raw`` is how computed rows are encoded.
    """

    def __init__(self, budget: ReplayBudget, raw: Encoding, notary: Notary | None, *, is_tail: bool) -> None:
        self.sent = ReplayLog(budget)
        self.notary = notary
        self.raw = raw
        self.is_tail = is_tail
        self._computed = ReplayLog(budget)
        self._alike = False

    @property
    def computed(self) -> ReplayLog:
        """The rows as computed."""
        return self.sent if self._alike else self._computed

    @property
    def rows(self) -> int:
        """Rows of which there are leaves."""
        return 0 if self.notary is None else self.notary.builder.length

    @property
    def size_bytes(self) -> int:
        """What it counts for. O(rows)."""
        leaves = 0 if self.notary is None else self.notary.charged_bytes
        return self.sent.size_bytes + self._computed.size_bytes + leaves

    def leaves(self, first: int, last: int) -> list[bytes]:
        """Leaves of rows ``[first, last)``, in canonical form."""
        return [] if self.notary is None else self.notary.builder.leaves(first, last)

    @property
    def behind(self) -> bool:
        """See ``Notary``."""
        return self.notary is not None and self.notary.behind

    @property
    def settled(self) -> bool:
        """See ``Notary``."""
        return self.notary is not None and self.notary.settled

    def pass_on(self, step: Step | Replay, ids: bytes, tensor: Buffer, encoding: Encoding) -> None:
        """A step's ids and rows go to the next server in this form; none of a session that is settled are kept."""
        if not self.settled:
            self.sent.append(step.keep, step.rows, ids, tensor, encoding, step.horizon)

    def note(self, note: Note, mark: tuple[int, int], horizon: int) -> None:
        """A step's rows are about to leave, or would if they had to. See ``Notary.note``.

        Rows that a stage computes again to feed a newcomer replace those it computed before.
        """
        if self.notary is None or self.settled:
            return
        self._alike = note.leads_on and note.left is note.outputs
        if not self._alike:
            self._computed.append(note.first, note.rows, b"", note.outputs, self.raw, horizon)
        self.notary.note(note, mark)

    def fence(self, generation: int, keep: int, signed_rows: int) -> None:
        """The chain heals: ``keep`` rows remain, and those of windows that were signed as they were signed."""
        self.sent.truncate(keep)
        self._computed.truncate(keep)
        if self.notary is not None:
            self.notary.fence(generation, keep, signed_rows)

    def finish(self) -> None:
        """Nothing more will come: forget the rows that nothing was made of."""
        if self.notary is not None:
            self.notary.finish()
        self.sent.truncate(self.rows)
        self._computed.truncate(self.rows)

    def close(self) -> None:
        """Forget everything."""
        self.sent.close()
        self._computed.close()
        if self.notary is not None:
            self.notary.close()
