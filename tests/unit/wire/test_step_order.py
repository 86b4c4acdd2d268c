"""The order of a session's steps: two lanes, repeats, rollbacks and heals, against a model that remembers all."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.core.errors import ProtocolViolation
from swarm.core.limits import MAX_PENDING_STEP_BYTES, MAX_PENDING_STEPS
from swarm.wire.messages import (
    Replay,
    Step,
)
from swarm.wire.session import StepSequencer


def step(seq: int, *, generation: int = 0, epoch: int = 0, keep: int = 0, rows: int = 1, want: int = 0) -> Step:
    return Step(generation, epoch, seq, keep, rows, want)


def sequencer(capacity_tokens: int = 10_000) -> StepSequencer[tuple[int, int, int]]:
    return StepSequencer(capacity_tokens=capacity_tokens)


def offer(order: StepSequencer[tuple[int, int, int]], one: Step, size: int = 0) -> list[tuple[int, int, int]]:
    return order.offer(one, (one.generation, one.epoch, one.seq), size)


@given(st.lists(st.booleans(), max_size=MAX_PENDING_STEPS), st.data())
def test_two_lanes_in_any_interleaving_run_in_order_exactly_once(lanes: list[bool], data: st.DataObject) -> None:
    """Each lane keeps its own order, as streams do; how they mix is the network's choice."""
    queues = [deque(seq for seq, lane in enumerate(lanes) if lane is side) for side in (False, True)]
    order, ran = sequencer(), []
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        ran += [seq for _, _, seq in offer(order, step(queue.popleft()))]
    assert ran == list(range(len(lanes)))


@given(st.permutations(range(12)), st.lists(st.integers(0, 11), max_size=12), st.randoms())
def test_repeats_are_harmless(seqs: list[int], repeats: list[int], random: object) -> None:
    arrivals = [*seqs, *repeats]
    random.shuffle(arrivals)  # type: ignore[attr-defined]
    order = sequencer()
    assert [seq for arrival in arrivals for _, _, seq in offer(order, step(arrival))] == list(range(12))


class Order(RuleBasedStateMachine):
    """Steps of any epoch and generation in any order against a model that remembers everything."""

    @initialize()
    def begin(self) -> None:
        self.order = sequencer()
        self.seen: dict[tuple[int, int], set[int]] = {}
        self.now = (0, 0)
        self.ran: list[tuple[int, int, int]] = []

    @rule(behind=st.integers(0, 1), ahead=st.sampled_from([0, 0, 0, 0, 1]), seq=st.integers(0, 6))
    def arrive(self, behind: int, ahead: int, seq: int) -> None:
        generation, epoch = self.now[0], max(0, self.now[1] - behind) + ahead
        ran = offer(self.order, step(seq, generation=generation, epoch=epoch))
        if epoch > self.now[1]:
            self.now = (generation, epoch)
        if (generation, epoch) < self.now:
            assert ran == []
            return
        known = self.seen.setdefault(self.now, set())
        already = self.prefix(known)
        known.add(seq)
        assert ran == [(*self.now, next_seq) for next_seq in range(already, self.prefix(known))]
        self.ran += ran

    @precondition(lambda self: self.now[0] > 0)
    @rule(seq=st.integers(0, 6), epoch=st.integers(0, 5))
    def arrive_from_before_a_heal(self, seq: int, epoch: int) -> None:
        assert offer(self.order, step(seq, generation=self.now[0] - 1, epoch=epoch)) == []

    @rule(seq=st.integers(0, 6))
    def arrive_from_a_generation_nobody_announced(self, seq: int) -> None:
        with pytest.raises(ProtocolViolation, match="generation"):
            offer(self.order, step(seq, generation=self.now[0] + 1))

    @rule(jump=st.integers(-1, 2))
    def heal(self, jump: int) -> None:
        generation = self.now[0] + jump
        self.order.fence(max(0, generation))
        if jump > 0:
            self.now = (generation, 0)

    @staticmethod
    def prefix(known: set[int]) -> int:
        return next(seq for seq in range(len(known) + 1) if seq not in known)

    @invariant()
    def what_ran_is_ordered_without_repeats(self) -> None:
        assert self.ran == sorted(set(self.ran))

    @invariant()
    def only_the_present_is_current(self) -> None:
        generation, epoch = self.now
        assert self.order.is_current(step(0, generation=generation, epoch=epoch))
        for other in (
            (generation, epoch + 1),
            (generation + 1, epoch),
            (generation - 1, epoch),
            (generation, epoch - 1),
        ):
            if min(other) >= 0:
                assert not self.order.is_current(step(0, generation=other[0], epoch=other[1]))


