"""The notary against a plain list of rows: whatever is rolled back, healed or late, the rows that stand are signed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from desks import CLIENT, NOW_S, SERVER, desk
from hypothesis import given, settings
from hypothesis import strategies as st
from proofs_at_hand import opening_of

from swarm.core.errors import ProtocolViolation
from swarm.server.record.notary import LEAF_BYTES_HELD, Notary
from swarm.server.record.notes import Note
from swarm.server.record.replay_log import Encoding, ReplayBudget
from swarm.verification.signed.compact import ReceiptChain
from swarm.verification.signed.leaves import Answers, Leaf, digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.signed.merkle import leaf_hash, merkle_root
from swarm.verification.signed.receipts import WINDOW_ROWS, countersign
from swarm.wire.evidence import Countersign, Settled, Signed
from swarm.wire.messages import Message

HIDDEN = 4
RAW = Encoding("raw", "float32", HIDDEN)
PLENTY = 10**9


OPENING = opening_of(SERVER, "m@r#0123456789abcdef", client=CLIENT.peer_id)


def tensor(rows: Sequence[tuple[int, int]], salt: int) -> bytes:
    """Rows that nobody would mix up, of (position, version)."""
    return np.array([[position, version, salt, 7] for position, version in rows], np.float32).tobytes()


@dataclass
class Bench:
    """A notary, the rows as they should stand, and what its client has read."""

    budget: ReplayBudget = field(default_factory=lambda: ReplayBudget(PLENTY))
    rows: list[tuple[int, int]] = field(default_factory=list)
    answered: dict[int, int] = field(default_factory=dict)
    version: int = 0
    generation: int = 0
    epoch: int = 0
    tail: bool = False
    signed: list[Signed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.notary = Notary(desk(), OPENING, RAW, self.budget)
        self.chain = ReceiptChain(OPENING)
        self.latest: dict[int, Signed] = {}

    def step(self, keep: int, count: int, answered: int = 0, *, replayed: bool = False) -> None:
        self.version += 1
        fresh = [(position, self.version) for position in range(keep, keep + count)]
        ids = np.arange(keep, keep + count) % 100
        outputs = tensor(fresh, 2)
        tokens = [100 + row for row in range(keep + count - answered, keep + count)] if self.tail else []
        note = Note(
            first=keep,
            rows=count,
            ids=ids,
            came=tensor(fresh, 1),
            arriving=RAW,
            inputs=tensor(fresh, 1),
            outputs=outputs,
            left=None if self.tail else outputs,
            leaving=RAW,
            answered=answered if self.tail else count,
            tokens=tokens,
            leads_on=not self.tail,
            replayed=replayed,
        )
        self.notary.note(note, (self.generation, self.epoch))
        first = max(keep, self.stands) if replayed else keep
        if not replayed:
            self.forget_windows(keep)
        if first < keep + count:
            self.rows[first:] = fresh[first - keep :]
            self.answered = {row: token for row, token in self.answered.items() if row < first}
            self.answered |= {row: 100 + row for row in range(keep + count - answered, keep + count) if self.tail}

    def forget_windows(self, keep: int) -> None:
        """What reaches beyond ``keep`` rows is void."""
        self.latest = {window: one for window, one in self.latest.items() if (window + 1) * WINDOW_ROWS <= keep}

    stands = 0
    """Rows below this are in windows that stay as they were signed."""

    def work(self, turns: int = 10**6) -> None:
        """Let the notary write, a window a turn."""
        for _ in range(turns):
            if not self.notary._is_due:
                return
            self.read(self.notary._work())

    def read(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Settled):
                self.settled = message.rows
                self.notary._settled.set_result(None)
            else:
                assert isinstance(message, Signed)
                self.chain.receive(message.receipt, now_s=NOW_S)
                last = self.chain.last
                assert last is not None
                self.latest = {window: one for window, one in self.latest.items() if window < last.receipt.window}
                self.latest[last.receipt.window] = message
                self.receipts[last.receipt.window] = last.receipt.leaf_root, last.receipt.last
                self.signed.append(message)

    @property
    def receipts(self) -> dict[int, tuple[bytes, int]]:
        return self.__dict__.setdefault("_receipts", {})

    async def settle(self, keep: int) -> None:
        settling = asyncio.create_task(self.notary.settle(keep))
        await asyncio.sleep(0)
        self.work()
        await settling
        del self.rows[keep:]

    def leaf(self, row: int) -> Leaf:
        """As made for this row alone."""
        ids = [row % 100]
        received = row_hashes(digest_rows(1, tensor([self.rows[row]], 1)), ids)
        outputs = digest_rows(1, tensor([self.rows[row]], 2))
        if not self.tail:
            return step_leaves(row, received, outputs, row_hashes(outputs, ids))[0]
        token = self.answered.get(row)
        answers = Answers(outputs, [token]) if token is not None else None
        return step_leaves(row, received, outputs, None if answers else id_hashes([None]), answers=answers)[0]

    def check(self, window: int) -> None:
        """The last receipt of a window is over the rows as they stand."""
        last = min((window + 1) * WINDOW_ROWS, len(self.rows))
        leaves = [self.leaf(row).canonical() for row in range(window * WINDOW_ROWS, last)]
        assert self.receipts[window] == (merkle_root([leaf_hash(leaf) for leaf in leaves]), last)


steps = st.lists(
    st.tuples(st.floats(0.5, 1.0), st.integers(1, 70), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=14
)
"""How far each step goes back, its rows, how many of them are answered, and how much the notary gets done after it."""


@settings(max_examples=50)
@given(steps, st.booleans(), st.floats(0.6, 1.0))
def test_after_any_rollbacks_every_window_is_signed_as_it_stands(
    plan: list[tuple[float, int, int, int]], tail: bool, accepted: float
) -> None:
    async def law() -> None:
        bench = Bench(tail=tail)
        for back, count, answered, turns in plan:
            keep = round(back * len(bench.rows))
            bench.epoch += keep < len(bench.rows)
            bench.step(keep, count, min(answered, count))
            bench.work(turns)
            assert all((window + 1) * WINDOW_ROWS <= keep for window in bench.latest), (
                "nothing beyond what was accepted"
            )
        keep = round(accepted * len(bench.rows))
        await bench.settle(keep)
        assert bench.settled == keep
        for window in range(-(-keep // WINDOW_ROWS)):
            bench.check(window)
        assert bench.budget.used_bytes == keep * LEAF_BYTES_HELD
        bench.notary.close()
        assert bench.budget.used_bytes == 0

    asyncio.run(law())


heals = st.lists(
    st.tuples(st.integers(1, 80), st.floats(0.5, 1.0), st.booleans(), st.integers(1, 50), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)
"""Rows before a heal, what it keeps, whether this server computes again and in what chunks, and how far it gets."""


@settings(max_examples=50)
@given(heals, st.booleans())
def test_after_any_heals_what_was_signed_stays_and_the_rest_is_signed_again(
    plan: list[tuple[int, float, bool, int, int]], tail: bool
) -> None:
    async def law() -> None:
        bench = Bench(tail=tail)
        for count, kept, again, chunk, turns in plan:
            bench.step(len(bench.rows), count)
            bench.step(len(bench.rows), 1)
            bench.work(turns)
            keep = round(kept * len(bench.rows))
            whole = next(window for window in range(100) if window not in bench.latest) * WINDOW_ROWS
            signed_rows = min(whole, keep // WINDOW_ROWS * WINDOW_ROWS)
            bench.generation += 1
            bench.notary.fence(bench.generation, keep, signed_rows)
            bench.stands = signed_rows
            del bench.rows[keep:]
            bench.answered = {row: token for row, token in bench.answered.items() if row < keep}
            bench.forget_windows(signed_rows)
            for first in range(0, keep if again else 0, chunk):
                bench.step(first, min(chunk, keep - first), replayed=True)
                bench.work(turns)
        await bench.settle(len(bench.rows))
        for window in range(-(-len(bench.rows) // WINDOW_ROWS)):
            bench.check(window)
        marks = [(one.generation, one.epoch) for one in bench.signed]
        assert marks == sorted(marks)

    asyncio.run(law())


async def test_a_newcomer_signs_from_where_it_was_told() -> None:
    bench = Bench()
    bench.generation = 3
    bench.notary.resume(3, 64)
    for first in range(0, 100, 40):
        bench.step(first, min(40, 100 - first), replayed=True)
    bench.work()
    assert not bench.signed, "nobody has gone on yet"
    bench.step(100, 1)
    bench.work()
    assert sorted(bench.latest) == [2]
    await bench.settle(101)
    assert sorted(bench.latest) == [2, 3]
    assert {(one.generation, one.epoch) for one in bench.signed} == {(3, 0)}


async def test_rows_after_a_gap_are_the_clients_violation() -> None:
    """A step that keeps rows which an earlier epoch voided before they left."""
    bench = Bench()
    bench.step(0, 10)
    bench.notary.note(Note(12, 1, None, b"", RAW, b"", b"", None, RAW, 0), (0, 1))
    with pytest.raises(ProtocolViolation, match="after 12 rows, of which 10"):
        bench.work()


async def test_the_run_reports_in_order_and_says_when_nothing_waits() -> None:
    bench, said, rests = Bench(), [], []

    async def report(message: Message) -> None:
        said.append(message)
        await asyncio.sleep(0)

    running = asyncio.create_task(bench.notary.run(report, lambda: rests.append(len(said))))
    bench.step(0, 100)
    bench.step(100, 1)
    await bench.notary.settle(101)
    bench.read([message for message in said if isinstance(message, Signed)])
    assert isinstance(said[-1], Settled)
    assert sorted(bench.latest) == [0, 1, 2, 3]
    last = bench.chain.last
    assert last is not None
    bench.notary.countersigned(Countersign(countersign(CLIENT, last.receipt)))
    assert bench.notary.countersignature
    await asyncio.sleep(0)
    assert rests[-1] == len(said)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_more_than_enough_to_sign_holds_up_the_session() -> None:
    bench = Bench()
    assert not bench.notary.behind
    for first in range(0, 2100, 100):
        bench.step(first, 100)
    assert bench.notary.behind
    bench.work()
    assert not bench.notary.behind
