"""The shelf: closed sessions by name, for a while, within what running ones leave."""

from __future__ import annotations

import numpy as np
from desks import CLIENT, announcement, desk

from swarm.core.ids import SessionKey
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.server.record.kept import Kept
from swarm.server.record.notary import LEAF_BYTES_HELD, Notary
from swarm.server.record.notes import Note
from swarm.server.record.replay_log import Encoding, ReplayBudget
from swarm.server.record.shelf import ENTRY_BYTES, Shelf
from swarm.wire.messages import Open, Upstream

HIDDEN = 8
RAW = Encoding("raw", "float32", HIDDEN)
ROW_BYTES = HIDDEN * 4
PLENTY = 10**9
STRANGER = Identity(bytes([3]) * 32)


def key(number: int, client: Identity = CLIENT) -> SessionKey:
    return SessionKey(client.peer_id, bytes([number]) * 16, 0)


class Bench:
    def __init__(self, limit_bytes: int = PLENTY, hold_s: float = 600.0) -> None:
        self.clock = VirtualClock()
        self.budget = ReplayBudget(limit_bytes)
        self.shelf = Shelf(self.clock, hold_s, self.budget)
        self.desk = desk()

    def session(self, rows: int, *, tail: bool = False) -> Kept:
        """One that computed so many rows, and whose notary is through with all full windows."""
        opened = Open(
            1, "m@r#0123456789abcdef", bytes(16), 0, 0, 1, True, tail, 999, "", "raw", Upstream("up", bytes(16)), None,
            bytes(16), bytes(32),
        )  # fmt: skip
        notary = Notary(self.desk, self.desk.opening(CLIENT.peer_id, opened, announcement()), RAW, self.budget)
        kept = Kept(self.budget, RAW, notary, is_tail=tail)
        outputs = np.ones((rows, HIDDEN), np.float32).tobytes()
        if rows and not tail:
            kept.sent.append(0, rows, b"", outputs, RAW, 0)
        if rows:
            left = None if tail else outputs
            note = Note(
                0, rows, np.arange(rows), b"", RAW, outputs, outputs, left, RAW, 0 if tail else rows, leads_on=not tail
            )
            kept.note(note, (0, 0), 0)
        while notary._is_due:
            notary._work()
        return kept


async def test_a_closed_session_is_found_by_its_own_client() -> None:
    bench = Bench()
    kept = bench.session(64)
    bench.shelf.put(key(1), b"commitment", kept)
    found = bench.shelf.find(key(1))
    assert found is not None
    assert (found.kept, found.commitment) == (kept, b"commitment")
    assert bench.shelf.find(key(2)) is None
    assert bench.shelf.find(key(1, STRANGER)) is None


async def test_what_a_stage_sent_as_it_computed_it_is_held_once() -> None:
    """And a tail, that sends no rows on, keeps those it computed."""
    bench = Bench()
    for tail in (False, True):
        before = bench.budget.used_bytes
        kept = bench.session(64, tail=tail)
        assert kept.computed.rows == 64
        assert kept.sent.rows == (0 if tail else 64)
        assert bench.budget.used_bytes - before == 64 * (ROW_BYTES + LEAF_BYTES_HELD) == kept.size_bytes


async def test_rows_without_leaves_are_dropped_at_the_end() -> None:
    """Nothing is signed of them any more, so nobody can audit them."""
    bench = Bench()
    kept = bench.session(70)
    bench.shelf.put(key(1), b"", kept)
    assert (kept.rows, kept.computed.rows, kept.sent.rows) == (64, 64, 64)
    assert bench.shelf.size_bytes == bench.budget.used_bytes == ENTRY_BYTES + 64 * (ROW_BYTES + LEAF_BYTES_HELD)


async def test_the_oldest_makes_room_for_running_sessions() -> None:
    size = ENTRY_BYTES + 64 * (ROW_BYTES + LEAF_BYTES_HELD)
    bench = Bench(limit_bytes=3 * size)
    for number in range(3):
        bench.shelf.put(key(number), b"", bench.session(64))
    assert len(bench.shelf) == 3
    running = bench.session(64)
    assert [bench.shelf.find(key(number)) is not None for number in range(3)] == [False, True, True]
    assert running.sent.rows == 64
    bench.session(600)
    assert len(bench.shelf) == 0
    assert running.sent.rows == 64, "a running one makes room for nobody"


async def test_nobody_drives_everybody_else_off_the_shelf() -> None:
    """Who closes one session after the other makes room with his own."""
    size = ENTRY_BYTES + 64 * (ROW_BYTES + LEAF_BYTES_HELD)
    bench = Bench(limit_bytes=4 * size)
    bench.shelf.put(key(0), b"", bench.session(64))
    bench.shelf.put(key(1, STRANGER), b"", bench.session(32))
    for number in range(10):
        bench.shelf.put(key(number, STRANGER), b"", bench.session(64))
    assert bench.shelf.find(key(0)) is not None
    assert [bench.shelf.find(key(number, STRANGER)) is not None for number in range(10)] == [False] * 7 + [True] * 3
    assert bench.shelf.size_bytes == bench.budget.used_bytes == 4 * size


async def test_one_that_does_not_fit_is_not_kept() -> None:
    bench = Bench(limit_bytes=0)
    bench.shelf.put(key(1), b"", bench.session(64))
    assert len(bench.shelf) == 0
    assert bench.budget.used_bytes == 0


async def test_nothing_is_kept_of_a_session_without_rows_or_for_no_time() -> None:
    bench, hasty = Bench(), Bench(hold_s=0.0)
    bench.shelf.put(key(1), b"", bench.session(0))
    hasty.shelf.put(key(1), b"", hasty.session(64))
    unsigned = Kept(bench.budget, RAW, None, is_tail=False)
    unsigned.sent.append(0, 2, b"", bytes(2 * ROW_BYTES), RAW, 0)
    bench.shelf.put(key(2), b"", unsigned)
    for one in (bench, hasty):
        assert len(one.shelf) == 0
        assert one.budget.used_bytes == 0


async def test_a_session_that_is_opened_again_takes_the_place_of_the_earlier_one() -> None:
    bench = Bench()
    for rows in (32, 64):
        bench.shelf.put(key(1), b"", bench.session(rows))
    found = bench.shelf.find(key(1))
    assert found is not None
    assert found.kept.rows == 64
    assert bench.budget.used_bytes == bench.shelf.size_bytes


async def test_everything_goes_after_its_time() -> None:
    bench = Bench(hold_s=600.0)
    bench.shelf.put(key(1), b"", bench.session(32))
    await bench.clock.advance(599.0)
    bench.shelf.put(key(2), b"", bench.session(32))
    assert bench.shelf.find(key(1)) is not None
    await bench.clock.advance(1.0)
    assert bench.shelf.find(key(1)) is None
    assert bench.shelf.find(key(2)) is not None
    await bench.clock.advance(600.0)
    bench.shelf.expire()
    assert bench.budget.used_bytes == 0