TestOrder = Order.TestCase
TestOrder.settings = settings(max_examples=80, stateful_step_count=30)


def test_a_newcomers_steps_begin_in_the_generation_it_was_opened_in() -> None:
    order: StepSequencer[tuple[int, int, int]] = StepSequencer(capacity_tokens=100, generation=3)
    assert offer(order, step(0, generation=2)) == []
    assert offer(order, step(0, generation=3)) == [(3, 0, 0)]
    with pytest.raises(ProtocolViolation, match="generation 4, session is in 3"):
        offer(order, step(1, generation=4))


def test_a_rollback_voids_what_waits_for_an_earlier_step() -> None:
    order = sequencer()
    assert offer(order, step(1)) == []
    assert offer(order, step(0, epoch=1)) == [(0, 1, 0)]
    assert offer(order, step(0)) == []
    assert offer(order, step(1, epoch=1)) == [(0, 1, 1)], "the held step 1 was of the old epoch"


@pytest.mark.parametrize("first_seq", [0, 5])
def test_steps_too_far_ahead_are_a_violation(first_seq: int) -> None:
    order = sequencer()
    for seq in range(first_seq):
        offer(order, step(seq))
    assert offer(order, step(first_seq + MAX_PENDING_STEPS - 1)) == []
    with pytest.raises(ProtocolViolation, match="too far ahead"):
        offer(order, step(first_seq + MAX_PENDING_STEPS))


def test_bytes_that_wait_are_bounded_but_the_awaited_step_always_fits() -> None:
    order = sequencer()
    half = MAX_PENDING_STEP_BYTES // 2
    assert offer(order, step(1), half) == []
    assert offer(order, step(2), half) == []
    with pytest.raises(ProtocolViolation, match="too many bytes"):
        offer(order, step(3), 1)
    assert [seq for *_, seq in offer(order, step(0), half)] == [0, 1, 2]
    assert offer(order, step(4), MAX_PENDING_STEP_BYTES) == [], "released bytes no longer count"


def test_repeats_hold_no_memory() -> None:
    order = sequencer()
    assert len(offer(order, step(0))) == 1
    for _ in range(3):
        assert offer(order, step(0), MAX_PENDING_STEP_BYTES) == []
    half = MAX_PENDING_STEP_BYTES // 2
    for _ in range(3):
        assert offer(order, step(2), half) == []
    assert offer(order, step(3), half) == []


@pytest.mark.parametrize("void", ["rollback", "heal"])
def test_voided_bytes_no_longer_count(void: str) -> None:
    order = sequencer()
    offer(order, step(1), MAX_PENDING_STEP_BYTES)
    if void == "rollback":
        offer(order, step(1, epoch=1), MAX_PENDING_STEP_BYTES)
    else:
        order.fence(1)
        offer(order, step(1, generation=1), MAX_PENDING_STEP_BYTES)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (step(0, keep=100), "101, but 100 were reserved"),
        (step(0, keep=0, rows=101), "101, but 100 were reserved"),
        (step(0, rows=4, want=5), "wants 5 of 4"),
    ],
)
def test_a_step_outside_its_reservation_is_a_violation(one: Step, why: str) -> None:
    order = sequencer(capacity_tokens=100)
    assert len(offer(order, step(0, keep=99))) == 1
    with pytest.raises(ProtocolViolation, match=why):
        offer(order, one)


def test_replayed_rows_are_those_of_the_present_generation_and_within_the_reservation() -> None:
    order = sequencer(capacity_tokens=100)
    order.fence(2)
    assert order.admits(Replay(2, 90, 10))
    assert order.admits(Replay(2, 0, 10)), "in any order: they have no numbers"
    assert not order.admits(Replay(1, 0, 10))
    with pytest.raises(ProtocolViolation, match="replay of generation 3, session is in 2"):
        order.admits(Replay(3, 0, 10))
    for generation in (1, 2):
        with pytest.raises(ProtocolViolation, match="ends at row 101, but 100 were reserved"):
            order.admits(Replay(generation, 91, 10))
