"""The session state machine: its table walked by two ends over a delayed pipe, and the order of steps."""

from __future__ import annotations

from collections import deque
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.limits import MAX_PENDING_STEP_BYTES, MAX_PENDING_STEPS
from swarm.wire.messages import (
    Accept,
    Busy,
    Close,
    Failed,
    Hello,
    LinkLost,
    Message,
    Noop,
    Open,
    Pace,
    Refused,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
    Upstream,
)
from swarm.wire.session import TRANSITIONS, Channel, Phase, Role, StepSequencer, StreamMachine

SAMPLES: dict[type, Message] = {
    Open: Open(
        1, "m@r#0123456789abcdef", b"s" * 16, 0, 0, 1, True, True, 1, "", "raw", Upstream("up", b"i" * 16), None,
        b"n" * 16, b"c" * 32,
    ),
    Accept: Accept(0, 0, 0),
    Busy: Busy(1.0, "full"),
    Refused: Refused("no"),
    Hello: Hello("client", b"s" * 16, 0, b"x" * 16, 0),
    Step: Step(0, 0, 0, 0, 1, 1),
    Result: Result(0, 0, 0, 1),
    LinkLost: LinkLost("peer", "reset"),
    Failed: Failed("server", "out of memory"),
    Close: Close(),
    Noop: Noop(),
    Relink: Relink(1, 0),
    Relinked: Relinked(1, 0, 0),
    Replay: Replay(1, 0, 1),
    Replayed: Replayed(1, 1),
    Pace: Pace(None, 0.0),
}  # fmt: skip
EVERYTHING = [
    (channel, phase, role, kind) for channel in Channel for phase in Phase for role in Role for kind in SAMPLES
]


def in_phase(channel: Channel, role: Role, phase: Phase) -> StreamMachine:
    machine = StreamMachine(channel, role)
    machine.phase = phase
    return machine


def test_every_message_has_a_place_in_the_table() -> None:
    assert set(SAMPLES) == set(get_args(Message))
    assert {kind for *_, kind in TRANSITIONS} == set(SAMPLES)


def test_nothing_leads_out_of_closed_or_back_to_start() -> None:
    assert not [key for key in TRANSITIONS if key[1] is Phase.CLOSED]
    assert Phase.START not in TRANSITIONS.values()


def test_every_phase_can_be_reached_and_a_control_stream_can_always_be_closed() -> None:
    for channel in Channel:
        reached = {Phase.START}
        for _ in Phase:
            reached |= {to for (at, phase, *_), to in TRANSITIONS.items() if at is channel and phase in reached}
        assert reached == ({*Phase} if channel is Channel.CONTROL else {Phase.START, Phase.ACTIVE})
    for phase in (Phase.OPENING, Phase.ACTIVE):
        assert TRANSITIONS[Channel.CONTROL, phase, Role.DIALER, Close] is Phase.CLOSED


@pytest.mark.parametrize(("channel", "phase", "role", "kind"), EVERYTHING)
def test_every_cell_of_the_table(channel: Channel, phase: Phase, role: Role, kind: type[Message]) -> None:
    """What the table allows moves both ends alike; what it does not is ours to forbid, or the peer's violation."""
    sender, reader = in_phase(channel, role, phase), in_phase(channel, role.other, phase)
    following = TRANSITIONS.get((channel, phase, role, kind))
    if following is not None:
        sender.sent(SAMPLES[kind])
        assert reader.received(SAMPLES[kind])
        assert sender.phase is reader.phase is following
        assert reader.closed_by_peer == (following is Phase.CLOSED)
        assert not sender.closed_by_peer
        return
    with pytest.raises(MisuseError, match=f"cannot send {kind.__name__} while {channel.value} is {phase.value}"):
        sender.sent(SAMPLES[kind])
    if phase is Phase.CLOSED:
        assert not reader.received(SAMPLES[kind]), "it crossed with the closing"
    else:
        with pytest.raises(ProtocolViolation, match=f"{kind.__name__} is not allowed"):
            reader.received(SAMPLES[kind])
    assert sender.phase is reader.phase is phase


