"""The session state machine: its table walked by two ends over a delayed pipe."""

from __future__ import annotations

from collections import deque
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.limits import COMPACT_RECEIPT_BYTES
from swarm.wire.evidence import Countersign, FetchedRows, FetchProof, FetchRows, ProofPart, Settle, Settled, Signed
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
from swarm.wire.session import TRANSITIONS, Channel, Phase, Role, StreamMachine
from swarm.wire.status import BUCKETS_S, AskStatus, Histogram, StatusReport, Totals

EMPTY = Histogram((0,) * (len(BUCKETS_S) + 1), 0.0)
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
    Signed: Signed(1, 0, bytes(COMPACT_RECEIPT_BYTES)), Settle: Settle(5), Settled: Settled(5),
    Countersign: Countersign(bytes(64)),
    FetchRows: FetchRows(bytes(16), 1, bytes(32), 0, 32, "sent"), FetchedRows: FetchedRows(0, 32),
    FetchProof: FetchProof(bytes(32)), ProofPart: ProofPart(1),
    AskStatus: AskStatus(), StatusReport: StatusReport(1.0, 0.5, Totals(), EMPTY, EMPTY, 0, 0, 0),
}  # fmt: skip
REACHED = {
    Channel.CONTROL: {*Phase},
    Channel.LINK: {Phase.START, Phase.ACTIVE},
    Channel.FETCH: {Phase.START, Phase.ACTIVE, Phase.CLOSED},
    Channel.PROOF: {Phase.START, Phase.ACTIVE, Phase.CLOSED},
    Channel.STATUS: {Phase.START, Phase.ACTIVE, Phase.CLOSED},
}
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
        assert reached == REACHED[channel]
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


class TwoFetchEnds(TwoEnds):
    channel = Channel.FETCH


class TwoProofEnds(TwoEnds):
    channel = Channel.PROOF


class TwoStatusEnds(TwoEnds):
    channel = Channel.STATUS


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
TestFetch = TwoFetchEnds.TestCase
TestFetch.settings = walk
TestProof = TwoProofEnds.TestCase
TestProof.settings = walk
TestStatus = TwoStatusEnds.TestCase
TestStatus.settings = walk


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
