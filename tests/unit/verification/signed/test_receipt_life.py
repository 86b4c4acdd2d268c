"""Whole sessions of honest servers: whatever rolls back, dies or is late, every window ends up covered, and paid once.

Three stages with real data flow: a row is what the stage before sent, hashed; each computation of it differs by a bit,
as between machines. Receipts travel on control streams of their own, in order, and as late as they like.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256

from hypothesis import given, settings
from hypothesis import strategies as st
from receipted_chain import EXPIRES_S, NOW_S, opening, sign

from swarm.verification.signed.book import Mark, ReceiptBook
from swarm.verification.signed.compact import pack
from swarm.verification.signed.coverage import Known
from swarm.verification.signed.leaves import NO_ROW, Leaf, row_hash
from swarm.verification.signed.lineage import Lineage
from swarm.verification.signed.merkle import merkle_root
from swarm.verification.signed.receipts import Receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base
from swarm.verification.standings.ledger import Ledger

LAYERS, STAGES = 9, 3


@dataclass
class Server:
    """One stage: its builder, its rows as sent, and the receipts that are on their way to the client."""

    builder: WindowBuilder
    sent: list[bytes] = field(default_factory=list)
    mail: deque[tuple[Mark, bytes]] = field(default_factory=deque)

    def leaves(self, first: int, received: list[bytes], noise: int) -> list[Leaf]:
        outputs = [
            sha256(row + noise.to_bytes(4, "big") + bytes([self.builder.opening.stage])).digest() for row in received
        ]
        self.sent[first:] = [row_hash(output, first + place) for place, output in enumerate(outputs)]
        return [
            Leaf(first + place, row, output, sent)
            for place, (row, output, sent) in enumerate(zip(received, outputs, self.sent[first:], strict=True))
        ]

    def post(self, receipts: list[Receipt], mark: Mark) -> None:
        self.mail += [(mark, pack(sign(receipt))) for receipt in receipts]


class Session:
    def __init__(self) -> None:
        self.base, self.numbers, self.noise = 0, STAGES, 0
        self.mark: Mark = (0, 0)
        self.book, self.ledger = ReceiptBook(LAYERS), Ledger()
        self.servers = [self.newcomer(place, place) for place in range(STAGES)]
        self.book.layout([server.builder.opening for server in self.servers])
        self.lineage = Lineage()
        self.lineage.seat(range(STAGES))
        self.rows: list[bytes] = []
        self.longest = 0

    def newcomer(self, place: int, number: int) -> Server:
        self.base = counter_base(NOW_S, self.base)
        return Server(WindowBuilder(opening(number, 3 * place, 3 * place + 3, server=place), self.base))

    def step(self, keep: int, rows: int) -> None:
        """A step that goes on from ``keep`` accepted rows."""
        if keep < len(self.rows):
            self.mark = (self.mark[0], self.mark[1] + 1)
            self.book.truncate(keep, self.mark)
            self.ledger.truncate(self.servers[0].builder.opening, keep)
            del self.rows[keep:]
        self.lineage.truncate(keep)
        self.lineage.compute(keep + rows)
        self.noise += 1
        wire = [row_hash(NO_ROW, self.noise * 1000 + place) for place in range(rows)]
        self.rows += wire
        self.longest = max(self.longest, len(self.rows))
        for server in self.servers:
            if keep < server.builder.length:
                server.builder.truncate(keep)
            server.post(server.builder.commit(keep, EXPIRES_S), self.mark)
            server.builder.append(server.leaves(keep, wire, self.noise))
            wire = server.sent[keep:]

    def heal(self, place: int, whole_chain_again: bool) -> None:
        """Stage ``place`` dies with its mail; its rows come from the log before it, or the client feeds all again."""
        keep = len(self.rows)
        self.mark = (self.mark[0] + 1, 0)
        signed_rows = self.book.whole_rows(keep)
        fresh = self.servers[place] = self.newcomer(place, self.numbers)
        self.numbers, self.noise = self.numbers + 1, self.noise + 1
        for server in self.servers:
            server.builder.resume(signed_rows)
        again = self.servers[: place + 1] if whole_chain_again else [fresh]
        wire = self.rows if again[0] is self.servers[0] else self.servers[place - 1].sent
        for server in again:
            held = list(wire)
            for start in range(0, keep, 50):
                leaves = server.leaves(start, held[start : start + 50], self.noise)
                server.builder.replayed(leaves)
            wire = server.sent
        openings = [server.builder.opening for server in self.servers]
        self.book.heal(openings, self.mark, signed_rows=signed_rows)
        self.lineage.seat([opening.stage for opening in openings])
        recomputed = frozenset(server.builder.opening.stage for server in again)
        self.lineage.recompute(recomputed, keep, signed_rows, self.mark[0])

    def deliver(self, place: int, most: int) -> None:
        server = self.servers[place]
        for _ in range(min(most, len(server.mail))):
            mark, data = server.mail.popleft()
            stage = server.builder.opening.stage
            window = self.book.receive(stage, data, now_s=NOW_S, sent_rows=self.longest, mark=mark)
            if window is not None:
                rows = self.rows[32 * window : 32 * window + 32]
                first, last = positions = 32 * window, 32 * window + len(rows)
                known = Known(positions, merkle_root(rows), seams=self.lineage.seams(first, last))
                self.ledger.record(self.book.verify(window, now_s=NOW_S, known=known))

    def close(self, keep: int) -> None:
        if keep < len(self.rows):
            self.step(keep, 1)
            keep = len(self.rows)
        for place, server in enumerate(self.servers):
            server.post(server.builder.close(keep, EXPIRES_S), self.mark)
            self.deliver(place, len(server.mail))


events = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 70), st.floats(0, 1)),
        st.tuples(st.just("rollback"), st.integers(1, 70), st.floats(0, 1)),
        st.tuples(st.just("heal"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(events, st.floats(0, 1))
def test_honest_servers_are_covered_and_paid_whatever_happens(script: list[tuple[str, int, float]], end: float) -> None:
    session = Session()
    session.step(0, 5)
    for verb, number, other in script:
        if verb == "step":
            session.step(len(session.rows), number)
        elif verb == "rollback":
            session.step(int(other * len(session.rows)), number)
        elif verb == "heal":
            session.heal(number, bool(other))
        else:
            session.deliver(number, int(other))
    session.close(int(end * len(session.rows)) if end < 0.5 else len(session.rows))
    rows = len(session.rows)
    assert session.book.owed(rows) == []
    paid = session.ledger.settle(session.servers[0].builder.opening, expires_s=EXPIRES_S)
    assert sum(paid.values()) == rows * LAYERS