class TwoEnds(RuleBasedStateMachine):
    """Both ends of one stream over two pipes that keep the order but delay at will.

    Each end sends only what its machine allows. Then whatever the delays, no honest end ever sees a violation, and
    once the pipes are empty both agree on the phase.
    """

    channel = Channel.CONTROL

    @initialize()
    def connect(self) -> None:
        self.ends = {role: StreamMachine(self.channel, role) for role in Role}
        self.pipes: dict[Role, deque[Message]] = {role: deque() for role in Role}
        self.delivered: dict[Role, list[type]] = {role: [] for role in Role}

    @rule(role=st.sampled_from(Role), kind=st.sampled_from(list(SAMPLES)))
    def send(self, role: Role, kind: type[Message]) -> None:
        machine = self.ends[role]
        before = machine.phase
        allowed = (self.channel, before, role, kind) in TRANSITIONS
        try:
            machine.sent(SAMPLES[kind])
        except MisuseError:
            assert not allowed
            assert machine.phase is before
        else:
            assert allowed
            self.pipes[role].append(SAMPLES[kind])

    @precondition(lambda self: any(self.pipes.values()))
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        sender = data.draw(st.sampled_from([role for role in Role if self.pipes[role]]))
        message = self.pipes[sender].popleft()
        closed = self.ends[sender.other].phase is Phase.CLOSED
        assert self.ends[sender.other].received(message) is not closed
        if not closed:
            self.delivered[sender].append(type(message))

    @precondition(lambda self: any(self.pipes.values()))
    @rule()
    def deliver_all(self) -> None:
        while any(self.pipes.values()):
            for role in Role:
                if self.pipes[role]:
                    self.ends[role.other].received(self.pipes[role].popleft())

    @precondition(lambda self: not any(self.pipes.values()))
    @invariant()
    def idle_pipes_mean_agreement(self) -> None:
        phases = {machine.phase for machine in self.ends.values()}
        assert len(phases) == 1, phases

    @invariant()
    def closed_stays_closed(self) -> None:
        for role, machine in self.ends.items():
            if machine.phase is Phase.CLOSED:
                with pytest.raises(MisuseError):
                    machine.sent(SAMPLES[Noop])
                assert machine.received(SAMPLES[Noop]) is False
            assert role is machine.role


class TwoLinkEnds(TwoEnds):
    channel = Channel.LINK


class TwoBusyEnds(TwoEnds):
    """The same, mostly past the opening, where the crossings are."""

    @initialize()
    def connect(self) -> None:
        super().connect()
        for role, kind in ((Role.DIALER, Open), (Role.LISTENER, Accept)):
            self.ends[role].sent(SAMPLES[kind])
            assert self.ends[role.other].received(SAMPLES[kind])


walk = settings(max_examples=60, stateful_step_count=25)
TestControl = TwoEnds.TestCase
TestControl.settings = walk
TestBusyControl = TwoBusyEnds.TestCase
TestBusyControl.settings = walk
TestLink = TwoLinkEnds.TestCase
TestLink.settings = walk


@pytest.mark.parametrize(
    ("by_client", "by_server"), [(Close, Accept), (Close, Busy), (Close, Refused)], ids=lambda kind: kind.__name__
)
def test_a_client_that_gives_up_while_the_answer_is_under_way(by_client: type, by_server: type) -> None:
    client, server = (StreamMachine(Channel.CONTROL, role) for role in (Role.DIALER, Role.LISTENER))
    client.sent(SAMPLES[Open])
    server.received(SAMPLES[Open])
    client.sent(SAMPLES[by_client])
    server.sent(SAMPLES[by_server])
    assert client.received(SAMPLES[by_server]) is False
    assert server.received(SAMPLES[by_client]) is (by_server is Accept)
    assert client.phase is server.phase is Phase.CLOSED
    assert server.closed_by_peer is (by_server is Accept)
    assert not client.closed_by_peer


# --- the order of steps ---------------------------------------------------------------------------------------------


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
