"""The replay log against a plain list of rows, and its frames against the rows they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swarm.server.record.replay_log import OWN_HORIZON, REPLAY_ROWS, Encoding, ReplayBudget, ReplayLog, ReplayRows
from swarm.wire.messages import Replay
from swarm.wire.payload import pack_ids, split_payload
from swarm.wire.tensors import cut_tensor, decode_tensor, encode_tensor, tensor_bytes

ENCODINGS = [
    Encoding("raw", "float32", 24),
    Encoding("raw", "bfloat16", 24),
    Encoding("int8", "float32", 24),
    Encoding("int8", "float16", 130),
]
PLENTY = 10**9

Row = tuple[int | None, bytes, int]
"""A row's token id, its tensor encoded alone, and the horizon it was computed with."""


def rows_of(encoding: Encoding, seeds: list[int]) -> bytes:
    """Raw rows, each from its own seed."""
    values = [np.random.default_rng(seed).standard_normal(encoding.hidden) for seed in seeds]
    if encoding.dtype == "bfloat16":
        return b"".join((np.float32(row).view(np.uint32) >> 16).astype("<u2").tobytes() for row in values)
    return np.stack(values).astype("<f4" if encoding.dtype == "float32" else "<f2").tobytes()


def encoded(encoding: Encoding, seeds: list[int]) -> bytes:
    return bytes(encode_tensor(rows_of(encoding, seeds), encoding.codec, encoding.dtype, encoding.hidden))


def read(encoding: Encoding, frames: list[ReplayRows]) -> list[Row]:
    """What a receiver makes of the frames, checked as it checks them."""
    found: list[Row] = []
    for frame in frames:
        assert frame.keep == len(found), "contiguous from row 0"
        assert 1 <= frame.rows <= REPLAY_ROWS
        message = Replay(1, frame.keep, frame.rows, frame.ids, frame.horizon)
        ids, tensor = split_payload(message, b"".join(frame.parts))
        size = tensor_bytes(encoding.codec, encoding.dtype, frame.rows, encoding.hidden)
        assert len(tensor) == size
        decode_tensor(tensor, encoding.codec, encoding.dtype, frame.rows, encoding.hidden)
        cut = ReplayLog(ReplayBudget(PLENTY))
        cut.append(0, frame.rows, b"", tensor, encoding, 1)
        for row in range(frame.rows):
            horizon = max(frame.horizon, frame.keep + row + 1)
            found.append((None if ids is None else int(ids[row]), single(cut, encoding, row), horizon))
    return found


def single(log: ReplayLog, encoding: Encoding, row: int) -> bytes:
    [segment] = log._segments
    return b"".join(cut_tensor(segment.tensor, encoding.codec, encoding.dtype, encoding.hidden, row, row + 1))


