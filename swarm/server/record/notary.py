"""Receipts of one stage of one session: rows are noted as they leave, hashed by windows, signed when they stand.

Nothing here is on a step's way. A row waits until its window is full, so that sketches of 32 rows cost what one's
would, and rows that are rolled back soon are never hashed. One window is made at a time, whichever session's, and
everybody else in the event loop has a turn before the next one (0.6 ms).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from swarm.core.errors import BadSignatureError, ProtocolViolation
from swarm.server.record.notes import Note, Part, leaves_of
from swarm.server.record.replay_log import Encoding, ReplayBudget
from swarm.server.record.signing import Desk
from swarm.verification.signed.compact import pack
from swarm.verification.signed.receipts import WINDOW_ROWS, Opening, Receipt, SignedReceipt, verify_countersignature
from swarm.wire.evidence import Countersign, Settled, Signed
from swarm.wire.messages import Message

LEAF_BYTES_HELD = 190
"""What a row's leaf takes in memory, its share of lists included."""
MAX_BEHIND_ROWS = 2048
"""Rows that wait for their receipts to be sent: beyond, the session computes no more until its client reads."""

Report = Callable[[Message], Awaitable[None]]


class Notary:
    """``note`` every row that leaves, in order; ``run`` does the rest.

    Steps that go on from ``keep`` rows accept these, and take back what was beyond. ``settle`` ends it.
    """

    def __init__(self, desk: Desk, opening: Opening, raw: Encoding, budget: ReplayBudget) -> None:
        self.builder = desk.builder(opening)
        self.countersignature = b""
        self._desk = desk
        self._raw = raw
        self._budget = budget
        self._sketcher = desk.sketcher(opening.span)
        self._charged_rows = 0
        self._pending: deque[Part] = deque()
        self._mark = (0, 0)
        self._accepted: int | None = None
        """Rows that the last step goes on from; None while none has come in this generation."""
        self._settling: int | None = None
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last: SignedReceipt | None = None
        self._broken: ProtocolViolation | None = None
        self._due = asyncio.Event()

    @property
    def rows(self) -> int:
        """Rows noted."""
        return self._pending[-1].last if self._pending else self.builder.length

    @property
    def behind(self) -> bool:
        """True if so much waits to be signed or sent that no more should be computed."""
        return bool(self._pending) and self.rows - self._pending[0].first > MAX_BEHIND_ROWS

    @property
    def settled(self) -> bool:
        """True once the client has said that nothing more will come."""
        return self._settling is not None

    # -- rows in --------------------------------------------------------------------------------------------

    def note(self, note: Note, mark: tuple[int, int]) -> None:
        """Take rows that were computed in the step, or the replay, of ``mark``: its generation and epoch.

        Amortised O(1). Rows before the step that are not held are the client's violation, which ``run`` raises.
        """
        if self.settled:
            return
        first = max(note.first, self.builder.signed_rows) if note.replayed else note.first
        if first > self.rows:
            self._broken = ProtocolViolation(f"a step after {first} rows, of which {self.rows} were computed")
        elif first < note.first + note.rows:
            self._truncate_noted(first, replayed=note.replayed)
            self._pending.append(Part(note, first, note.first + note.rows))
        if not note.replayed:
            self._mark, self._accepted = mark, note.first
        if self._is_due:
            self._due.set()

    def fence(self, generation: int, keep: int, signed_rows: int) -> None:
        """The chain heals with ``keep`` rows; windows below ``signed_rows`` stay as they were signed.

        From that window on all stages sign again, once the first step of the new generation comes.
        """
        held = min(self.builder.length, signed_rows)
        self._truncate_noted(max(keep, held), replayed=False)
        self.resume(generation, signed_rows)
        self._accepted = None

    def resume(self, generation: int, signed_rows: int) -> None:
        """A newcomer, in ``generation``: others have signed the windows below ``signed_rows``."""
        self.builder.resume(signed_rows)
        self._mark = (generation, 0)

    def finish(self) -> None:
        """Nothing more will come: drop the rows that wait, no receipt will be sent for them."""
        self._pending.clear()

    def close(self) -> None:
        """Give back what the leaves were counted for."""
        self.finish()
        self._budget.give(self.charged_bytes)
        self._charged_rows = 0

    @property
    def charged_bytes(self) -> int:
        """What the leaves count for."""
        return self._charged_rows * LEAF_BYTES_HELD

    def _truncate_noted(self, keep: int, *, replayed: bool) -> None:
        """Take back the rows from ``keep`` on. What replayed rows replace among the leaves, the builder takes back."""
        while self._pending and self._pending[-1].last > keep:
            part = self._pending.pop()
            if part.first < keep:
                self._pending.append(replace(part, last=keep))
        if not self._pending and not replayed and keep < self.builder.length:
            self.builder.truncate(keep)
            self._weigh()

    # -- receipts out ---------------------------------------------------------------------------------------

    async def run(self, report: Report, caught_up: Callable[[], None]) -> None:
        """Hash, sign and ``report`` until cancelled; raises ``ProtocolViolation`` for what no honest client does.

        ``caught_up`` is told whenever nothing waits any more.
        """
        while True:
            await self._due.wait()
            async with self._desk.turn:
                messages = self._work()
                await asyncio.sleep(0)
            for message in messages:
                await report(message)
            if messages and isinstance(messages[-1], Settled) and not self._settled.done():
                self._settled.set_result(None)
            if not self._is_due:
                self._due.clear()
                caught_up()

    async def settle(self, keep: int) -> None:
        """Sign what is left of the first ``keep`` rows, the last window as it is, and say so. Once, else a violation.

        Of rows that are not here (a heal that never ended) nothing is signed.
        """
        if self.settled:
            raise ProtocolViolation("SETTLE a second time")
        self._settling = keep
        self._truncate_noted(keep, replayed=False)
        self._due.set()
        await self._settled

    def countersigned(self, message: Countersign) -> None:
        """Keep the client's signature on the last receipt; ``ProtocolViolation`` if it is none, or not asked for."""
        if not self._settled.done() or self._last is None or self.countersignature:
            raise ProtocolViolation("a counter-signature that nobody asked for")
        try:
            verify_countersignature(self._last.receipt, message.signature)
        except BadSignatureError as error:
            raise ProtocolViolation("a counter-signature of another receipt, or by another key") from error
        self.countersignature = message.signature
        self._desk.countersigned += 1

    @property
    def _is_due(self) -> bool:
        if self.settled:
            return not self._settled.done()
        return self._broken is not None or self._ripe or self._signable

    @property
    def _ripe(self) -> bool:
        """True if the rows that wait fill a window."""
        return bool(self._pending) and self.rows >= _window_end(self._pending[0].first)

    @property
    def _signable(self) -> bool:
        if self._accepted is None:
            return False
        return self.builder.signed_rows + WINDOW_ROWS <= min(self._accepted, self.builder.length)

    def _work(self) -> list[Message]:
        """Make one window's leaves, or sign what is due, or both."""
        if self._broken is not None:
            raise self._broken
        if self._ripe or (self.settled and self._pending):
            for replayed, leaves in leaves_of(self._take_window(), self._raw, self._sketcher):
                (self.builder.replayed if replayed else self.builder.append)(leaves)
            self._weigh()
        expires_s = self._desk.expires_s
        if self._settling is not None and not (self._pending or self._signable):
            last = self.builder.close(self._settling, expires_s)
            self._weigh()
            return [*self._signed(last), Settled(self.builder.signed_rows)]
        if self._accepted is None:
            return []
        next_window = self.builder.signed_rows + WINDOW_ROWS
        return self._signed(self.builder.commit(min(self._accepted, self.builder.length, next_window), expires_s))

    def _take_window(self) -> list[Part]:
        """The rows that wait, up to the end of the window in which the first of them stands."""
        end = _window_end(self._pending[0].first)
        taken = []
        while self._pending and self._pending[0].first < end:
            part = self._pending.popleft()
            if part.last > end:
                self._pending.appendleft(replace(part, first=end))
                part = replace(part, last=end)
            taken.append(part)
        return taken

    def _signed(self, receipts: list[Receipt]) -> list[Message]:
        messages: list[Message] = []
        for receipt in receipts:
            self._last = self._desk.sign(receipt)
            messages.append(Signed(*self._mark, pack(self._last)))
        return messages

    def _weigh(self) -> None:
        """Leaves count, and there is no choice: without them nothing can be signed."""
        grown = self.builder.length - self._charged_rows
        self._budget.charge(grown * LEAF_BYTES_HELD)
        self._charged_rows += grown


def _window_end(row: int) -> int:
    return row // WINDOW_ROWS * WINDOW_ROWS + WINDOW_ROWS