class LogMachine(RuleBasedStateMachine):
    """Appends, rollbacks and cuts in any order; two logs share one budget, which is exact at every moment."""

    @initialize(encoding=st.sampled_from(ENCODINGS), limit=st.sampled_from([0, 2_000, PLENTY]))
    def begin(self, encoding: Encoding, limit: int) -> None:
        self.encoding = encoding
        self.budget = ReplayBudget(limit)
        self.log, self.other = ReplayLog(self.budget), ReplayLog(self.budget)
        self.rows: list[Row] = []
        self.dropped = False
        self.seed = 0

    @rule(
        rows=st.sampled_from([1, 1, 1, 2, 5, 130, 300]),
        back=st.sampled_from([0, 0, 0, 1, 3, 200]),
        ids=st.booleans(),
        prompt=st.booleans(),
    )
    def append(self, rows: int, back: int, ids: bool, prompt: bool) -> None:
        keep = max(0, len(self.rows) - back)
        seeds = list(range(self.seed, self.seed + rows))
        self.seed += rows
        horizon = keep + rows + 7 if prompt else 0
        token_ids = [seed % 1000 for seed in seeds]
        tensor = encoded(self.encoding, seeds)
        self.log.append(keep, rows, pack_ids(token_ids) if ids else b"", tensor, self.encoding, horizon)
        del self.rows[keep:]
        effective = horizon or keep + rows
        self.rows += [
            (token if ids else None, encoded(self.encoding, [seed]), max(effective, keep + row + 1))
            for row, (seed, token) in enumerate(zip(seeds, token_ids, strict=True))
        ]
        if keep == 0:
            self.dropped = False
        if self.log.rows != len(self.rows):
            assert self.log.rows == 0
            assert self.dropped or self.budget.limit_bytes < PLENTY
            self.dropped = True

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        keep = int(share * len(self.rows))
        self.log.truncate(keep)
        del self.rows[keep:]
        if keep == 0:
            self.dropped = False

    @rule(rows=st.integers(1, 4))
    def beside(self, rows: int) -> None:
        """Another session's log takes of the same budget."""
        self.other.append(self.other.rows, rows, b"", encoded(self.encoding, [0] * rows), self.encoding, 0)

    @invariant()
    def frames_are_the_rows(self) -> None:
        if not self.dropped:
            assert self.log.rows == len(self.rows)
            assert read(self.encoding, list(self.log.frames(len(self.rows)))) == self.rows
            assert self.log.size_bytes == sum(segment.size_bytes for segment in self.log._segments)
        else:
            assert self.log.rows == 0
            assert not list(self.log.frames(len(self.rows)))

    @invariant()
    def the_budget_is_what_is_held(self) -> None:
        held = sum(segment.size_bytes for log in (self.log, self.other) for segment in log._segments)
        assert self.budget.used_bytes == held <= self.budget.limit_bytes

    def teardown(self) -> None:
        self.log.close()
        self.other.close()
        assert self.budget.used_bytes == 0


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=25, stateful_step_count=10)

RAW = ENCODINGS[0]


def filled(*rows: int, horizon: int = 0, budget: ReplayBudget | None = None) -> ReplayLog:
    log = ReplayLog(budget or ReplayBudget(PLENTY))
    for count in rows:
        log.append(log.rows, count, pack_ids([1] * count), encoded(RAW, [1] * count), RAW, horizon)
    return log


@given(st.integers(1, 400))
def test_decoded_rows_travel_together_and_each_keeps_the_table_of_its_own_length(rows: int) -> None:
    """A horizon of 0 in a frame of many rows would give all of them the rotary table of the last one's length."""
    frames = list(filled(*[1] * rows).frames(rows))
    assert [frame.rows for frame in frames] == [REPLAY_ROWS] * (rows // REPLAY_ROWS) + [rows % REPLAY_ROWS] * (
        rows % REPLAY_ROWS > 0
    )
    assert {frame.horizon for frame in frames} == {OWN_HORIZON}


def test_a_prompts_rows_keep_their_horizon() -> None:
    log = filled(100, 100, horizon=200)
    log.append(200, 1, pack_ids([1]), encoded(RAW, [1]), RAW, 0)
    log.append(201, 3, pack_ids([1] * 3), encoded(RAW, [1] * 3), RAW, 0)
    frames = [(frame.keep, frame.rows, frame.horizon) for frame in log.frames(204)]
    assert frames == [(0, 128, 200), (128, 72, 200), (200, 1, 1), (201, 3, 204)]


def test_frames_hold_the_bytes_that_were_sent_and_no_copies() -> None:
    log = ReplayLog(ReplayBudget(PLENTY))
    tensor, ids = encoded(RAW, list(range(200))), pack_ids([7] * 200)
    log.append(0, 200, ids, tensor, RAW, 200)
    assert all(memoryview(part).obj in (tensor, ids) for frame in log.frames(200) for part in frame.parts)


def test_frames_are_those_of_the_moment_they_were_asked_for() -> None:
    """A replay that is under way when the log is cut or goes on sends what it set out to send."""
    log = filled(5, 5)
    frames = log.frames(10)
    wanted = list(log.frames(10))
    log.truncate(3)
    log.append(3, 1, b"", encoded(RAW, [9]), RAW, 0)
    assert list(frames) == wanted


@settings(max_examples=30)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=3), st.data())
def test_any_range_of_rows_with_ids_or_bare(counts: list[int], data: st.DataObject) -> None:
    """The frames of a range are the range of the rows; bare ones hold tensors only, whatever the rows' horizons."""
    log, seeds = ReplayLog(ReplayBudget(PLENTY)), list(range(sum(counts)))
    for count in counts:
        part = seeds[log.rows : log.rows + count]
        log.append(log.rows, count, pack_ids(part), encoded(RAW, part), RAW, 0)
    first = data.draw(st.integers(0, len(seeds) - 1))
    last = data.draw(st.integers(first + 1, len(seeds)))
    for bare in (False, True):
        place = first
        for frame in log.frames(last, first=first, bare=bare):
            wanted = seeds[place : place + frame.rows]
            assert frame.keep == place
            assert frame.ids is not bare
            assert b"".join(frame.parts) == (b"" if bare else pack_ids(wanted)) + encoded(RAW, wanted)
            assert frame.rows <= REPLAY_ROWS
            place += frame.rows
        assert place == last
    assert len(list(log.frames(last, first=first, bare=True))) == -(-(last - first) // REPLAY_ROWS)


def test_what_can_be_spared_makes_room() -> None:
    """For rows that are taken, and for what is counted in any case; and nothing is spared in vain."""
    budget, spared = ReplayBudget(100), []

    def spare() -> bool:
        if len(spared) == 3:
            return False
        spared.append(len(spared))
        budget.give(30)
        return True

    budget.spare = spare
    assert budget.take(90)
    assert not spared
    assert budget.take(30)
    assert (len(spared), budget.used_bytes) == (1, 90)
    budget.charge(70)
    assert (len(spared), budget.used_bytes) == (3, 100)
    budget.charge(-20)
    budget.charge(50)
    assert budget.used_bytes == 130, "there was no choice"
    assert not budget.take(1)
    assert budget.used_bytes == 130


def test_more_than_is_held_cannot_be_replayed() -> None:
    assert not list(filled(5).frames(6))
    assert [frame.rows for frame in filled(5).frames(4)] == [4]
    assert not list(filled(5).frames(0))


def test_a_log_over_the_budget_is_dropped_whole_and_begins_again_at_row_0() -> None:
    size = 100 * (4 + 24 * 4)
    budget = ReplayBudget(size)
    log, other = filled(60, budget=budget), filled(40, budget=budget)
    assert budget.used_bytes == size
    log.append(60, 1, pack_ids([1]), encoded(RAW, [1]), RAW, 0)
    assert (log.rows, other.rows, budget.used_bytes) == (0, 40, 40 * 100)
    log.append(61, 1, pack_ids([1]), encoded(RAW, [1]), RAW, 0)
    log.truncate(20)
    log.append(20, 1, pack_ids([1]), encoded(RAW, [1]), RAW, 0)
    assert log.rows == 0, "there is room, but rows 0 to 19 are not here"
    log.append(0, 30, pack_ids([1] * 30), encoded(RAW, [1] * 30), RAW, 0)
    assert log.rows == 30


def test_a_gap_drops_the_log() -> None:
    log = filled(5)
    log.append(6, 1, pack_ids([1]), encoded(RAW, [1]), RAW, 0)
    assert log.rows == 0


def test_a_log_in_another_encoding_than_the_next_server_reads_is_dropped() -> None:
    log = filled(5)
    log.readdress(RAW)
    assert log.rows == 5
    log.readdress(Encoding("raw", "bfloat16", 24))
    assert log.rows == 0


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_a_cut_inside_a_step_frees_the_rest_of_its_memory(encoding: Encoding) -> None:
    budget = ReplayBudget(PLENTY)
    log = ReplayLog(budget)
    log.append(0, 100, b"", encoded(encoding, list(range(100))), encoding, 100)
    log.truncate(3)
    assert budget.used_bytes == tensor_bytes(encoding.codec, encoding.dtype, 3, encoding.hidden)
    [frame] = log.frames(3)
    assert b"".join(frame.parts) == encoded(encoding, [0, 1, 2])
